//! The user that libvirt runs the emulator as, and gives its files to.
//!
//! Invariant: numbers only, marked as such, so that libvirt looks no name up.
//! Failure: none.

use serde::Serialize;

use crate::vm::users::Owner;

#[derive(Debug, Serialize)]
pub(super) struct SecLabel {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@model")]
    model: &'static str,
    #[serde(rename = "@relabel")]
    relabel: &'static str,
    label: String,
}

impl SecLabel {
    pub(super) fn new(owner: Owner) -> Self {
        Self {
            kind: "static",
            model: "dac",
            relabel: "yes",
            label: format!("+{}:+{}", owner.uid, owner.gid),
        }
    }
}
