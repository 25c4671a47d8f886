//! Random values of a schema, within the API server's types and bounds.
//!
//! Invariant: values obey type, bounds, pattern and required fields; rules between fields they know
//! nothing of.
//! Failure: a pattern that cannot be read is an error.

use anyhow::{Context, Result};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;
use serde_json::{Map, Value, json};

/// How often an optional field is there.
const PRESENT: f64 = 0.3;
/// Most items of a list that is not filled up.
const FEW: usize = 2;

/// Random values of `schema`, an OpenAPI schema as a CustomResourceDefinition has it.
pub fn anything(schema: &Value) -> Result<BoxedStrategy<Value>> {
    if let Some(values) = schema["enum"].as_array() {
        return Ok(select(values.clone()).boxed());
    }
    if schema["x-kubernetes-int-or-string"] == true {
        let words = [
            "1",
            "0",
            "-1",
            "1Gi",
            "1e3",
            "100m",
            "1.5Gi",
            "x",
            "",
            "9223372036854775807",
            "1Ei",
        ];
        let mut values: Vec<Value> = words.into_iter().map(Value::from).collect();
        values.extend([
            json!(0),
            json!(-1),
            json!(1),
            json!(i64::MAX),
            json!(1_073_741_824),
        ]);
        return Ok(select(values).boxed());
    }
    Ok(match schema["type"].as_str().unwrap_or_default() {
        "string" => string(schema)?,
        "integer" => {
            let bound = |name: &str, open: i64| {
                let bound = schema[name].as_f64().map(|bound| format!("{bound:.0}"));
                bound.and_then(|text| text.parse().ok()).unwrap_or(open)
            };
            let least = bound("minimum", i64::MIN);
            let most = bound("maximum", i64::MAX);
            prop_oneof![Just(least), Just(most), least..=most]
                .prop_map(Value::from)
                .boxed()
        }
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "array" => {
            let most = usize::try_from(schema["maxItems"].as_u64().unwrap_or_default())?;
            let item = anything(&schema["items"])?;
            let few = prop::collection::vec(item.clone(), 0..=FEW.min(most));
            // Long lists cost; those of small things are enough.
            let full = if most <= 32 { most } else { FEW };
            prop_oneof![19 => few.boxed(), 1 => prop::collection::vec(item, full..=full).boxed()]
                .prop_map(Value::from)
                .boxed()
        }
        "object" if schema["additionalProperties"].is_object() => {
            let value = anything(&schema["additionalProperties"])?;
            let entry = ("[a-z]{1,8}(/[a-z]{1,8})?", value);
            prop::collection::vec(entry, 0..=FEW)
                .prop_map(|entries| Value::Object(entries.into_iter().collect()))
                .boxed()
        }
        _ => object(schema)?,
    })
}

fn string(schema: &Value) -> Result<BoxedStrategy<Value>> {
    let most = usize::try_from(schema["maxLength"].as_u64().unwrap_or_default())?;
    let least = usize::try_from(schema["minLength"].as_u64().unwrap_or_default())?;
    if schema["format"] == "date-time" {
        let times = [
            "2026-01-01T00:00:00Z",
            "1000-01-01T00:00:00Z",
            "2999-12-31T23:59:59.999999999Z",
            "9999-12-31T23:59:59.999999999Z",
            "2026-06-30T12:00:00+14:00",
        ];
        return Ok(select(times.to_vec()).prop_map(Value::from).boxed());
    }
    let fits = move |text: &String| (least..=most).contains(&text.chars().count());
    if let Some(pattern) = schema["pattern"].as_str() {
        let inner = pattern.trim_start_matches('^').trim_end_matches('$');
        let words = string_regex(inner).with_context(|| pattern.to_owned())?;
        return Ok(words
            .prop_filter("bounds", fits)
            .prop_map(Value::from)
            .boxed());
    }
    // Longer ones only take time.
    let longest = "\u{10ffff}".repeat(most.min(512).max(least));
    let shortest = "x".repeat(least);
    let any_text = prop::collection::vec(any::<char>(), least..=most.min(least + 40))
        .prop_map(|chars| chars.into_iter().collect::<String>());
    Ok(
        prop_oneof![8 => any_text.boxed(), 1 => Just(longest).boxed(), 2 => Just(shortest).boxed()]
            .prop_map(Value::from)
            .boxed(),
    )
}

fn object(schema: &Value) -> Result<BoxedStrategy<Value>> {
    let required = schema["required"].as_array();
    let mut fields = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let needed = required.is_some_and(|all| all.iter().any(|one| one == name));
        let name = name.clone();
        let value = anything(field)?;
        let value = if needed {
            value.prop_map(Some).boxed()
        } else {
            prop::option::weighted(PRESENT, value).boxed()
        };
        fields.push(value.prop_map(move |value| value.map(|value| (name.clone(), value))));
    }
    Ok(fields
        .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect::<Map<_, _>>()))
        .boxed())
}
