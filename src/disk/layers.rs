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
mod memory;
mod merge;

pub(super) use backup::BackupBase;
use backup::EarlierBackup;
pub use memory::SnapshotMemory;

/// UID of a VirtualMachineSnapshot object; spelt as every UID.
pub type SnapshotUid = VmUid;

/// The number of the first layer.
const FIRST: u32 = 0;

/// Maximum number of layers: each costs a file that each emulator opens, and a step of each read.
const MOST: usize = 33;

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

/// What is done with a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its number.
    pub layer: u32,
    /// What is done.
    pub step: Step,
}

/// A step that is in progress. A daemon that does not know it cannot read the record, and leaves the disk alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The layer is made, and the active one is only read from then on.
    Take {
        /// For this snapshot.
        snapshot: Snapshot,
        /// The guest may have been requested to freeze its file systems.
        freezes: bool,
    },
    /// The layer is made, and the active one is discarded.
    Revert {
        /// The layer that has the content for the disk.
        to: u32,
    },
    /// An emulator copies its only child to the layer, and reads from both.
    Merge {
        /// The child.
        child: u32,
    },
    /// The same, and the guest does not run, so that the emulator may write to the layer in place of its child,
    /// which is the active one.
    Pivot {
        /// The child.
        child: u32,
        /// Whether the guest runs again afterwards.
        resumes: bool,
    },
    /// The layer has taken the place of its child, and the guest is to run again.
    Resume,
}

