//! Which rules of the kinds some test breaks.
//!
//! Invariant: a rule counts as tried when a table of refusals has its message, or words of it that no
//! rule with another message has: the name of a field alone is in the messages of many.
//! Failure: the messages of the rules that no table has.

use std::collections::BTreeSet;

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
    .filter(|words| words.trim().contains(' '))
    .collect()
}

/// Whether the words belong to this message and to no other one.
fn are_of(words: &str, message: &str, messages: &BTreeSet<String>) -> bool {
    let with = |message: &&String| message.contains(words);
    words == message || message.contains(words) && messages.iter().filter(with).count() == 1
}

#[test]
fn every_rule_is_broken_by_some_case() {
    let text = serde_json::to_value(crds::schema::definitions()).unwrap();
    let mut messages = BTreeSet::new();
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
                    messages.insert(message.to_owned());
                }
                rest.extend(fields.values());
            }
            _ => {}
        }
    }
    let tables = words_of_the_tables();
    let is_untried = |message: &&String| {
        let mut tables = tables.iter();
        !tables.any(|words| are_of(words, message, &messages))
    };
    let untried: Vec<_> = messages.iter().filter(is_untried).collect();
    assert_eq!(untried, Vec::<&String>::new());
}
