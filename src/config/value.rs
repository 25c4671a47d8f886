//! Types of setting values: parsed once, then valid.
//!
//! Invariant: a value's text parses back to the same value, so that `config show` prints a usable
//! file.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::ops::Deref;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use podspec::{Mib, Vcpus, parse_quantity};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// What runs guests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// KVM if a guest runs with it, otherwise TCG.
    #[default]
    Auto,
    /// The processor.
    Kvm,
    /// Software emulation.
    Tcg,
}

/// CPU of guests that run by KVM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CpuModel {
    /// The CPU of the node with all that it can.
    #[default]
    HostPassthrough,
    /// What libvirt makes of the CPU of the node.
    HostModel,
}

/// Scheme of image names without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// With encryption.
    #[default]
    Https,
    /// Without encryption.
    Http,
}

/// A format of images that are converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConvertedFormat {
    /// Of VMware.
    Vmdk,
    /// Of Hyper-V.
    Vhdx,
}

impl JsonSchema for ConvertedFormat {
    fn schema_name() -> Cow<'static, str> {
        "ConvertedFormat".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// How a container whose image has an unknown ID is treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnknownId {
    /// The image is pulled by its name.
    #[default]
    Pull,
    /// The container is refused.
    Refuse,
}

/// How a container whose writable mounts do not reach the guest is treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unsupported {
    /// It is refused.
    #[default]
    Refuse,
    /// It runs without them.
    Warn,
}

/// cgroup driver that the daemon reports to kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// systemd if the node runs it, otherwise cgroupfs.
    #[default]
    Auto,
    /// Slices and scopes.
    Systemd,
    /// Plain directories.
    Cgroupfs,
}

/// Defines a type that is written as a string (`text`) or a number: wrapper, and what it derefs to.
macro_rules! wrapper {
    ($(#[$meta:meta])* $Name:ident($inner:ty) as $kind:ident, $target:ty) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $Name($inner);

        impl Deref for $Name {
            type Target = $target;
            fn deref(&self) -> &$target { &self.0 }
        }

        written!($Name as $kind);
    };
}

/// How a type is written in a file, by its `Display` and `FromStr`.
macro_rules! written {
    ($Name:ident as text) => {
        impl<'de> Deserialize<'de> for $Name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl Serialize for $Name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        schema!($Name, "string");
    };
    ($Name:ident as number) => {
        impl<'de> Deserialize<'de> for $Name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let number = i64::deserialize(deserializer)?;
                number.to_string().parse().map_err(de::Error::custom)
            }
        }

        impl Serialize for $Name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let number: i64 = self.to_string().parse().map_err(ser::Error::custom)?;
                serializer.serialize_i64(number)
            }
        }

        schema!($Name, "integer");
    };
}

macro_rules! schema {
    ($Name:ident, $kind:literal) => {
        impl JsonSchema for $Name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($Name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": $kind })
            }
        }
    };
}

wrapper! {
    /// A path from the root, without `..`.
    AbsolutePath(PathBuf) as text, Path
}
wrapper! {
    /// A path from the root, or none.
    OptionalPath(Option<PathBuf>) as text, Option<PathBuf>
}
wrapper! {
    /// A text that is not empty and has no control characters.
    Text(String) as text, str
}
wrapper! {
    /// A whole number from 1 to 1024.
    Count(usize) as number, usize
}
wrapper! {
    /// A number of virtual CPUs.
    Cpus(Vcpus) as number, Vcpus
}
wrapper! {
    /// An amount of guest memory.
    Memory(Mib) as text, Mib
}

/// A number of bytes, written as a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

written!(Size as text);

impl Size {
    /// A value of a default, which is within the bounds.
    pub(super) const fn usual(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl AbsolutePath {
    /// A value of a default, which is within the bounds.
    pub(super) fn usual(path: &str) -> Self {
        Self(path.into())
    }
}

impl Text {
    /// A value of a default, which is within the bounds.
    pub(super) fn usual(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl Count {
    /// A value of a default, which is within the bounds.
    pub(super) const fn usual(count: usize) -> Self {
        Self(count)
    }
}

impl Cpus {
    /// A value of a default, which is within the bounds.
    pub(super) const fn usual(cpus: Vcpus) -> Self {
        Self(cpus)
    }
}

impl Memory {
    /// A value of a default, which is within the bounds.
    pub(super) const fn usual(memory: Mib) -> Self {
        Self(memory)
    }
}

impl OptionalPath {
    /// A value of a default, which is within the bounds.
    pub(super) const fn none() -> Self {
        Self(None)
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
