//! What is exported: the disk of a machine, one of its snapshots, or one of its backups.
//!
//! Invariant: a machine may have its disk while a snapshot of it is read, and not while the disk is. A backup needs neither
//! the machine nor its disk.
//! Failure: none here.

use std::fmt;

use podspec::VmUid;

use crate::disk::{Disks, SnapshotUid};
use crate::node::task::StoredBackup;

/// What a client requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) enum Requested {
    /// The disk of a machine.
    Disk(VmUid),
    /// A snapshot of it.
    Snapshot(VmUid, SnapshotUid),
    /// A backup of it, in a target.
    Backup(VmUid, StoredBackup),
}

/// A disk, as it is or as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::node) struct Source {
    /// The machine that has it, or had it.
    pub(in crate::node) vm: VmUid,
    /// As of when.
    pub(in crate::node) state: DiskState,
}

/// The state of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::node) enum DiskState {
    /// As it is.
    Present,
    /// As it was at a snapshot.
    Snapshot(SnapshotUid),
    /// As a backup has it.
    Backup(SnapshotUid),
}

impl Requested {
    /// What is to be copied.
    pub(super) const fn source(&self) -> Source {
        match self {
            Self::Disk(vm) => Source {
                vm: *vm,
                state: DiskState::Present,
            },
            Self::Snapshot(vm, uid) => Source {
                vm: *vm,
                state: DiskState::Snapshot(*uid),
            },
            Self::Backup(vm, stored) => Source {
                vm: *vm,
                state: DiskState::Backup(stored.uid),
            },
        }
    }
}

impl Source {
    /// Whether the node has it.
    pub(super) async fn is_there(self, disks: &Disks) -> bool {
        match self.state {
            DiskState::Present => disks.get(self.vm).is_some(),
            DiskState::Snapshot(uid) => matches!(disks.snapshot(self.vm, uid).await, Ok(Some(_))),
            DiskState::Backup(_) => false,
        }
    }

    /// Waits until it is being removed, or is gone. A backup goes without a sign on the node.
    pub(super) async fn removal(self, disks: &Disks) {
        match self.state {
            DiskState::Present => disks.removal(self.vm).await,
            DiskState::Snapshot(uid) => disks.snapshot_removal(self.vm, uid).await,
            DiskState::Backup(_) => std::future::pending().await,
        }
    }

    /// The beginning of the names of its copies, which no other source has.
    pub(super) fn stem(self) -> String {
        match self.state {
            DiskState::Present => self.vm.to_string(),
            DiskState::Snapshot(uid) | DiskState::Backup(uid) => format!("{}-{uid}", self.vm),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            DiskState::Present => write!(f, "the disk of virtual machine {}", self.vm),
            DiskState::Snapshot(uid) => {
                write!(f, "snapshot {uid} of virtual machine {}", self.vm)
            }
            DiskState::Backup(uid) => write!(f, "backup {uid} of virtual machine {}", self.vm),
        }
    }
}
