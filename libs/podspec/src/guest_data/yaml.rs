//! YAML as cloud-init reads it.
//!
//! Invariant: what is merged has the meaning that cloud-init's parser, PyYAML, gives it; a value that JSON
//! cannot have is refused there, and only there. Aliases cannot blow a text up.
//! Failure: a sentence with the place, which repeats nothing of the text.

use serde_json::{Map, Value};
use serde_saphyr::DuplicateKeyPolicy;

use document::Shape;

mod document;
mod refusal;
mod scalar;
#[cfg(test)]
mod tests;

/// Most values that the aliases of a file may refer to, together.
const MAX_REPLAYED: usize = 10_000;

/// The map that a text is; empty text is an empty map.
pub(super) fn map(text: &str) -> Result<Map<String, Value>, String> {
    match value(text)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err("a YAML map is needed".to_owned()),
    }
}

/// The value that a text is, where equal keys are a mistake: text that cloud-init does not read.
pub(crate) fn strict(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: DuplicateKeyPolicy::Error,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
        },
    };
    let parsed = serde_saphyr::from_str_with_options(text, options);
    parsed.map_err(|error| {
        let place = error.location().map_or_else(String::new, |place| {
            format!("line {}, column {}: ", place.line(), place.column())
        });
        format!("{place}this is no YAML")
    })
}

/// The value that a text is to cloud-init.
pub(crate) fn value(text: &str) -> Result<Value, String> {
    document::read(text).map_err(|flaw| flaw.to_string())
}

/// Refuses a text that is no map. It is passed on as it is, so that its values do not matter. Whether
/// there is anything in it.
pub(super) fn check_map(text: &str) -> Result<bool, String> {
    match document::shape(text).map_err(|flaw| flaw.to_string())? {
        Shape::Empty => Ok(false),
        Shape::Map => Ok(true),
        Shape::Other => Err("a YAML map is needed".to_owned()),
    }
}

/// Merges as the predecessor did: maps recurse, lists are joined, anything else is what comes
/// later.
pub(super) fn merge(base: &mut Map<String, Value>, later: Map<String, Value>) {
    for (key, value) in later {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(later)) => merge(base, later),
            (Some(Value::Array(base)), Value::Array(later)) => base.extend(later),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}
