//! Files of volumes that are disks of a machine.
//!
//! ```text
//!   annotation ─► plan ─► prepare: make, fill or grow the file ─► open ─► hand-off ─► vmwrapper ─► QEMU
//! ```
//!
//! Invariant: a file has its name only when all of its first content is written, and the daemon
//! never writes over one that has. No link in the volume is followed. QEMU gets open files: its
//! user has no right to the volume's directory.
//! Failure: [`Error`]; what an attempt that was cut short has written is removed with its
//! container, or by the next attempt.

mod error;
mod open;
mod place;
pub(in crate::vm) mod plan;
mod prepare;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use error::Error;
pub(in crate::vm) use open::WireDisk;

use crate::images::Format;
use crate::vm::model::Mount;

/// A file of a volume that is a disk of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDisk {
    /// Path in the pod of the volume's directory.
    pub mount: String,
    /// That directory on the node.
    pub directory: String,
    /// Name of the file in it.
    pub file: String,
    /// How it is arranged.
    pub format: Format,
    /// Least size in bytes that the guest sees.
    pub size: Option<u64>,
    /// Path that the pod gave the disk; `/` is the root disk.
    pub path: String,
    /// Whether the guest may not write.
    pub read_only: bool,
}

impl FileDisk {
    /// Whether the guest boots from it.
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }

    /// Whether its file is in the volume of this mount.
    pub(in crate::vm) fn is_in(&self, mount: &Mount) -> bool {
        // Rows of older versions have paths as they were written.
        podspec::clean_path(&mount.container_path) == podspec::clean_path(&self.mount)
    }

    /// What errors call it.
    fn shown(&self) -> String {
        format!("{}/{}", self.mount, self.file)
    }
}
