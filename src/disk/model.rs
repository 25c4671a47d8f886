//! The record of a disk.
//!
//! Invariant: plain values; `digest` is set before the disk is written.
//! Failure: none here.

use podspec::{ContainerId, VmUid};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::layers::{self, Layers, SnapshotUid};
use crate::metadata::Record;

/// A disk and where it is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The machine that it belongs to.
    pub vm: VmUid,
    /// `namespace/name` of the machine, for people.
    pub name: String,
    /// Where it is in its life.
    pub phase: Phase,
    /// The image's name as it was requested.
    pub image: String,
    /// `sha256:…` of the image; empty until it is here.
    pub digest: String,
    /// Size that the guest sees, in bytes.
    pub virtual_bytes: u64,
    /// Whether it is based on the image's file.
    pub linked: bool,
    /// The container that has it.
    pub holder: Option<ContainerId>,
    /// Memory that was saved beside it.
    pub memory: Option<Memory>,
    /// Its files, when it has snapshots. Daemons before this one do not know them, nor the phase: they
    /// cannot read the record, and leave the disk alone.
    #[serde(
        default,
        deserialize_with = "layers::sound",
        skip_serializing_if = "Option::is_none"
    )]
    pub layers: Option<Layers>,
    /// The number of the next layer, if it had some: files of lower ones are left over. A daemon before this one
    /// does not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_layer: Option<u32>,
    /// The VM generation ID of its guest; none before the first start, and after a revert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Uuid>,
}

/// Where a disk is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is being made.
    Making,
    /// It can be booted.
    Ready,
    /// It can be booted, and has layers.
    Layered,
    /// It can be booted. An emulator copies, or copied, the image under it into it while its guest ran: its
    /// header is no witness, and it keeps its image.
    Pulled,
    /// It is being removed.
    Deleting,
}

/// The memory of a suspended machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Where it is in its life.
    pub phase: MemoryPhase,
    /// The guest did not run when it was saved, and is not to run when it is back.
    pub paused: bool,
    /// The guest's NICs, in order: it continues with these.
    pub nics: Vec<SavedNic>,
    /// The snapshot that it is of; none: a suspension saved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotUid>,
}

/// Where saved memory is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPhase {
    /// It is being written.
    Writing,
    /// It can be resumed.
    Whole,
    /// The guest may have continued from it: the disk has changed since, and it is never to be used
    /// again.
    Resumed,
}

/// A NIC as the guest knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedNic {
    /// Hardware address.
    pub mac: String,
    /// Addresses without prefix length.
    pub addresses: Vec<String>,
}

impl Phase {
    /// Whether a machine can boot from it.
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Ready | Self::Layered | Self::Pulled)
    }
}

/// A snapshot as it is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenSnapshot {
    /// Its object.
    pub uid: SnapshotUid,
    /// The snapshot that it is based on.
    pub parent: Option<SnapshotUid>,
    /// Size that the guest saw, in bytes.
    pub virtual_bytes: u64,
    /// Bytes that the node has for it alone.
    pub used_bytes: u64,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Whether the guest had frozen its file systems.
    pub quiesced: bool,
    /// Whether the machine ran.
    pub running: bool,
    /// Length of the memory of its guest, in bytes; 0: it has none, as those of older versions.
    #[serde(default)]
    pub memory_bytes: u64,
}

impl Disk {
    /// Whether memory is beside it that a start may resume.
    pub fn has_memory(&self) -> bool {
        let phase = self.memory.as_ref().map(|memory| memory.phase);
        phase == Some(MemoryPhase::Whole)
    }

    /// Whether memory is being written beside it.
    pub fn is_being_saved(&self) -> bool {
        let phase = self.memory.as_ref().map(|memory| memory.phase);
        phase == Some(MemoryPhase::Writing)
    }
}

impl Record for Disk {
    type Key = VmUid;
    const TABLE: &'static str = "vm_disks";

    fn key(&self) -> VmUid {
        self.vm
    }
}
