//! The objects that guest data come from.
//!
//! Invariant: a [`Source`] has a name that an object can have, so that it can be put into a request
//! as it is.
//! Failure: a sentence with what is allowed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What a key of an object may be.
pub(super) const KEY_RULE: &str =
    "a key of 1 to 253 letters, digits, hyphens, dots and underscores is needed";

const RULE: &str =
    "\"configmap/NAME\" or \"secret/NAME\" is needed, with \"/KEY\" for one key of it";
const LONGEST: usize = 253;
/// Directory of the mounts of sources, see [`Source::mount_path`].
const MOUNTS: &str = "/run/vmlet/sources";

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// An object in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Its kind.
    pub kind: SourceKind,
    name: String,
}

/// What is in an object, by key. Debug output shows the number of keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content(pub BTreeMap<String, Vec<u8>>);

/// An object, perhaps with one of its keys.
pub(super) struct Named {
    pub(super) source: Source,
    pub(super) key: Option<String>,
}

/// How a value is encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Encoding {
    #[default]
    Plain,
    Base64,
}

impl Source {
    /// The object of this kind and name.
    ///
    /// # Errors
    ///
    /// A sentence when no object can have that name.
    pub fn new(kind: SourceKind, name: &str) -> Result<Self, &'static str> {
        let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_name = name.len() <= LONGEST
            && name.split('.').all(|part| {
                part.starts_with(end)
                    && part.ends_with(end)
                    && part.chars().all(|c| end(c) || c == '-')
            });
        let name = name.to_owned();
        is_name.then_some(Self { kind, name }).ok_or(RULE)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a mount at this path is there for the daemon.
    pub fn is_mount_path(path: &str) -> bool {
        path.strip_prefix(MOUNTS)
            .is_some_and(|rest| rest.starts_with('/'))
    }

    /// Path in a container at which a volume with the object is mounted for the daemon, such as
    /// `/run/vmlet/sources/secret/NAME`. The guest does not see it.
    pub fn mount_path(&self) -> String {
        format!("{MOUNTS}/{}/{}", self.kind, self.name)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl FromStr for Named {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.trim().splitn(3, '/');
        let kind = parts.next().unwrap_or_default();
        let kind = if kind.eq_ignore_ascii_case("configmap") {
            SourceKind::ConfigMap
        } else if kind.eq_ignore_ascii_case("secret") {
            SourceKind::Secret
        } else {
            return Err(RULE);
        };
        let source = Source::new(kind, parts.next().unwrap_or_default())?;
        let key = parts.next().map(str::to_owned);
        match key {
            Some(key) if !is_key(&key) => Err(KEY_RULE),
            key => Ok(Self { source, key }),
        }
    }
}

impl FromStr for Encoding {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "plain" => Ok(Self::Plain),
            "base64" => Ok(Self::Base64),
            _ => Err("\"plain\" and \"base64\" are allowed"),
        }
    }
}

/// Whether an object can have such a key.
pub(super) fn is_key(key: &str) -> bool {
    (1..=LONGEST).contains(&key.len())
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
}
