//! The machine type, as QEMU names it.
//!
//! Invariant: only boards of the family q35; text that libvirt's XML carries as it is.
//! Failure: the reason states what is allowed. Whether a node's emulator has the version is the
//! daemon's question.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What the newest board of the emulator is called.
const NEWEST: &str = "q35";

/// What the names of all versions begin with.
const VERSIONED: &str = "pc-q35-";

/// Longest name accepted, in bytes.
const MAX: usize = 64;

/// A machine type: `q35`, or one version of it such as `pc-q35-7.2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MachineType(String);

impl MachineType {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether every emulator has it, under its own newest version.
    pub fn is_newest(&self) -> bool {
        self.0 == NEWEST
    }
}

impl Default for MachineType {
    /// The newest that the emulator has.
    fn default() -> Self {
        Self(NEWEST.to_owned())
    }
}

impl fmt::Display for MachineType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MachineType {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        let is_version = |rest: &str| !rest.is_empty() && rest.bytes().all(is_plain);
        let is_known = text == NEWEST || text.strip_prefix(VERSIONED).is_some_and(is_version);
        if is_known && text.len() <= MAX {
            return Ok(Self(text.to_owned()));
        }
        Err("\"q35\" or a version of it such as \"pc-q35-7.2\" is allowed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q35_and_its_versions_are_machine_types_and_nothing_else_is() {
        for good in ["q35", "pc-q35-7.2", "pc-q35-rhel9.2.0", "pc-q35-jammy"] {
            let read: MachineType = good.parse().unwrap();
            assert_eq!((read.as_str(), read.to_string().as_str()), (good, good));
        }
        let long = format!("pc-q35-{}", "1".repeat(60));
        let odd = [
            "",
            "pc",
            "pc-q35-",
            "pc-i440fx-7.2",
            "pc-q35-7'/>",
            "Q35",
            &long,
        ];
        for bad in odd {
            assert!(bad.parse::<MachineType>().is_err(), "{bad}");
        }
        assert!(MachineType::default().is_newest());
        assert!(!"pc-q35-7.2".parse::<MachineType>().unwrap().is_newest());
    }
}
