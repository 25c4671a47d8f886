//! Server-side apply, as far as the reconciler needs it: a manager's earlier fields go when it
//! leaves them out.
//!
//! Invariant: conditions are a map by type and finalizers a set; other lists belong to one manager
//! as a whole.
//! Failure: none; conflicts are forced, as the reconciler does.

use serde_json::Value;

/// Applies `new` of a manager whose last application was `before`.
pub(super) fn apply(object: &mut Value, before: &Value, new: &Value) {
    remove(object, before, new, "");
    merge(object, new, "");
}

fn remove(object: &mut Value, before: &Value, new: &Value, field: &str) {
    match (object, before) {
        (Value::Object(object), Value::Object(before)) => {
            for (key, old) in before {
                match new.get(key) {
                    Some(kept) => {
                        if let Some(child) = object.get_mut(key) {
                            remove(child, old, kept, key);
                        }
                    }
                    None => {
                        object.remove(key);
                    }
                }
            }
        }
        (Value::Array(object), Value::Array(before)) if field == "conditions" => {
            let is_gone = |item: &Value| {
                has(before, "type", &item["type"])
                    && !new
                        .as_array()
                        .is_some_and(|n| has(n, "type", &item["type"]))
            };
            object.retain(|item| !is_gone(item));
        }
        (Value::Array(object), Value::Array(before)) if field == "finalizers" => {
            let new = new.as_array().cloned().unwrap_or_default();
            object.retain(|item| !before.contains(item) || new.contains(item));
        }
        _ => {}
    }
}

fn has(list: &[Value], key: &str, value: &Value) -> bool {
    list.iter().any(|item| item[key] == *value)
}

fn merge(object: &mut Value, new: &Value, field: &str) {
    match (object, new) {
        (Value::Object(object), Value::Object(new)) => {
            for (key, value) in new {
                merge(object.entry(key.clone()).or_insert(Value::Null), value, key);
            }
        }
        (Value::Array(object), Value::Array(new)) if field == "conditions" => {
            for item in new {
                match object.iter_mut().find(|o| o["type"] == item["type"]) {
                    Some(old) => *old = item.clone(),
                    None => object.push(item.clone()),
                }
            }
        }
        (Value::Array(object), Value::Array(new)) if field == "finalizers" => {
            for item in new
                .iter()
                .filter(|i| !object.contains(i))
                .cloned()
                .collect::<Vec<_>>()
            {
                object.push(item);
            }
        }
        (object, new) => *object = new.clone(),
    }
}
