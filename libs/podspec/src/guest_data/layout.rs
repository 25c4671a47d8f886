//! The choices that a pod has about its cloud-init disk.
//!
//! Invariant: each choice has one spelling, and a default.
//! Failure: a sentence with what is allowed.

use std::str::FromStr;

/// The files of a volume, and its label, as a data source of cloud-init expects them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// `NoCloud`: files in the top directory.
    #[default]
    NoCloud,
    /// `ConfigDrive`: OpenStack's files in JSON.
    ConfigDrive,
}

/// Version of cloud-init's network configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkVersion {
    /// Version 1, for old guests.
    V1,
    /// Version 2.
    #[default]
    V2,
}

impl FromStr for Layout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text.eq_ignore_ascii_case("nocloud") {
            Ok(Self::NoCloud)
        } else if text.eq_ignore_ascii_case("configdrive") {
            Ok(Self::ConfigDrive)
        } else {
            Err("\"nocloud\" and \"configdrive\" are allowed")
        }
    }
}

impl FromStr for NetworkVersion {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "1" => Ok(Self::V1),
            "2" => Ok(Self::V2),
            _ => Err("\"1\" and \"2\" are allowed"),
        }
    }
}
