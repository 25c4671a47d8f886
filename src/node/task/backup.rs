//! What tasks of backups are to do, and what they report.
//!
//! Invariant: plain values.
//! Failure: none here.

use serde::{Deserialize, Serialize};

use crate::backup::Manifest;
use crate::disk::SnapshotUid;
use crate::images::Digest;

/// A backup that is to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// UID of the VirtualMachineBackup object.
    pub uid: SnapshotUid,
    /// Name of the target.
    pub target: String,
    /// `namespace/name` of the machine.
    pub name: String,
    /// It is based on no other one.
    pub full: bool,
    /// For how long the guest freezes its file systems at most, in seconds; 0: it does not.
    pub quiesce: u32,
    /// After so many increments a full one is written.
    pub most_increments: u32,
}

/// A backup that is in a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBackup {
    /// UID of the VirtualMachineBackup object.
    pub uid: SnapshotUid,
    /// Name of the target.
    pub target: String,
    /// `namespace/name` of a machine of the same namespace.
    pub name: String,
    /// Of its manifest, in hexadecimal digits, where it is known.
    pub sha256: Option<String>,
}

/// A backup that was written or verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneBackup {
    /// UID of the VirtualMachineBackup object.
    pub uid: SnapshotUid,
    /// Why it is a full one; empty: it is none.
    pub full_reason: String,
    /// The one that it is based on.
    pub parent: Option<SnapshotUid>,
    /// Bytes that it has in the target.
    pub stored_bytes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Size that the guest saw, in bytes.
    pub virtual_bytes: u64,
    /// Of its manifest, in hexadecimal digits.
    pub sha256: String,
    /// Whether the guest had frozen its file systems.
    pub quiesced: bool,
    /// Whether the machine ran.
    pub running: bool,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
}

impl StoredBackup {
    /// The digest of its manifest, where it is known.
    pub fn digest(&self) -> Option<Digest> {
        Digest::from_hex(self.sha256.as_deref()?).ok()
    }
}

impl DoneBackup {
    /// As its manifest says, which has this digest.
    pub fn new(manifest: &Manifest, sha256: Digest) -> Self {
        Self {
            uid: manifest.uid,
            full_reason: manifest.full_reason.clone(),
            parent: manifest.parent.map(|parent| parent.uid),
            stored_bytes: manifest.stored_bytes,
            read_bytes: manifest.read_bytes,
            virtual_bytes: manifest.virtual_bytes,
            sha256: sha256.hex(),
            quiesced: manifest.quiesced,
            running: manifest.running,
            created_at: manifest.created_at,
        }
    }
}
