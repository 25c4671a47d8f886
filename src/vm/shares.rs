//! Directories of the node that a guest mounts by virtiofs or by 9p.
//!
//! Invariant: the shares of a container never change after its creation. By virtiofs a process
//! serves each while the machine runs: it has no privilege, sees nothing but its directory, and ends
//! when the emulator disconnects. By 9p the emulator itself serves it, and has an open directory
//! that it cannot leave.
//! Failure: a directory that cannot be opened fails the start of the machine. What a guest loses, or
//! cannot mount, becomes an event of its pod.

mod error;
mod nine_p;
mod plan;
mod process;
mod record;
mod report;
#[cfg(test)]
mod tests;
pub(in crate::vm) mod volumes;
mod watch;

use serde::{Deserialize, Serialize};

use crate::vm::disks::seed::SeedData;
use crate::vm::file_disks::FileDisk;

pub use error::ShareError;
pub(in crate::vm) use nine_p::WireDirectory;
pub(in crate::vm) use plan::{below, volumes_of};
pub(in crate::vm) use process::socket_name;
pub(in crate::vm) use watch::Servers;

/// Options of the guest's mount by 9p, beside the access. Without a cache the guest sees what the
/// node changes at once; older kernels have messages of 8 KiB by default.
pub(in crate::vm) const NINE_P: &str = "trans=virtio,version=9p2000.L,msize=131072";

/// A directory of the node that the guest mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// By which the guest mounts it.
    pub tag: String,
    /// Path on the node.
    pub host_path: String,
    /// Path in the guest.
    pub path: String,
    /// Whether the guest may not write.
    pub read_only: bool,
    /// By which protocol.
    #[serde(default)]
    pub protocol: Protocol,
}

/// By which a guest mounts a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// A process of the node serves it; the only protocol of earlier versions.
    #[default]
    #[serde(rename = "virtiofs")]
    Virtiofs,
    /// The emulator serves it.
    #[serde(rename = "9p")]
    NineP,
}

impl Protocol {
    /// The guest's name of the file system.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Virtiofs => "virtiofs",
            Self::NineP => "9p",
        }
    }
}

/// Who the processes of shares act as, as far as the pod requests it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareUser {
    /// The user; `None`, or root: the node's user for shares.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The group; `None`, or root: the node's group for shares.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Further groups.
    #[serde(default)]
    pub groups: Vec<u32>,
}

/// What a machine gets beside its root disk.
#[derive(Debug, Default)]
pub(in crate::vm) struct Supplies {
    /// What it finds at its first boot.
    pub(in crate::vm) data: Option<SeedData>,
    /// Its shares.
    pub(in crate::vm) shares: Vec<Share>,
    /// Files of volumes that it has as disks.
    pub(in crate::vm) file_disks: Vec<FileDisk>,
}
