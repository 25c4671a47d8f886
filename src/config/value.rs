//! Types of values: parsed once, then trusted.
//!
//! Invariant: a value's text parses back to the same value, so that `config show` prints a usable file.
//! Failure: a sentence that says what is allowed.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use podspec::{Mib, Vcpus, parse_quantity};
use serde::Deserializer;
use serde::de::{self, Visitor};
use service::telemetry;

use super::schema::Kind;

/// What every type of setting can do.
pub(super) trait Value: Clone + Display + FromStr<Err = String> {
    /// How it is written in a file.
    const KIND: Kind;
}

/// An enumeration of words.
macro_rules! words {
    ($(#[$meta:meta])* $Name:ident { $( $(#[$item_meta:meta])* $Item:ident = $word:literal ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $Name { $( $(#[$item_meta])* $Item, )+ }

        impl FromStr for $Name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $( $word => Ok(Self::$Item), )+
                    _ => Err(format!("one of {} is allowed", [$($word),+].join(", "))),
                }
            }
        }

        impl Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( Self::$Item => $word, )+ })
            }
        }

        impl Value for $Name { const KIND: Kind = Kind::Text; }
    };
}

words! {
    /// What runs guests.
    Accelerator {
        /// KVM where a guest really runs under it, else TCG.
        Auto = "auto",
        /// The processor.
        Kvm = "kvm",
        /// Software emulation.
        Tcg = "tcg",
    }
}

words! {
    /// Scheme of image names without one.
    Protocol {
        /// With encryption.
        Https = "https",
        /// Without.
        Http = "http",
    }
}

words! {
    /// What becomes of a container whose image has an unknown id.
    UnknownId {
        /// The image is pulled by its name.
        Pull = "pull",
        /// The container is refused.
        Refuse = "refuse",
    }
}

words! {
    /// What becomes of a container whose writable mounts do not reach the guest.
    Unsupported {
        /// It is refused.
        Refuse = "refuse",
        /// It runs without them.
        Warn = "warn",
    }
}

words! {
    /// cgroup driver that kubelet is told.
    CgroupDriver {
        /// systemd where it runs, else cgroupfs.
        Auto = "auto",
        /// Slices and scopes.
        Systemd = "systemd",
        /// Plain directories.
        Cgroupfs = "cgroupfs",
    }
}

/// Defines a text-like type: wrapper, what it derefs to, and its kind.
macro_rules! wrapper {
    ($(#[$meta:meta])* $Name:ident($inner:ty) as $kind:ident, $target:ty) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $Name($inner);

        impl Deref for $Name {
            type Target = $target;
            fn deref(&self) -> &$target { &self.0 }
        }

        impl Value for $Name { const KIND: Kind = Kind::$kind; }
    };
}

wrapper! {
    /// A path from the root, without `..`.
    AbsolutePath(PathBuf) as Text, Path
}
wrapper! {
    /// A path from the root, or none.
    OptionalPath(Option<PathBuf>) as Text, Option<PathBuf>
}
wrapper! {
    /// A text that is not empty and has no control characters.
    Text(String) as Text, str
}
wrapper! {
    /// A whole number from 1 to 1024.
    Count(usize) as Number, usize
}
wrapper! {
    /// A number of virtual CPUs.
    Cpus(Vcpus) as Number, Vcpus
}
wrapper! {
    /// An amount of guest memory.
    Memory(Mib) as Text, Mib
}

/// A number of bytes, written as a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

/// A time limit of 1 second to 1 day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seconds(NonZeroU32);

impl Value for telemetry::Filter {
    const KIND: Kind = Kind::Text;
}

impl Value for telemetry::Format {
    const KIND: Kind = Kind::Text;
}

impl Value for Size {
    const KIND: Kind = Kind::Text;
}

impl Value for Seconds {
    const KIND: Kind = Kind::Number;
}

impl Size {
    /// The number.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl Seconds {
    /// As a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0.get() as u64)
    }
}

impl FromStr for AbsolutePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        let climbs = path.components().any(|c| c == Component::ParentDir);
        if path.is_absolute() && !climbs && !text.contains(char::is_control) {
            Ok(Self(path.into()))
        } else {
            Err("an absolute path without .. is allowed".to_owned())
        }
    }
}

impl FromStr for OptionalPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self(None)),
            _ => text.parse().map(|AbsolutePath(path)| Self(Some(path))),
        }
    }
}

impl FromStr for Text {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.contains(char::is_control) {
            return Err("a text without control characters is allowed".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|n| (1..=1024).contains(n));
        let refuse = || "a whole number from 1 to 1024 is allowed".to_owned();
        count.map(Self).ok_or_else(refuse)
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse_quantity(text) {
            Ok(0) => Err("a size of at least 1 byte is allowed".to_owned()),
            Ok(bytes) => Ok(Self(bytes)),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.parse().ok();
        let seconds = seconds.filter(|n: &NonZeroU32| n.get() <= 86_400);
        let refuse = || "a whole number of seconds from 1 to 86400 is allowed".to_owned();
        seconds.map(Self).ok_or_else(refuse)
    }
}

impl Display for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Display for OptionalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |path| path.display().fmt(f))
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.get().fmt(f)
    }
}

impl Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_binary(f, self.0.bytes())
    }
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_binary(f, self.0)
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// With the largest suffix that keeps it exact.
fn write_binary(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    let suffixes = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let exact = suffixes
        .iter()
        .find(|(shift, _)| bytes.is_multiple_of(1 << shift));
    match exact {
        Some((shift, suffix)) => write!(f, "{}{suffix}", bytes >> shift),
        None => write!(f, "{bytes}"),
    }
}

/// Reads a string or a number of a file, whichever the type is written as.
pub(super) fn scalar<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Value,
{
    struct Scalar<T>(PhantomData<T>);

    impl<T: Value> Visitor<'_> for Scalar<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(match T::KIND {
                Kind::Number => "a whole number",
                Kind::Text | Kind::Tables => "a string",
            })
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            if T::KIND != Kind::Text {
                return Err(E::invalid_type(de::Unexpected::Str(text), &self));
            }
            text.parse().map_err(E::custom)
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
            if T::KIND != Kind::Number {
                return Err(E::invalid_type(de::Unexpected::Signed(number), &self));
            }
            number.to_string().parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_any(Scalar(PhantomData)).map(Some)
}
