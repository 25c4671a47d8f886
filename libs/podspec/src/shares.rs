//! How directories of volumes reach a guest.
//!
//! Invariant: each choice has one spelling, and a default.
//! Failure: a sentence with what is allowed.

use std::str::FromStr;

use crate::annotations::{AnnotationError, Annotations, Key};

/// How directories of volumes reach a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shares {
    /// By virtiofs.
    #[default]
    Auto,
    /// By 9p, for guests and nodes without virtiofs.
    NineP,
    /// As copies of what is read-only.
    Off,
}

impl Annotations<'_> {
    /// How directories of volumes reach the guest.
    ///
    /// # Errors
    ///
    /// A value that is not known.
    pub fn shares(self) -> Result<Shares, AnnotationError> {
        Ok(self.get(Key::Shares)?.unwrap_or_default())
    }
}

impl FromStr for Shares {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "auto" => Ok(Self::Auto),
            "9p" => Ok(Self::NineP),
            "off" => Ok(Self::Off),
            _ => Err("\"auto\", \"9p\" and \"off\" are allowed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_pod_chooses_how_directories_reach_its_guest() {
        let of = |value: &str| {
            let given = BTreeMap::from([(crate::names::SHARES.to_owned(), value.to_owned())]);
            Annotations::new(&given).shares()
        };
        assert_eq!(
            Annotations::new(&BTreeMap::new()).shares(),
            Ok(Shares::Auto)
        );
        assert_eq!(of("auto"), Ok(Shares::Auto));
        assert_eq!(of("9p"), Ok(Shares::NineP));
        assert_eq!(of("off"), Ok(Shares::Off));
        let refused = of("9P").unwrap_err().to_string();
        assert!(refused.contains("\"9p\""), "{refused}");
    }
}
