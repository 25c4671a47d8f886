//! Which rules of the kinds some test breaks.
//!
//! Invariant: a rule counts as tried when a table of refusals has its message.
//! Failure: the messages of the rules that no table has.

use serde_json::Value;

/// Every string between quotes in the tables of refusals.
fn words_of_the_tables() -> Vec<&'static str> {
    [
        include_str!("rules.rs"),
        include_str!("edits.rs"),
        include_str!("kinds.rs"),
        include_str!("kinds/replica_sets.rs"),
        include_str!("kinds/backups.rs"),
    ]
    .into_iter()
    .flat_map(|source| source.split('"').skip(1).step_by(2))
    .filter(|words| words.len() > 7)
    .collect()
}

#[test]
fn every_rule_is_broken_by_some_case() {
    let tables = words_of_the_tables();
    let text = serde_json::to_value(crds::schema::definitions()).unwrap();
    let mut untried = Vec::new();
    let mut rest = vec![&text];
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(items) => rest.extend(items),
            Value::Object(fields) => {
                for rule in fields
                    .get("x-kubernetes-validations")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    let message = rule["message"].as_str().unwrap_or_default();
                    if !tables.iter().any(|words| message.contains(words)) {
                        untried.push(message.to_owned());
                    }
                }
                rest.extend(fields.values());
            }
            _ => {}
        }
    }
    assert_eq!(untried, Vec::<String>::new());
}
