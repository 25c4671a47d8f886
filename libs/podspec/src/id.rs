//! Identifiers of sandboxes and containers.
//!
//! Invariant: an id is 64 lower-case hex digits, of which the last eight are [`TAG`], so that a
//! proxy can distinguish our IDs from another runtime's without any state.
//! Failure: [`IdError`] when a text is not such an id.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Last eight digits of every id: "vmlt" in ASCII.
pub const TAG: &str = "766d6c74";

const LENGTH: usize = 64;

/// What an id names.
pub trait Kind {
    /// The term for messages.
    const NOUN: &'static str;
}

/// Marker types for what ids name.
pub mod kind {
    /// Marks ids of pod sandboxes.
    #[derive(Debug)]
    pub enum Sandbox {}

    /// Marks ids of containers.
    #[derive(Debug)]
    pub enum Container {}
}

impl Kind for kind::Sandbox {
    const NOUN: &'static str = "sandbox";
}

impl Kind for kind::Container {
    const NOUN: &'static str = "container";
}

/// Id of a pod sandbox.
pub type SandboxId = Id<kind::Sandbox>;

/// Id of a container.
pub type ContainerId = Id<kind::Container>;

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {noun} id: 64 hex digits that end in {TAG} are")]
pub struct IdError {
    text: String,
    noun: &'static str,
}

/// An id of kind `K`.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "String", into = "String", bound = "K: Kind")]
pub struct Id<K> {
    digits: String,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Id<K> {
    /// A new random id.
    pub fn generate() -> Self {
        let a = Uuid::new_v4().simple().to_string();
        let b = Uuid::new_v4().simple().to_string();
        let mut digits = a + &b;
        digits.truncate(LENGTH - TAG.len());
        digits.push_str(TAG);
        Self {
            digits,
            kind: PhantomData,
        }
    }

    /// The 64 digits.
    pub fn as_str(&self) -> &str {
        &self.digits
    }

    /// The first 13 digits, as crictl prints them.
    pub fn short(&self) -> &str {
        &self.digits[..13]
    }
}

impl ContainerId {
    /// UUID of the libvirt domain that belongs to this container.
    pub fn domain(&self) -> Uuid {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, self.digits.as_bytes())
    }
}

impl<K: Kind> FromStr for Id<K> {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == LENGTH && text.ends_with(TAG) && text.bytes().all(hex) {
            Ok(Self {
                digits: text.to_owned(),
                kind: PhantomData,
            })
        } else {
            let text = text.chars().take(80).collect();
            Err(IdError {
                text,
                noun: K::NOUN,
            })
        }
    }
}

impl<K: Kind> TryFrom<String> for Id<K> {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl<K> From<Id<K>> for String {
    fn from(id: Id<K>) -> Self {
        id.digits
    }
}

/// An id orders and hashes like its digits, so that maps can be searched by text.
impl<K> std::borrow::Borrow<str> for Id<K> {
    fn borrow(&self) -> &str {
        &self.digits
    }
}

impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.digits)
    }
}

impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.digits)
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self {
            digits: self.digits.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.digits == other.digits
    }
}

impl<K> Eq for Id<K> {}

impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.digits.cmp(&other.digits)
    }
}

impl<K> std::hash::Hash for Id<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.digits.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[test]
    fn a_generated_id_has_the_tag_and_parses_back() {
        let id = SandboxId::generate();
        assert_eq!(id.as_str().len(), 64);
        assert!(id.as_str().ends_with("766d6c74"));
        assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
        assert_ne!(SandboxId::generate(), id);
        assert_eq!(id.short().len(), 13);
    }

    #[test]
    fn foreign_ids_are_refused_with_the_reason() {
        let foreign = "0".repeat(64);
        for text in [
            "",
            "766d6c74",
            &foreign,
            &format!("{}766D6C74", "A".repeat(56)),
        ] {
            let error = text.parse::<ContainerId>().unwrap_err();
            assert!(error.to_string().contains("container id"), "{error}");
        }
    }

    #[test]
    fn ids_keep_their_form_in_json() {
        let id = ContainerId::generate();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("{:?}", id.as_str()));
        assert_eq!(serde_json::from_str::<ContainerId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<ContainerId>("\"short\"").is_err());
    }

    #[test]
    fn the_domain_of_a_container_is_always_the_same() {
        let id = ContainerId::generate();
        assert_eq!(id.domain(), id.clone().domain());
        assert_ne!(id.domain(), ContainerId::generate().domain());
    }
    #[test]
    fn maps_of_ids_are_searched_by_text() {
        let all: Vec<_> = (0..9).map(|_| ContainerId::generate()).collect();
        let one = &all[4];
        let text = all[4].as_str();
        let hashed: HashSet<_> = all.iter().cloned().collect();
        assert_eq!(hashed.get(text), Some(one));
        let ordered: BTreeSet<_> = all.iter().cloned().collect();
        assert_eq!(ordered.get(text), Some(one));
        let id = &all[0];
        let other = &all[1];
        let by_digits = id.as_str().partial_cmp(other.as_str());
        assert_eq!(id.partial_cmp(other), by_digits);
        assert_eq!(format!("{one} {one:?}"), format!("{text} {text}"));
    }
}
