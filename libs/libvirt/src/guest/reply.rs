//! The reply of a QEMU guest agent, which its caller reads as one type.
//!
//! Invariant: a reply is read into the fields that its reader names, and only if it has no more bytes
//! than the reader expects: no tree is made of what a guest sends, which could take fifty times its
//! bytes. A list keeps its first elements. A type with fields is read from an object alone.
//! Failure: [`Error::Agent`], with a bounded part of the parser's words.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::readable;
use crate::{Error, Result};

/// Longest reply; libvirt's own protocol carries no longer string.
pub(crate) const LONGEST: usize = 4 << 20;

/// Bytes of a reply that has a number, or a short list.
pub const SHORT_REPLY: usize = 64 << 10;

/// A reply as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentReply(String);

/// A type with fields, which serde would read from a list, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Object<T>(pub T);

/// The first elements of a list; the rest is passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Few<T, const MOST: usize>(pub Vec<T>);

/// What libvirt returns of a command that the agent has executed.
#[derive(Deserialize)]
struct Envelope<T> {
    #[serde(rename = "return")]
    content: T,
}

impl AgentReply {
    pub(crate) const fn new(text: String) -> Self {
        Self(text)
    }

    /// A reply with this content.
    #[cfg(feature = "fake")]
    pub(crate) fn returning(content: &serde_json::Value) -> Self {
        Self(serde_json::json!({ "return": content }).to_string())
    }

    /// Its content, if the reply has at most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Agent`] when it is longer, or something else.
    pub fn read<T: DeserializeOwned>(&self, most: usize) -> Result<T> {
        let length = self.0.len();
        if length > most.min(LONGEST) {
            return Err(Error::Agent {
                reason: format!("its reply of {length} bytes is too long"),
            });
        }
        let read = serde_json::from_str(&self.0);
        let Object(Envelope { content }) = read.map_err(|error| Error::Agent {
            // The parser's words repeat what it met.
            reason: format!("its reply is malformed: {}", readable(&error.to_string())),
        })?;
        Ok(content)
    }

    /// Whether the agent has executed the command, whatever it returned.
    ///
    /// # Errors
    ///
    /// As of [`Self::read`].
    pub fn check(&self) -> Result<()> {
        self.read::<IgnoredAny>(SHORT_REPLY).map(drop)
    }
}

impl<T, const MOST: usize> Default for Few<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Few<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

struct Elements<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Elements<T, MOST> {
    type Value = Few<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T, MOST>, A::Error> {
        let mut few = Vec::new();
        while few.len() < MOST {
            match list.next_element()? {
                Some(element) => few.push(element),
                None => return Ok(Few(few)),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Few(few))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    struct Name {
        name: String,
    }

    fn reply(text: impl Into<String>) -> AgentReply {
        AgentReply::new(text.into())
    }

    #[test]
    fn only_a_reply_with_a_return_value_is_believed() {
        let executed = reply(r#"{"return": {"pid": 7}, "more": [1]}"#);
        assert_eq!(executed.read::<Value>(LONGEST).unwrap(), json!({"pid": 7}));
        let deep = format!("{{\"return\": {}", "[".repeat(100_000));
        for nonsense in ["", "{}", "{\"error\": 1}", "[]", "[1]", "\0", deep.as_str()] {
            let read = reply(nonsense).read::<Value>(LONGEST);
            assert!(matches!(read, Err(Error::Agent { .. })), "{read:?}");
        }
        let text = format!("\"{}\"", "x".repeat(LONGEST / 2));
        let error = reply(text).read::<Value>(LONGEST).unwrap_err().to_string();
        assert!(error.len() < 2000, "{} bytes", error.len());
    }

    #[test]
    fn a_reply_beyond_the_bound_of_its_reader_is_not_parsed() {
        let long = reply(format!(
            "{{\"return\": [{}0]}}",
            "0,".repeat(SHORT_REPLY / 2)
        ));
        let refused = long.check().unwrap_err().to_string();
        assert!(refused.contains("too long"), "{refused}");
        let longest = reply(format!("{{\"return\": \"{}\"}}", "x".repeat(LONGEST)));
        assert!(longest.read::<String>(usize::MAX).is_err());
    }

    #[test]
    fn of_a_list_the_first_elements_are_kept_and_of_an_object_the_named_fields() {
        type Names = Few<Object<Name>, 2>;
        let unknown = format!("{{\"other\": [{}0]}}", "{},".repeat(1000));
        let list = reply(format!(
            "{{\"return\": [{{\"name\": \"a\"}}, {unknown}, {{}}, 7, []]}}"
        ));
        let Few(names) = list.read::<Names>(SHORT_REPLY).unwrap();
        let name = |name: &str| {
            Object(Name {
                name: name.to_owned(),
            })
        };
        assert_eq!(names, [name("a"), name("")]);
        for other in ["[[\"a\"]]", "[7]", "{}", "null"] {
            let read = reply(format!("{{\"return\": {other}}}")).read::<Names>(SHORT_REPLY);
            assert!(matches!(read, Err(Error::Agent { .. })), "{read:?}");
        }
    }
}