/// What is to be done with a layer that no snapshot needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unneeded {
    /// No other layer has it as its parent.
    Leaf(u32),
    /// Its only child is to be merged into it.
    Merge {
        /// The layer.
        layer: u32,
        /// The child.
        child: u32,
    },
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

    /// What is in progress.
    pub const fn change(&self) -> Option<Change> {
        self.change
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

    /// The size of the layer that is being made.
    pub fn size_of_new(&self, step: Step) -> u64 {
        let parent = self.parent_of_new(step);
        self.all.get(&parent).map_or(0, |layer| layer.virtual_bytes)
    }

    /// The layer below the one that is being made.
    pub const fn parent_of_new(&self, step: Step) -> u32 {
        match step {
            Step::Revert { to } => to,
            _ => self.active,
        }
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

    /// Begins to make a layer; `None` while another change is in progress, or with too many layers.
    pub fn begin(&mut self, step: Step) -> Option<Change> {
        let parent = self.parent_of_new(step);
        let possible = self.change.is_none() && self.all.contains_key(&parent);
        let next = self.next.checked_add(1)?;
        if !possible || self.is_full() || !step.makes_layer() {
            return None;
        }
        let change = Change {
            layer: self.next,
            step,
        };
        self.next = next;
        self.change = Some(change);
        Some(change)
    }

    /// Whether there are as many layers as there may be.
    pub fn is_full(&self) -> bool {
        self.all.len() >= MOST
    }

    /// The guest of a snapshot in progress is requested to freeze its file systems, or no more. True if
    /// this change is in progress.
    pub fn set_freezes(&mut self, layer: u32, is_requested: bool) -> bool {
        match &mut self.change {
            Some(Change {
                layer: number,
                step: Step::Take { freezes, .. },
            }) if *number == layer => {
                *freezes = is_requested;
                true
            }
            _ => false,
        }
    }

    /// The layer of the change in progress is active from now on. `quiesced`: the guest had frozen its
    /// file systems. Without the memory that it is to have there is no snapshot. False when another change is in
    /// progress.
    pub fn commit(&mut self, layer: u32, quiesced: bool) -> bool {
        let is_meant = |change: &Change| change.layer == layer && change.step.makes_layer();
        let Some(change) = self.change.filter(is_meant) else {
            return false;
        };
        let parent = self.parent_of_new(change.step);
        let lacks_memory = self.lacks_memory();
        let new = Layer {
            parent: Some(parent),
            virtual_bytes: self.size_of_new(change.step),
            snapshot: None,
            backup: None,
            deleted: None,
        };
        match change.step {
            Step::Take { snapshot, .. } => {
                if let Some(active) = self.all.get_mut(&self.active) {
                    active.snapshot = Some(Snapshot {
                        quiesced,
                        ..snapshot
                    });
                    active.deleted = None;
                    if lacks_memory {
                        active.release();
                    }
                }
            }
            _ => {
                self.all.remove(&self.active);
            }
        }
        self.all.insert(layer, new);
        self.active = layer;
        self.change = None;
        self.prune_memories();
        true
    }

    /// The change in progress has not taken place. False when another one is.
    pub fn abandon(&mut self, layer: u32) -> bool {
        let abandoned = self.change.is_some_and(|change| change.layer == layer);
        self.change = self.change.filter(|_| !abandoned);
        self.prune_memories();
        abandoned
    }

    /// Deletes a snapshot; its layer stays until [`Self::unneeded`] ones are gone. False when there is
    /// none.
    pub fn delete(&mut self, uid: SnapshotUid) -> bool {
        let is_meant = |layer: &&mut Layer| layer.kept().is_some_and(|s| s.uid == uid);
        let found = self.all.values_mut().find(is_meant);
        let is_found = found.is_some();
        if let Some(layer) = found {
            layer.release();
        }
        self.prune_memories();
        is_found
    }

    /// A layer that no snapshot needs, and that can be removed now: not one with several children.
    pub fn unneeded(&self) -> Option<Unneeded> {
        // The oldest first: what a merge copies is not copied again by the next one.
        self.all_unneeded().next()
    }

    /// An [unneeded](Self::unneeded) layer that is in no chain of another one, and is none of `except`.
    pub fn unneeded_leaf(&self, except: &[Unneeded]) -> Option<Unneeded> {
        let mut all = self.all_unneeded();
        all.find(|one| matches!(one, Unneeded::Leaf(_)) && !except.contains(one))
    }

    /// The merges that wait.
    pub fn merges(&self) -> Vec<Unneeded> {
        let all = self.all_unneeded();
        all.filter(|unneeded| matches!(unneeded, Unneeded::Merge { .. }))
            .collect()
    }

    /// Whether the layer of a deleted snapshot waits for its merge.
    pub fn is_unmerged(&self, uid: SnapshotUid) -> bool {
        let waits = |unneeded: &Unneeded| match unneeded {
            Unneeded::Merge { layer, .. } => {
                Some(uid) == self.all.get(layer).and_then(|l| l.deleted)
            }
            Unneeded::Leaf(_) => false,
        };
        self.all_unneeded().any(|unneeded| waits(&unneeded))
    }

    fn all_unneeded(&self) -> impl Iterator<Item = Unneeded> {
        self.all.iter().filter_map(|(&layer, one)| {
            if layer == self.active || one.kept().is_some() {
                return None;
            }
            let mut children = self.children(layer);
            match (children.next(), children.next()) {
                (None, _) => Some(Unneeded::Leaf(layer)),
                (Some(child), None) => Some(Unneeded::Merge { layer, child }),
                _ => None,
            }
        })
    }

    /// What is unneeded is gone: a leaf, or a layer that has the content of its child from now on, and takes
    /// its place. False when that is not so any more.
    pub fn remove(&mut self, unneeded: Unneeded) -> bool {
        if self.change.is_some() || !self.all_unneeded().any(|one| one == unneeded) {
            return false;
        }
        if let Unneeded::Leaf(layer) = unneeded {
            return self.all.remove(&layer).is_some();
        }
        let Unneeded::Merge { layer, child } = unneeded else {
            return false;
        };
        let Some(merged) = self.all.remove(&child) else {
            return false;
        };
        for one in self.all.values_mut() {
            if one.parent == Some(child) {
                one.parent = Some(layer);
            }
        }
        if let Some(one) = self.all.get_mut(&layer) {
            one.snapshot = merged.snapshot;
            one.backup = merged.backup;
            one.deleted = merged.deleted;
            one.virtual_bytes = merged.virtual_bytes;
        }
        if self.active == child {
            self.active = layer;
        }
        true
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
