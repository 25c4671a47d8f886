//! One part of a pod's request that the guest does not get.
//!
//! Invariant: the text has no control characters and at most [`LONGEST`] characters.
//! Failure: none.

use std::fmt;

/// The longest text of a finding, in characters.
pub(super) const LONGEST: usize = 400;

/// Something that the guest does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::vm) struct Finding {
    /// What, and what to do.
    pub(in crate::vm) text: String,
    /// Whether data written there would be lost.
    pub(in crate::vm) loses_data: bool,
}

impl Finding {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self {
            text: text
                .chars()
                .filter(|c| !c.is_control())
                .take(LONGEST)
                .collect(),
            loses_data: false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
