//! The firmware of a machine.
//!
//! Invariant: the words are those of the specification.
//! Failure: none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Firmware that boots a guest.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(transform = crate::schema::without_description)]
pub enum Firmware {
    /// Code in the first sector of the root disk.
    Bios,
    /// A file in the system partition of the root disk.
    Uefi,
}
