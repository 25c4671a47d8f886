//! A part that a guest has unless its pod leaves it out.
//!
//! Invariant: each choice has one spelling, and a default.
//! Failure: a sentence with what is allowed.

use std::str::FromStr;

/// Whether a guest has a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Presence {
    /// Where it is of use.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FromStr for Presence {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err("\"auto\" and \"off\" are allowed"),
        }
    }
}
