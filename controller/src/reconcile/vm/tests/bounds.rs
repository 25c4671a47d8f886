//! The sizes that the API server allows, by the schemas that it is given.
//!
//! Invariant: whatever passes write through the double fits; patterns and rules are left to the
//! real server.
//! Failure: the field that is too long.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;

/// The first field of one of our objects that is too long, with its path.
pub(super) fn broken(collection: &str, object: &Value) -> Option<String> {
    static SCHEMAS: OnceLock<HashMap<String, Value>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| {
        let all = crds::schema::definitions().into_iter();
        all.map(|definition| {
            let text = serde_json::to_value(&definition).unwrap();
            let schema = &text["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            (definition.spec.names.plural, schema.clone())
        })
        .collect()
    });
    let plural = collection.rsplit('/').next()?;
    let is_ours = collection.contains("vmlet.dev");
    let schema = schemas.get(plural).filter(|_| is_ours)?;
    look("", schema, object)
}

fn look(path: &str, schema: &Value, value: &Value) -> Option<String> {
    let is_over = |bound: &str, length: usize| {
        let most = schema[bound].as_u64();
        most.is_some_and(|most| length as u64 > most)
    };
    match value {
        Value::String(text) if is_over("maxLength", text.chars().count()) => {
            Some(format!("{path}: too long: may not be more than allowed"))
        }
        Value::Number(number)
            if number.as_f64() > schema["maximum"].as_f64().or(Some(f64::MAX)) =>
        {
            Some(format!("{path}: {number} is too large"))
        }
        Value::Array(all) if is_over("maxItems", all.len()) => {
            Some(format!("{path}: too many items"))
        }
        Value::Array(all) => all
            .iter()
            .find_map(|one| look(&format!("{path}[]"), &schema["items"], one)),
        Value::Object(all) => all.iter().find_map(|(name, one)| {
            let path = format!("{path}.{name}");
            match &schema["properties"][name] {
                Value::Null => look(&path, &schema["additionalProperties"], one),
                property => look(&path, property, one),
            }
        }),
        _ => None,
    }
}
