//! The chart's files without Helm: `tests/e2e/tests/api/helm.rs` renders them.
//!
//! Invariant: only files are read.
//! Failure: names the file or the value; `cargo xtask chart` writes the copies.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn of_chart(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

fn parsed(name: &str) -> Value {
    serde_saphyr::from_str(&of_chart(name)).unwrap()
}

#[test]
fn the_copies_are_up_to_date() {
    let wanted = copies().unwrap();
    let found = present().unwrap();
    let names: BTreeSet<_> = found.keys().chain(wanted.keys()).collect();
    let stale: Vec<_> = names
        .into_iter()
        .filter(|name| found.get(*name) != wanted.get(*name))
        .collect();
    assert!(stale.is_empty(), "run `cargo xtask chart`: {stale:?}");
}

#[test]
fn what_the_kustomization_lists_is_found() {
    let text = "resources:\n  - a.yaml\n  - b\n# A comment.\nconfigMapGenerator:\n  - name: c\n    \
                files:\n      - d.toml\nimages:\n  - name: e\n";
    assert_eq!(listed(text, "resources:", "  - "), ["a.yaml", "b"]);
    assert_eq!(listed(text, "configMapGenerator:", "      - "), ["d.toml"]);
    assert!(copies().unwrap().len() > 30);
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = parsed("Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(chart["version"], version);
    assert_eq!(chart["appVersion"], version);
    let tag = format!("newTag: {version}\n");
    assert!(read("kustomization.yaml").unwrap().contains(&tag), "{tag}");
}

/// Paths of values below this one. Maps that users fill are values themselves.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value.as_object().filter(|all| !all.is_empty()) {
        None => drop(found.insert(path.to_owned())),
        Some(all) => {
            for (name, value) in all {
                let path = [path, name].join(".");
                leaves(value, path.trim_start_matches('.'), found);
            }
        }
    }
}

#[test]
fn the_page_lists_all_values_with_their_defaults() {
    let values = parsed("values.yaml");
    let mut wanted = BTreeSet::new();
    leaves(&values, "", &mut wanted);
    let page = workspace::root().join("docs/helm.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, page) = page.split_once("## Values").unwrap();
    let (page, _) = page.split_once("\n## ").unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<_> = rows.map(|row| row.split_once("` | ").unwrap()).collect();
    let found: BTreeSet<_> = rows.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, wanted);
    for (name, rest) in rows {
        let value = &values[name.split('.').next().unwrap()];
        let value = name.split('.').skip(1).fold(value, |of, key| &of[key]);
        let default = match value {
            Value::String(text) if text.is_empty() => "".to_owned(),
            Value::Object(all) if all.is_empty() => "".to_owned(),
            Value::Array(all) if all.is_empty() => "".to_owned(),
            Value::String(text) => format!("`{text}` "),
            other => format!("`{other}` "),
        };
        assert!(rest.starts_with(&format!("{default}| ")), "{name}: {rest}");
    }
}

/// What a schema says of a value; `None`: it refuses it.
fn described<'a>(schema: &'a Value, root: &'a Value, name: &str) -> Option<&'a Value> {
    let property = &schema["properties"][name];
    let property = match property["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#'))?,
        None => property,
    };
    property.is_object().then_some(property)
}

#[test]
fn the_schema_describes_all_values_and_no_other() {
    fn compare(values: &Value, schema: &Value, root: &Value, path: &str) {
        let fields = schema["properties"].as_object();
        let Some(fields) = fields.filter(|_| schema["type"] == "object") else {
            return;
        };
        assert_eq!(schema["additionalProperties"], false, "{path}");
        for name in fields.keys().filter(|name| *name != "global") {
            let below = format!("{path}.{name}");
            // What users write in full has no default.
            if values.as_object().is_some_and(serde_json::Map::is_empty) {
                continue;
            }
            let value = values.get(name).unwrap_or_else(|| panic!("no {below}"));
            let schema = described(schema, root, name).unwrap_or_else(|| panic!("no {below}"));
            compare(value, schema, root, &below);
        }
        for name in values.as_object().unwrap().keys() {
            assert!(described(schema, root, name).is_some(), "{path}.{name}");
        }
    }
    let schema: Value = serde_json::from_str(&of_chart("values.schema.json")).unwrap();
    compare(&parsed("values.yaml"), &schema, &schema, "");
    let platforms = parsed("platforms.yaml");
    let platforms: Vec<_> = platforms.as_object().unwrap().keys().collect();
    let allowed = schema["properties"]["platform"]["enum"].as_array().unwrap();
    let mut allowed: Vec<_> = allowed.iter().filter_map(Value::as_str).collect();
    allowed.sort_unstable();
    assert_eq!(platforms, allowed);
}
