//! JSON whose fields others define, kept as text.
//!
//! Parsed values take up to fifty times the bytes of their text, and such an object may be as large
//! as the API server takes.
//!
//! Invariant: a value holds at most [`Raw::MOST`] bytes.
//! Failure: a larger object is read, and is [`None`] from then on: its reader says so.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A JSON object that users write.
pub type RawObject = Raw<{ 16 * 1024 }>;

/// A JSON object that the controller writes for itself.
pub type RawRecord = Raw<{ 64 * 1024 }>;

/// A JSON object of at most so many bytes, or that there was a larger one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw<const BYTES: usize>(Option<Box<str>>);

impl<const BYTES: usize> Raw<BYTES> {
    /// Most bytes of its text.
    pub const MOST: usize = BYTES;

    /// Its fields; `None`: it is larger than [`Self::MOST`], or no object.
    #[must_use]
    pub fn fields(&self) -> Option<Map<String, Value>> {
        serde_json::from_str(self.0.as_deref()?).ok()
    }
}

impl<const BYTES: usize> Default for Raw<BYTES> {
    fn default() -> Self {
        Self(Some("{}".into()))
    }
}

impl<const BYTES: usize> From<&Value> for Raw<BYTES> {
    fn from(value: &Value) -> Self {
        let text = value.to_string();
        let is_kept = value.is_object() && text.len() <= Self::MOST;
        Self(is_kept.then(|| text.into_boxed_str()))
    }
}

impl<'de, const BYTES: usize> Deserialize<'de> for Raw<BYTES> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&Value::deserialize(deserializer)?))
    }
}

impl<const BYTES: usize> Serialize for Raw<BYTES> {
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
        assert_eq!(raw, Raw(None));
        assert_eq!(raw.fields(), None);
        let text = "a".repeat(RawObject::MOST - r#"{"x":""}"#.len());
        assert!(RawObject::from(&json!({ "x": text })).fields().is_some());
        assert!(RawObject::from(&json!({ "xy": text })).fields().is_none());
        assert!(RawRecord::from(&json!({ "xy": text })).fields().is_some());
    }
}
