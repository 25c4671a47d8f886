//! Layers that nothing needs: how snapshots are deleted.
//!
//! Invariant: a layer goes only when it is a leaf, or when its only child is merged into it; the active one and those
//! that are kept for a snapshot or a backup stay.
//! Failure: none here; a removal that makes no sense any more changes nothing, and says so.

use super::{Layer, Layers, SnapshotUid};

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

impl Unneeded {
    /// The layers that it changes or removes.
    pub fn layers(self) -> Vec<u32> {
        match self {
            Self::Leaf(layer) => vec![layer],
            Self::Merge { layer, child } => vec![layer, child],
        }
    }
}

impl Layers {
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

    pub(super) fn all_unneeded(&self) -> impl Iterator<Item = Unneeded> {
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
}
