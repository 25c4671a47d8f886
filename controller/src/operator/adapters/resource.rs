//! Any other custom resource with conditions.
//!
//! Invariant: reads four types and nothing else; text is cut to what a message can hold.
//! Failure: a status of another shape is none.

use serde_json::Value;

use crate::operator::component::{ComponentState, Conditions};

/// Longest text that is taken over.
const LONGEST: usize = 512;

/// The four conditions in an object's status.
#[must_use]
pub fn resource(object: &Value) -> ComponentState {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let conditions = conditions.into_iter().flatten().filter_map(condition);
    match Conditions::read(conditions) {
        Some(conditions) => ComponentState::Found(conditions),
        None => ComponentState::Nothing(String::new()),
    }
}

/// Type, status and message.
fn condition(value: &Value) -> Option<(String, String, String)> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let message = text("message").unwrap_or_default();
    let message = message.chars().take(LONGEST).collect();
    Some((
        text("type")?.to_owned(),
        text("status")?.to_owned(),
        message,
    ))
}
