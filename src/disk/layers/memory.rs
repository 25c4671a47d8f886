//! The memory that guests had when snapshots were taken.
//!
//! ```text
//! snapshot in progress      taken
//! not whole ──► whole ──► whole ──► (none): the snapshot is deleted
//!     └──► (none): there is no snapshot
//! ```
//!
//! Invariant: there is memory of snapshots of the disk, all of it whole, and of the one in progress alone. A snapshot that
//! is to have memory, and has none that is whole, is none.
//! Failure: none here; a step that makes no sense changes nothing. A daemon that does not know memory drops it: its
//! snapshots have the disk alone.

use serde::{Deserialize, Serialize};

use super::{Change, Layers, SnapshotUid, Step};
use crate::disk::model::SavedNic;

/// The memory of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMemory {
    /// Length of its files together, in bytes; the most that they may have while they are written.
    pub bytes: u64,
    /// All of it is written, and on the device.
    pub whole: bool,
    /// The guest did not run, and is not to run when it is back.
    pub paused: bool,
    /// The guest's NICs, in order: it continues with these.
    pub nics: Vec<SavedNic>,
}

impl Layers {
    /// The snapshot in progress is to have this memory. False when no snapshot is in progress.
    pub fn begin_memory(&mut self, memory: SnapshotMemory) -> bool {
        let uid = self.in_progress();
        if let Some(uid) = uid {
            self.memories.insert(uid, memory);
        }
        uid.is_some()
    }

    /// The memory of the snapshot in progress, which has this layer; `None`: it is to have none.
    pub fn memory_in_progress(&self, layer: u32) -> Option<&SnapshotMemory> {
        self.change.filter(|change| change.layer == layer)?;
        self.memories.get(&self.in_progress()?)
    }

    /// All memory of the snapshot in progress is on the device. False when another change is in progress.
    pub fn complete_memory(&mut self, layer: u32, bytes: u64) -> bool {
        let is_meant = self.change.is_some_and(|change| change.layer == layer);
        let uid = self.in_progress().filter(|_| is_meant);
        let Some(memory) = uid.and_then(|uid| self.memories.get_mut(&uid)) else {
            return false;
        };
        memory.whole = true;
        memory.bytes = bytes;
        true
    }

    /// The memory of a snapshot that was taken.
    pub fn memory_of(&self, uid: SnapshotUid) -> Option<&SnapshotMemory> {
        self.layer_of(uid)?;
        self.memories.get(&uid)
    }

    /// Whether files may be there for the memory of a snapshot.
    pub fn has_memory_of(&self, uid: SnapshotUid) -> bool {
        self.memories.contains_key(&uid)
    }

    /// The snapshots that files of memory may be there for.
    pub fn memories(&self) -> impl Iterator<Item = SnapshotUid> {
        self.memories.keys().copied()
    }

    /// What all memory takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let all = self.memories.values().map(|memory| memory.bytes);
        all.fold(0, u64::saturating_add)
    }

    /// Whether the snapshot in progress lacks its memory.
    pub(super) fn lacks_memory(&self) -> bool {
        let memory = self.in_progress().and_then(|uid| self.memories.get(&uid));
        memory.is_some_and(|memory| !memory.whole)
    }

    /// Drops the memory of snapshots that are no more.
    pub(super) fn prune_memories(&mut self) {
        let in_progress = self.in_progress();
        let taken = self.all.values().filter_map(|layer| layer.snapshot);
        let taken: Vec<_> = taken.map(|snapshot| snapshot.uid).collect();
        self.memories.retain(|uid, memory| {
            let is_taken = memory.whole && taken.contains(uid);
            is_taken || in_progress == Some(*uid)
        });
    }

    const fn in_progress(&self) -> Option<SnapshotUid> {
        match self.change {
            Some(Change {
                step: Step::Take { snapshot, .. },
                ..
            }) => Some(snapshot.uid),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Snapshot;
    use super::*;

    fn uid(n: u8) -> SnapshotUid {
        format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
            .parse()
            .unwrap()
    }

    fn memory(bytes: u64) -> SnapshotMemory {
        SnapshotMemory {
            bytes,
            whole: false,
            paused: false,
            nics: Vec::new(),
        }
    }

    fn begin(layers: &mut Layers, n: u8) -> u32 {
        let snapshot = Snapshot {
            uid: uid(n),
            created_at: n.into(),
            quiesced: false,
            running: true,
        };
        let freezes = false;
        let change = layers.begin(Step::Take { snapshot, freezes }).unwrap();
        assert!(layers.begin_memory(memory(100)));
        change.layer
    }

    #[test]
    fn memory_lasts_as_long_as_its_snapshot_and_is_counted() {
        let mut layers = Layers::single(1000);
        assert!(
            !layers.begin_memory(memory(1)),
            "no snapshot is in progress"
        );
        let layer = begin(&mut layers, 1);
        assert_eq!(layers.virtual_bytes(), 2100);
        assert!(layers.memory_of(uid(1)).is_none() && !layers.complete_memory(layer + 1, 7));
        assert!(layers.complete_memory(layer, 30) && layers.commit(layer, false));
        assert_eq!(layers.memory_of(uid(1)).unwrap().bytes, 30);
        assert_eq!(layers.virtual_bytes(), 2030);
        let text = serde_json::to_string(&layers).unwrap();
        assert_eq!(serde_json::from_str::<Layers>(&text).unwrap(), layers);

        let dropped = begin(&mut layers, 2);
        assert!(layers.complete_memory(dropped, 30) && layers.abandon(dropped));
        assert!(!layers.has_memory_of(uid(2)) && layers.has_memory_of(uid(1)));
        assert!(layers.delete(uid(1)));
        assert_eq!(layers.virtual_bytes(), 2000);
    }

    #[test]
    fn a_snapshot_without_its_memory_is_none_and_its_layer_stays() {
        let mut layers = Layers::single(1000);
        let layer = begin(&mut layers, 1);
        assert!(layers.commit(layer, false));
        assert!(layers.layer_of(uid(1)).is_none() && !layers.has_memory_of(uid(1)));
        assert_eq!(layers.active(), layer, "a guest may have written to it");
        assert_eq!(
            layers.unmerged(),
            Some(uid(1)),
            "its deletion merges the layer"
        );
    }
}
