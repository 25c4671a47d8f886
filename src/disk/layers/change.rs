//! A change of layers: a new one is made for a snapshot or for a revert, or two are merged.
//!
//! ```text
//! (none) ──begin──► Take, Revert ──commit──► (none)      the new layer is active
//!                        └───────abandon──► (none)      there is no new layer
//! ```
//!
//! Invariant: a disk has one change at a time, and the number of its new layer is used by no other, even when the
//! change is abandoned.
//! Failure: none here; a step that makes no sense changes nothing, and says so.

use serde::{Deserialize, Serialize};

use super::{Layer, Layers, Snapshot};

/// Maximum number of layers: each costs a file that each emulator opens, and a step of each read.
const MOST: usize = 33;

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

impl Step {
    /// Whether a new layer is made for it.
    pub const fn makes_layer(self) -> bool {
        matches!(self, Self::Take { .. } | Self::Revert { .. })
    }

    /// The layer that an emulator copies to the one below it.
    pub const fn merged(self) -> Option<u32> {
        match self {
            Self::Merge { child } | Self::Pivot { child, .. } => Some(child),
            Self::Take { .. } | Self::Revert { .. } | Self::Resume => None,
        }
    }
}

impl Layers {
    /// What is in progress.
    pub const fn change(&self) -> Option<Change> {
        self.change
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
}
