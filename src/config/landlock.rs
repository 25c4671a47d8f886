//! Whether emulators are confined by Landlock.
//!
//! Invariant: as written in a file: `true`, `false` or `"require"`; a flag or a variable has the same
//! words as text.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::fmt::{self, Formatter};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The word for [`Landlock::Require`].
const REQUIRE: &str = "require";

/// Whether emulators are confined by Landlock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Landlock {
    /// They are not.
    Off,
    /// Where the kernel has it.
    #[default]
    On,
    /// No machine starts on a node whose kernel has none.
    Require,
}

struct Words;

impl Visitor<'_> for Words {
    type Value = Landlock;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "true, false or \"{REQUIRE}\"")
    }

    fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<Landlock, E> {
        Ok(if is_on { Landlock::On } else { Landlock::Off })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Landlock, E> {
        match text {
            "true" => Ok(Landlock::On),
            "false" => Ok(Landlock::Off),
            REQUIRE => Ok(Landlock::Require),
            _ => Err(E::custom(format!("true, false or {REQUIRE} is allowed"))),
        }
    }
}

impl<'de> Deserialize<'de> for Landlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Words)
    }
}

impl Serialize for Landlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On => serializer.serialize_bool(true),
            Self::Require => serializer.serialize_str(REQUIRE),
        }
    }
}

impl JsonSchema for Landlock {
    fn schema_name() -> Cow<'static, str> {
        "Landlock".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_form_is_read_back_as_it_is_written() {
        for (written, landlock) in [
            (json!(true), Landlock::On),
            (json!(false), Landlock::Off),
            (json!("require"), Landlock::Require),
        ] {
            assert_eq!(serde_json::to_value(landlock).unwrap(), written);
            let read: Landlock = serde_json::from_value(written).unwrap();
            assert_eq!(read, landlock);
        }
        let read = |value: Value| serde_json::from_value::<Landlock>(value);
        // As of a flag.
        assert_eq!(read(json!("false")).unwrap(), Landlock::Off);
        for odd in [json!("yes"), json!(1), json!(null)] {
            let error = read(odd).unwrap_err().to_string();
            assert!(error.contains("true, false or"), "{error}");
        }
    }
}
