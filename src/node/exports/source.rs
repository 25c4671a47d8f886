//! What is exported: the disk of a machine, or one of its snapshots.
//!
//! Invariant: a machine may have its disk while a snapshot of it is read, and not while the disk is.
//! Failure: none here.

use std::fmt;

use podspec::VmUid;

use crate::disk::{Disks, SnapshotUid};

/// A disk, as it is or as it was at a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::node) struct Source {
    /// The machine that has it.
    pub(in crate::node) vm: VmUid,
    /// The snapshot, if it is one.
    pub(in crate::node) snapshot: Option<SnapshotUid>,
}

impl Source {
    /// Whether the node has it.
    pub(super) async fn is_there(self, disks: &Disks) -> bool {
        match self.snapshot {
            Some(snapshot) => matches!(disks.snapshot(self.vm, snapshot).await, Ok(Some(_))),
            None => disks.get(self.vm).is_some(),
        }
    }

    /// Waits until it is being removed, or is gone.
    pub(super) async fn removal(self, disks: &Disks) {
        match self.snapshot {
            Some(snapshot) => disks.snapshot_removal(self.vm, snapshot).await,
            None => disks.removal(self.vm).await,
        }
    }

    /// The beginning of the names of its copies, which no other source has.
    pub(super) fn stem(self) -> String {
        match self.snapshot {
            Some(snapshot) => format!("{}-{snapshot}", self.vm),
            None => self.vm.to_string(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.snapshot {
            Some(snapshot) => write!(f, "snapshot {snapshot} of virtual machine {}", self.vm),
            None => write!(f, "the disk of virtual machine {}", self.vm),
        }
    }
}
