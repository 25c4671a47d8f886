//! YAML as cloud-init reads it.
//!
//! Invariant: aliases cannot blow a text up; numbers with a leading zero are octal, as cloud-init's
//! parser has it.
//! Failure: a sentence with the place, which repeats nothing of the text.

use serde_json::{Map, Value};

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

/// The value that a text is.
pub(crate) fn value(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
        },
    };
    let parsed = serde_saphyr::from_str_with_options(text, options);
    parsed.map_err(|e| match e.location() {
        Some(place) => {
            let (line, column) = (place.line(), place.column());
            format!("line {line}, column {column}: this is no YAML")
        }
        None => "this is no YAML".to_owned(),
    })
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
