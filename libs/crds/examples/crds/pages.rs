//! The end of each page of `docs/kinds/`: all fields of the kind, and what the API server refuses.
//!
//! Invariant: what precedes the mark is written by people and stays as it is.
//! Failure: a kind without a page is an error.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crds::schema::definitions;
use crds::vm::fields::{Actor, Effect, FIELDS};
use serde_json::Value;

/// What follows this line is written again.
const MARK: &str = "<!-- from here on: cargo xtask crds -->\n";
/// Fields that are Kubernetes' own: their pages are elsewhere.
const FOREIGN: [&str; 4] = [
    "nodeAffinity",
    "podAffinity",
    "podAntiAffinity",
    "conditions",
];

/// The specification of the machines of a replica set: the page of machines shows its fields.
const OF_MACHINES: &str = "spec.template.spec";

/// The pages by file name, as they must be; `folder` holds them as they are.
pub(crate) fn pages(folder: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut pages = BTreeMap::new();
    for definition in definitions() {
        let name = format!("{}.md", definition.spec.names.kind.to_lowercase());
        let text = std::fs::read_to_string(folder.join(&name))?;
        let Some((by_hand, _)) = text.split_once(MARK) else {
            return Err(io::Error::other(format!("{name} has no line {MARK}")));
        };
        let definition = serde_json::to_value(&definition)?;
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut page =
            format!("{by_hand}{MARK}\n| field | type | meaning |\n| --- | --- | --- |\n");
        let mut rules = Vec::new();
        collect("", schema, &mut rules);
        for part in ["spec", "status"] {
            rows(part, &schema["properties"][part], &mut page);
        }
        if definition["spec"]["names"]["kind"] == "VirtualMachine" {
            page += &actors();
        }
        if !rules.is_empty() {
            page += "\nRefused with these words, besides what types and bounds forbid:\n\n";
            for rule in rules {
                page += &format!("- {rule}\n");
            }
        }
        pages.insert(name, page);
    }
    Ok(pages)
}

/// Who acts on which field of a machine.
fn actors() -> String {
    let mut table = "\nWho acts on a field, and when a change of it takes effect:\n\n\
                     | field | by | takes effect | limits |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for field in FIELDS {
        let actor = match field.actor {
            Actor::Controller => "controller",
            Actor::Node => "node",
            Actor::Kubernetes => "Kubernetes",
            Actor::NoneYet => "no program yet",
        };
        let effect = match (field.actor, field.effect) {
            (Actor::NoneYet, _) => "",
            (_, Effect::AtOnce) => "at once",
            (_, Effect::NextStart) => "at the next start",
            (_, Effect::Once) => "once, when the machine is made",
        };
        table += &format!(
            "| `spec.{}` | {actor} | {effect} | {} |\n",
            field.path, field.limit
        );
    }
    table
}

/// One row for each field below `schema`.
fn rows(path: &str, schema: &Value, page: &mut String) {
    let required = schema["required"].as_array();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let needed = required.is_some_and(|all| all.iter().any(|one| one == name));
        let mut meaning = one_line(field["description"].as_str().unwrap_or_default());
        if needed {
            meaning += " Required.";
        }
        if !field["default"].is_null() {
            meaning += &format!(" Default: `{}`.", plain(&field["default"]));
        }
        *page += &format!(
            "| `{path}` | {} | {} |\n",
            type_of(field),
            meaning.replace('|', "\\|")
        );
        if FOREIGN.contains(&name.as_str()) || path == OF_MACHINES {
            continue;
        }
        rows(&path, field, page);
        for (part, mark) in [("items", "[]"), ("additionalProperties", "[*]")] {
            rows(&format!("{path}{mark}"), &field[part], page);
        }
    }
}

fn type_of(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let words: Vec<String> = values
            .iter()
            .map(|value| format!("`{}`", plain(value)))
            .collect();
        return words.join(", ");
    }
    if field["x-kubernetes-int-or-string"] == true {
        let rules = field["x-kubernetes-validations"].to_string();
        let kind = if rules.contains("%$") {
            "number or percentage"
        } else {
            "quantity"
        };
        return kind.to_owned();
    }
    let bounds = |least: &str, most: &str| match (&field[least], &field[most]) {
        (Value::Null, Value::Null) => String::new(),
        (Value::Null, most) => format!(", at most {}", number(most)),
        (least, Value::Null) => format!(", at least {}", number(least)),
        (least, most) => format!(", {} to {}", number(least), number(most)),
    };
    match field["type"].as_str().unwrap_or_default() {
        "string" if field["format"] == "date-time" => "time".to_owned(),
        "string" => format!("string, at most {}", plain(&field["maxLength"])),
        "integer" if field["maximum"].as_f64() == Some(f64::from(u32::MAX)) => "number".to_owned(),
        "integer" => format!("number{}", bounds("minimum", "maximum")),
        "array" => format!("list, at most {}", plain(&field["maxItems"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map, at most {}", plain(&field["maxProperties"]))
        }
        other => other.to_owned(),
    }
}

/// Bounds are written as floating point numbers in schemas.
fn number(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(String::new, |number| format!("{number}"))
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The messages of all rules, each once.
fn collect(path: &str, schema: &Value, rules: &mut Vec<String>) {
    if path == format!(".{OF_MACHINES}") {
        return;
    }
    let own = schema["x-kubernetes-validations"].as_array();
    for rule in own.into_iter().flatten() {
        let message = plain(&rule["message"]);
        if !rules.contains(&message) {
            rules.push(message);
        }
    }
    for field in schema["properties"].as_object().into_iter().flatten() {
        collect(&format!("{path}.{}", field.0), field.1, rules);
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            collect(path, &schema[part], rules);
        }
    }
}
