//! Settings of shared directories.
//!
//! Invariant: the user is not root.
//! Failure: none here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::AbsolutePath;

/// Directories of volumes, which guests mount by virtiofs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shares {
    /// Program that serves one directory to one machine.
    pub program: AbsolutePath,
    /// User ID that accesses the directories of pods whose `runAsUser` is not set, or 0. Not 0.
    pub uid: u32,
    /// Group ID of pods whose `runAsGroup` is not set, or 0. Not 0.
    pub gid: u32,
    /// Where the file system of the node is mounted. `/`, unless the daemon runs in a container.
    pub host_root: AbsolutePath,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            program: AbsolutePath::usual("/usr/libexec/vmlet/vmlet-virtiofsd"),
            uid: 65_534,
            gid: 65_534,
            host_root: AbsolutePath::usual("/"),
        }
    }
}
