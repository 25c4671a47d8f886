//! Objects in YAML, and parts of them.
//!
//! Invariant: an object is its kind, namespace and name; two with the same ones are an error.
//! Failure: names the object.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Objects by kind, namespace and name.
pub(super) type Objects = BTreeMap<String, Value>;

/// The documents of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Value>> {
    let documents = text
        .split("\n---\n")
        .map(|part| part.trim_start_matches("---\n"));
    let parsed = documents.map(|part| {
        let object = serde_saphyr::from_str::<Option<Value>>(part);
        object.with_context(|| part.to_owned())
    });
    let parsed: Vec<_> = parsed.collect::<Result<_>>()?;
    Ok(parsed.into_iter().flatten().map(with_numbers).collect())
}

/// The same with each number written in one way: 1.0 is 1.
fn with_numbers(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(with_numbers).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            Value::Object(
                fields
                    .map(|(key, value)| (key, with_numbers(value)))
                    .collect(),
            )
        }
        Value::Number(number) => {
            let text = number.as_f64().unwrap_or_default().to_string();
            text.parse::<i64>()
                .map_or(Value::Number(number), Value::from)
        }
        other => other,
    }
}

/// Whether an object exists only while Helm installs, tests or uninstalls.
pub(super) fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

pub(super) fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let kind = word(&object["kind"]);
    let name = word(&metadata["name"]);
    format!("{kind} {namespace}/{name}")
}

pub(super) fn by_key(objects: Vec<Value>) -> Result<Objects> {
    let mut all = Objects::new();
    for object in objects {
        let key = key(&object);
        ensure!(all.insert(key.clone(), object).is_none(), "{key} twice");
    }
    Ok(all)
}

/// The object whose kind and name these are, as `DaemonSet vmlet-node`.
pub(super) fn find<'a>(objects: &'a [Value], kind_name: &str) -> Result<&'a Value> {
    let mut found = objects.iter().filter(|one| {
        let words =
            [&one["kind"], &one["metadata"]["name"]].map(|word| word.as_str().unwrap_or("?"));
        words.join(" ") == kind_name
    });
    found.next().with_context(|| format!("no {kind_name}"))
}

/// The element of a list with that name.
pub(super) fn named<'a>(list: &'a Value, name: &str) -> Result<&'a Value> {
    let mut all = list.as_array().into_iter().flatten();
    let found = all.find(|one| one["name"] == name);
    found.with_context(|| format!("no {name} in {list}"))
}

/// The specification of a workload's pods.
pub(super) fn pod(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]
}

/// The data of the ConfigMap that a workload mounts.
pub(super) fn settings<'a>(objects: &'a [Value], workload: &str) -> Result<&'a Value> {
    let volume = named(&pod(find(objects, workload)?)["volumes"], "config")?;
    let name = volume["configMap"]["name"].as_str().context("a name")?;
    Ok(&find(objects, &format!("ConfigMap {name}"))?["data"])
}
