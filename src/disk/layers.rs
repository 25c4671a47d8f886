//! The layers of a disk that has snapshots.
//!
//! ```text
//! root.qcow2 (snapshot A) ◄── layers/1.qcow2 (snapshot B) ◄── layers/2.qcow2 (active)
//!        ▲──────────────────── layers/3.qcow2 (snapshot C)
//! ```
//!
//! Each layer has the differences from its parent; the first has those from the image, or all. The guest
//! writes to the active layer alone. A layer that is not active is read only, for a snapshot or a backup; without
//! one, it is to be merged.
//!
//! Invariant: layer 0 is below all others, the active one has no child and no snapshot, and a number is
//! not used again while a file may have it. A change is recorded before its layer is made: a complete layer, which is
//! empty when it is made, may be active from then on, whether an emulator writes to it already or not.
//! Failure: none here; a step that makes no sense returns `None`.

use std::collections::BTreeMap;

use podspec::VmUid;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

mod backup;
mod change;
mod memory;
mod merge;
mod unneeded;

pub(super) use backup::BackupBase;
use backup::EarlierBackup;
pub use change::{Change, Step};
pub use memory::SnapshotMemory;
pub(super) use unneeded::Unneeded;

/// UID of a VirtualMachineSnapshot object; spelt as every UID.
pub type SnapshotUid = VmUid;

/// The number of the first layer.
const FIRST: u32 = 0;

/// All layers of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    active: u32,
    /// The number of the next layer.
    next: u32,
    all: BTreeMap<u32, Layer>,
    /// What is in progress.
    change: Option<Change>,
    /// The memory of guests, by snapshot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    memories: BTreeMap<SnapshotUid, SnapshotMemory>,
    /// Backups whose layer was kept before the present one, the last one at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<EarlierBackup>,
}

/// One file of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layer {
    parent: Option<u32>,
    /// Size that a guest sees, in bytes.
    virtual_bytes: u64,
    snapshot: Option<Snapshot>,
    /// The backup that has its content, and that the next one is based on. A daemon that does not know it takes the
    /// layer for one that is to be merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backup: Option<BackupBase>,
    /// The snapshot that was deleted, until the layer is merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted: Option<SnapshotUid>,
}

/// A snapshot of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its object.
    pub uid: SnapshotUid,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Whether the guest had frozen its file systems.
    pub quiesced: bool,
    /// Whether the machine ran.
    pub running: bool,
}

impl Layers {
    /// Those of a disk without snapshots.
    pub fn single(virtual_bytes: u64) -> Self {
        let first = Layer {
            parent: None,
            virtual_bytes,
            snapshot: None,
            backup: None,
            deleted: None,
        };
        Self {
            active: FIRST,
            next: FIRST + 1,
            all: BTreeMap::from([(FIRST, first)]),
            change: None,
            memories: BTreeMap::new(),
            earlier: Vec::new(),
        }
    }

    /// The same with numbers that no earlier layer of the disk had, if there were some.
    #[must_use]
    pub fn numbered_from(mut self, next: u32) -> Self {
        self.next = self.next.max(next);
        self
    }

    /// The number of the next layer.
    pub const fn next(&self) -> u32 {
        self.next
    }

    /// Whether they are those of a disk without snapshots.
    pub fn is_single(&self) -> bool {
        self.change.is_none() && self.all.len() == 1 && self.active == FIRST
    }

    /// Whether what was read can be a disk's.
    pub fn is_sound(&self) -> bool {
        let parents = self.all.iter().all(|(number, layer)| match layer.parent {
            // Parents are older, so that no chain is a circle.
            Some(parent) => parent < *number && self.all.contains_key(&parent),
            None => *number == FIRST,
        });
        let active = self.all.get(&self.active);
        parents
            && active.is_some_and(|layer| layer.kept().is_none())
            && self.children(self.active).next().is_none()
            && self.all.keys().all(|number| *number < self.next)
    }

    /// The number of the active layer.
    pub const fn active(&self) -> u32 {
        self.active
    }

    /// The numbers of all layers.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.all.keys().copied()
    }

    /// The layers below one, from the next one to the first.
    pub fn below(&self, layer: u32) -> Vec<u32> {
        let parent = |number: &u32| self.all.get(number)?.parent;
        std::iter::successors(parent(&layer), parent).collect()
    }

    /// The virtual sizes of all layers together, with that of a layer that is being made, and all memory.
    pub fn virtual_bytes(&self) -> u64 {
        let made = self.change.filter(|change| change.step.makes_layer());
        let made = made.map(|change| self.size_of_new(change.step));
        let all = self.all.values().map(|layer| layer.virtual_bytes);
        let all = all.chain(made).chain([self.memory_bytes()]);
        all.fold(0, u64::saturating_add)
    }

    /// The size of the active layer, which is that of the disk.
    pub fn active_bytes(&self) -> u64 {
        self.all.get(&self.active).map_or(0, |l| l.virtual_bytes)
    }

    /// The disk has this size from now on.
    pub fn grow(&mut self, virtual_bytes: u64) {
        if let Some(active) = self.all.get_mut(&self.active) {
            active.virtual_bytes = virtual_bytes;
        }
    }

    /// The snapshots with their layers, in the order in which they were taken.
    pub fn snapshots(&self) -> Vec<(u32, Snapshot)> {
        let all = self.all.iter();
        let mut taken: Vec<_> = all
            .filter_map(|(number, layer)| Some((*number, layer.snapshot?)))
            .collect();
        taken.sort_by_key(|(number, snapshot)| (snapshot.created_at, *number));
        taken
    }

    /// The layer of a snapshot, or of a backup.
    pub fn layer_of(&self, uid: SnapshotUid) -> Option<(u32, Snapshot)> {
        let all = self.all.iter();
        let mut kept = all.filter_map(|(number, layer)| Some((*number, layer.kept()?)));
        kept.find(|(_, snapshot)| snapshot.uid == uid)
    }

    /// The size of the disk when a layer was active last.
    pub fn bytes_of(&self, layer: u32) -> u64 {
        self.all.get(&layer).map_or(0, |layer| layer.virtual_bytes)
    }

    /// The snapshot that the content of a layer is based on.
    pub fn parent_snapshot(&self, layer: u32) -> Option<SnapshotUid> {
        let below = self.below(layer).into_iter();
        let mut snapshots = below.filter_map(|number| self.all.get(&number)?.snapshot);
        snapshots.next().map(|snapshot| snapshot.uid)
    }

    fn children(&self, layer: u32) -> impl Iterator<Item = u32> {
        let all = self.all.iter();
        all.filter(move |(_, one)| one.parent == Some(layer))
            .map(|(number, _)| *number)
    }
}

/// Reads layers that a disk can have; a record with others cannot be read.
pub(super) fn sound<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Layers>, D::Error> {
    let layers = Option::<Layers>::deserialize(source)?;
    match &layers {
        Some(layers) if !layers.is_sound() => Err(D::Error::custom("the layers are no tree")),
        _ => Ok(layers),
    }
}

#[cfg(test)]
mod tests;
