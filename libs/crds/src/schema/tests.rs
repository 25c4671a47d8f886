//! What must hold for every field of every kind.
//!
//! Invariant: a field that is added without a bound or a description fails here.
//! Failure: the paths of all such fields.

use serde_json::Value;

use super::*;

/// Every schema below `schema`, with its path.
fn walk(path: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    see(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, see);
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            walk(&format!("{path}[]"), &schema[part], see);
        }
    }
}

fn all(mut see: impl FnMut(&str, &Value)) {
    for definition in definitions() {
        let kind = definition.spec.names.kind.clone();
        let text = serde_json::to_value(definition).unwrap();
        let schema = &text["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk(&kind, schema, &mut see);
    }
}

#[test]
fn every_string_list_map_and_number_has_a_bound() {
    let mut unbound = Vec::new();
    all(|path, schema| {
        let bound = match schema["type"].as_str() {
            Some("string") => schema["enum"].is_array() || schema["maxLength"].is_number(),
            Some("array") => schema["maxItems"].is_number(),
            Some("integer") => schema["format"] == "int64" || schema["maximum"].is_number(),
            Some("object") if schema["additionalProperties"].is_object() => {
                schema["maxProperties"].is_number()
            }
            None if schema["x-kubernetes-int-or-string"] == true => schema["maxLength"].is_number(),
            _ => true,
        };
        if !bound {
            unbound.push(path.to_owned());
        }
    });
    assert_eq!(unbound, Vec::<String>::new());
}

#[test]
fn every_field_has_a_description() {
    let mut silent = Vec::new();
    all(|path, schema| {
        let is_field = !path.ends_with("[]") && path.contains('.');
        let is_root = path.split('.').count() == 2;
        if is_field
            && !is_root
            && schema["description"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        {
            silent.push(path.to_owned());
        }
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(!description.starts_with("Auto-generated"), "{path}");
    });
    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn only_formats_that_the_api_server_knows_are_used() {
    all(|path, schema| {
        let format = schema["format"].as_str();
        assert!(
            matches!(format, None | Some("int32" | "int64" | "date-time")),
            "{path}: {format:?}"
        );
        assert!(schema["nullable"].is_null(), "{path}");
    });
}

#[test]
fn lists_of_named_things_are_maps() {
    let mut plain = Vec::new();
    all(|path, schema| {
        let items = &schema["items"];
        let named =
            items["properties"]["type"].is_object() && items["properties"]["status"].is_object();
        if named && schema["x-kubernetes-list-type"] != "map" {
            plain.push(path.to_owned());
        }
    });
    assert_eq!(plain, Vec::<String>::new());
}

#[test]
fn every_kind_has_a_short_name_or_a_short_one_and_is_in_our_category() {
    for definition in definitions() {
        let names = &definition.spec.names;
        let short = names.short_names.as_deref().unwrap_or_default();
        assert!(!short.is_empty() || names.kind == "Vmlet", "{}", names.kind);
        let categories = names.categories.as_deref().unwrap_or_default();
        assert!(
            categories.iter().any(|one| one == "vmlet-all"),
            "{}",
            names.kind
        );
    }
}
