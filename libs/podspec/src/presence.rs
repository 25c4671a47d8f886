//! A part that a guest has unless its pod leaves it out.
//!
//! Invariant: each choice has one spelling, and a default.
//! Failure: a sentence with what is allowed.

use std::str::FromStr;

use crate::annotations::{AnnotationError, Annotations, Key};

/// Whether a guest has a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Presence {
    /// Where it is of use.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl Annotations<'_> {
    /// Whether directories of volumes are shared with the guest.
    ///
    /// # Errors
    ///
    /// A value that is not known.
    pub fn shares(self) -> Result<Presence, AnnotationError> {
        Ok(self.get(Key::Shares)?.unwrap_or_default())
    }
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
