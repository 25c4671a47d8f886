//! Takes any JSON in, within bounds.
//!
//! Invariant: a value beyond a bound is passed over without recursion, and the rest is read on, so
//! that whatever follows the object in its list can be read.
//! Failure: [`Limits::exceeded`] says which bound; errors are those of the text itself, which is no
//! JSON.

use std::fmt;

use serde::de::{DeserializeSeed, Error};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Deepest nesting. The JSON reader ends at 128, with the list and the event around the object.
const DEPTH: usize = 120;
/// Most values in an object: over twenty times what any kind of ours, or a large node, has.
const VALUES: usize = 200_000;

/// What is left of the bounds.
#[derive(Debug)]
pub(super) struct Limits {
    values: usize,
    is_too_deep: bool,
    is_too_large: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            values: VALUES,
            is_too_deep: false,
            is_too_large: false,
        }
    }
}

impl Limits {
    pub(super) const fn exceeded(&self) -> Option<&'static str> {
        if self.is_too_deep {
            Some("its fields are nested more than 120 deep")
        } else if self.is_too_large {
            Some("it has more than 200000 values")
        } else {
            None
        }
    }
}

/// Where in the object a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Object,
    Metadata,
    ManagedFields,
    Other,
}

impl Place {
    fn below(self, key: &str) -> Self {
        match (self, key) {
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Metadata, "managedFields") => Self::ManagedFields,
            (Self::ManagedFields, _) => Self::ManagedFields,
            _ => Self::Other,
        }
    }

    /// What clients write, and is never read here.
    fn passes_over(self, key: &str) -> bool {
        self == Self::ManagedFields && matches!(key, "time" | "fieldsV1")
    }
}

/// Reads one value.
pub(super) struct Buffer<'a> {
    limits: &'a mut Limits,
    place: Place,
    depth: usize,
}

impl<'a> Buffer<'a> {
    pub(super) const fn new(limits: &'a mut Limits, place: Place) -> Self {
        Self {
            limits,
            place,
            depth: 0,
        }
    }

    const fn inner(&mut self, place: Place) -> Buffer<'_> {
        Buffer {
            limits: self.limits,
            place,
            depth: self.depth + 1,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Buffer<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let limits = &mut *self.limits;
        limits.is_too_deep |= self.depth > DEPTH;
        limits.is_too_large |= limits.values == 0;
        if self.depth > DEPTH || limits.values == 0 {
            return deserializer
                .deserialize_ignored_any(IgnoredAny)
                .map(|_| Value::Null);
        }
        limits.values -= 1;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Buffer<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let place = self.place;
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(self.inner(place))? {
            // What is passed over takes no room either.
            if !self.limits.is_too_large {
                all.push(item);
            }
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if self.place.passes_over(&key) {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let place = self.place.below(&key);
            let value = fields.next_value_seed(self.inner(place))?;
            if !self.limits.is_too_large || self.depth <= 1 {
                all.insert(key, value);
            }
        }
        Ok(Value::Object(all))
    }
}
