//! Whether the guest gets directories of the pod's volumes as shares.
//!
//! Invariant: a share is a directory that is a mount of the pod.
//! Failure: an annotation with another value.

use std::str::FromStr;

use crate::annotations::{AnnotationError, Annotations, Key};

/// Whether directories of volumes are shared with the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All of them, by virtiofs.
    #[default]
    Auto,
    /// None.
    Off,
}

impl Annotations<'_> {
    /// What the pod requests.
    ///
    /// # Errors
    ///
    /// A value that is not known.
    pub fn sharing(self) -> Result<Sharing, AnnotationError> {
        Ok(self.get(Key::Shares)?.unwrap_or_default())
    }
}

impl FromStr for Sharing {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err("\"auto\" and \"off\" are allowed"),
        }
    }
}
