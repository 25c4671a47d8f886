//! JSON whose fields others define, kept as text.
//!
//! Parsed values take up to fifty times the bytes of their text, and such an object may be as large
//! as the API server takes.
//!
//! Invariant: a value holds at most [`RawObject::MOST`] bytes.
//! Failure: a larger object is read, and is [`None`] from then on: its reader says so.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A JSON object, or that there was a larger one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawObject(Option<Box<str>>);

impl RawObject {
    /// Most bytes of its text.
    pub const MOST: usize = 16 * 1024;

    /// Its fields; `None`: it is larger than [`Self::MOST`], or no object.
    #[must_use]
    pub fn fields(&self) -> Option<Map<String, Value>> {
        serde_json::from_str(self.0.as_deref()?).ok()
    }
}

impl Default for RawObject {
    fn default() -> Self {
        Self(Some("{}".into()))
    }
}

impl From<&Value> for RawObject {
    fn from(value: &Value) -> Self {
        let text = value.to_string();
        let is_kept = value.is_object() && text.len() <= Self::MOST;
        Self(is_kept.then(|| text.into_boxed_str()))
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&Value::deserialize(deserializer)?))
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields().unwrap_or_default().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_written_as_it_was_read() {
        let object =
            json!({ "source": { "http": { "url": "https://a" } }, "n": [1, -2, 0.5, null] });
        let raw: RawObject = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(&raw).unwrap(), object);
        assert_eq!(raw.fields().map(Value::Object), Some(object));
        assert_eq!(RawObject::default().fields(), Some(Map::new()));
    }

    #[test]
    fn a_large_object_takes_no_room() {
        let values = vec![0; 700_000];
        let raw: RawObject = serde_json::from_value(json!({ "x": values })).unwrap();
        assert_eq!(raw, RawObject(None));
        assert_eq!(raw.fields(), None);
        let text = "a".repeat(RawObject::MOST - r#"{"x":""}"#.len());
        assert!(RawObject::from(&json!({ "x": text })).fields().is_some());
        assert!(RawObject::from(&json!({ "xy": text })).fields().is_none());
    }
}
