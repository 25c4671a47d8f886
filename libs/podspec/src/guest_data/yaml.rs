//! YAML as cloud-init reads it.
//!
//! Invariant: aliases cannot blow a text up; numbers with a leading zero are octal, and the last one of
//! equal keys counts, as cloud-init's parser has it.
//! Failure: a sentence with the place, which repeats nothing of the text.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, Error, NonFiniteFloatPolicy};

/// Most values that the aliases of a file may refer to, together.
const MAX_REPLAYED: usize = 10_000;

/// The map that a text is; empty text is an empty map.
pub(super) fn map(text: &str) -> Result<Map<String, Value>, String> {
    match value(text)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err("a YAML map is needed".to_owned()),
    }
}

/// The value that a text is, where equal keys are a mistake: text that cloud-init does not read.
pub(crate) fn strict(text: &str) -> Result<Value, String> {
    parse(text, DuplicateKeyPolicy::Error)
}

/// The value that a text is to cloud-init.
pub(crate) fn value(text: &str) -> Result<Value, String> {
    parse(text, DuplicateKeyPolicy::LastWins)
}

fn parse(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<Value, String> {
    let mut options = options();
    options.duplicate_keys = duplicate_keys;
    let parsed = serde_saphyr::from_str_with_options(text, options);
    parsed.map_err(|error| {
        let place = place(&error);
        match &error {
            Error::BinaryNotUtf8 { .. } => format!(
                "{place}the value of !!binary is no text, and cannot be merged: give the user data as \
                 one key of a source, which is passed on as it is"
            ),
            _ => format!("{place}this is no YAML"),
        }
    })
}

/// Refuses a text that is no map. It is passed on as it is, so that its values do not matter. Whether
/// there is anything in it.
pub(super) fn check_map(text: &str) -> Result<bool, String> {
    let mut options = options();
    options.ignore_binary_tag_for_string = true;
    options.non_finite_float_policy = NonFiniteFloatPolicy::AsString;
    let parsed = serde_saphyr::from_str_with_options(text, options);
    match parsed {
        Ok(Shape::Map { is_empty }) => Ok(!is_empty),
        Ok(Shape::Other) => Err("a YAML map is needed".to_owned()),
        Err(error) => Err(format!("{}this is no YAML", place(&error))),
    }
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
        },
    }
}

/// Where an error is, as the beginning of a sentence.
fn place(error: &Error) -> String {
    let place = error.location();
    place.map_or_else(String::new, |place| {
        format!("line {}, column {}: ", place.line(), place.column())
    })
}

/// Whether a text is a map; nothing is an empty one.
enum Shape {
    Map { is_empty: bool },
    Other,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut is_empty = true;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            is_empty = false;
        }
        Ok(Shape::Map { is_empty })
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Map { is_empty: true })
    }

    fn visit_none<E>(self) -> Result<Shape, E> {
        Ok(Shape::Map { is_empty: true })
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Shape::Other)
    }
}

/// Merges as the predecessor did: maps recurse, lists are joined, anything else is what comes
/// later.
pub(super) fn merge(base: &mut Map<String, Value>, later: Map<String, Value>) {
    for (key, value) in later {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(later)) => merge(base, later),
            (Some(Value::Array(base)), Value::Array(later)) => base.extend(later),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}
