//! The result of a plugin.
//!
//! Invariant: a parsed result refers only to interfaces that are in it; layouts of the versions
//! 0.3.0 to 1.1.0 come out as the same type.
//! Failure: what is no result is an error; empty strings and out-of-range references, which plugins
//! in the field produce, read as absent.

#[cfg(test)]
mod tests;

use std::time::Duration;

use rscni_types::types::CNIResult;
use rscni_types::version::SpecVersion;
use serde_json::{Map, Value};

/// The outcome of ADD for a whole chain.
#[derive(Debug, Clone, PartialEq)]
pub struct AddResult {
    /// As the last plugin printed it, with `cniVersion`.
    pub raw: Value,
    /// The same, typed.
    pub parsed: CNIResult,
    /// How long the plugins ran; nothing for a result that was only read.
    pub took: Duration,
}

/// Why what a plugin printed is no result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// JSON, but no object.
    #[error("the result is not an object")]
    NotObject,
    /// A version outside 0.3.0 to 1.1.0, whose layout is another one.
    #[error("the result has the unsupported version {0:?}")]
    Version(String),
    /// A field holds what it must not.
    #[error("the result does not follow the specification")]
    Shape(#[source] serde_json::Error),
}

/// Types a result. One without `cniVersion` counts as one of `requested`, the version of the
/// request.
pub fn parse_result(raw: Value, requested: SpecVersion) -> Result<AddResult, ResultError> {
    let Value::Object(mut fields) = raw else {
        return Err(ResultError::NotObject);
    };
    let reported = match fields.get("cniVersion") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(version)) => version.clone(),
        Some(other) => return Err(ResultError::Version(other.to_string())),
    };
    if reported.is_empty() {
        fields.insert("cniVersion".into(), requested.to_string().into());
    } else {
        let known = |v: &SpecVersion| v.is_supported() && *v <= SpecVersion::CURRENT;
        reported
            .parse()
            .ok()
            .filter(known)
            .ok_or(ResultError::Version(reported))?;
    }
    let mut parsed: CNIResult =
        serde_json::from_value(without_blanks(&fields)).map_err(ResultError::Shape)?;
    let interfaces = parsed.interfaces.len();
    for ip in &mut parsed.ips {
        ip.interface = ip
            .interface
            .filter(|&i| usize::try_from(i).is_ok_and(|i| i < interfaces));
    }
    Ok(AddResult {
        raw: Value::Object(fields),
        parsed,
        took: Duration::ZERO,
    })
}

/// The result without optional fields whose value says nothing.
fn without_blanks(fields: &Map<String, Value>) -> Value {
    const OPTIONAL: [&str; 6] = [
        "gateway",
        "gw",
        "interface",
        "sandbox",
        "socketPath",
        "pciID",
    ];
    let mut fields = fields.clone();
    for section in ["interfaces", "ips", "routes"] {
        let Some(Value::Array(entries)) = fields.get_mut(section) else {
            continue;
        };
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.retain(|name, value| {
                let blank = value == "" || value.as_i64().is_some_and(|number| number < 0);
                !(blank && OPTIONAL.contains(&name.as_str()))
            });
        }
    }
    Value::Object(fields)
}
