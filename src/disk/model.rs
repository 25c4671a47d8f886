//! The record of a disk.
//!
//! Invariant: plain values; `digest` is set before the disk is written.
//! Failure: none here.

use podspec::{ContainerId, VmUid};
use serde::{Deserialize, Serialize};

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
}

/// Where a disk is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is being made.
    Making,
    /// It can be booted.
    Ready,
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
