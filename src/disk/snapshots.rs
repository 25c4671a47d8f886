//! Takes snapshots of a disk, reverts to them and deletes them.
//!
//! Invariant: layers change only while no machine has the disk, but for the new one that a running emulator is switched
//! to (`snapshots/change.rs`), and those that it merges. A file of a layer that was recorded, and is no more, is removed;
//! one with a number that no layer can have had stays, since the record may be older than it. A record says which layer
//! is the parent of another, and headers do not.
//! Failure: [`Error`]; a repetition goes on where it ended.

use std::sync::Arc;

use podspec::VmUid;

mod branches;
mod change;
mod delete;
mod doubt;
mod files;
mod leftovers;
mod memory;
mod merge;

pub(super) use change::normalise;
pub use files::Files;
pub use merge::MergeInUse;

use super::Disks;
use super::error::{Error, Result};
use super::export::Reservation;
use super::layers::{Layers, Snapshot, SnapshotMemory, SnapshotUid, Step};
use super::model::{Disk, TakenSnapshot};
use crate::files::failed;
use files::bytes_of;

impl Disks {
    /// The snapshots of a disk, in the order in which they were taken. Blocks for a moment.
    pub fn snapshots(&self, disk: &Disk) -> Vec<TakenSnapshot> {
        let layers = disk.layers.iter();
        let all = layers.flat_map(|layers| {
            let all = layers.snapshots().into_iter();
            all.map(|(layer, snapshot)| self.describe(disk.vm, layers, layer, snapshot))
        });
        all.collect()
    }

    /// A snapshot of a disk, if it has that.
    pub async fn snapshot(&self, vm: VmUid, uid: SnapshotUid) -> Result<Option<TakenSnapshot>> {
        let disk = self.known(vm)?;
        let Some(layers) = &disk.layers else {
            return Ok(None);
        };
        let Some((layer, snapshot)) = layers.layer_of(uid) else {
            return Ok(None);
        };
        let file = self.layer_file(vm, layer);
        let looked = tokio::fs::metadata(&file).await;
        looked.map_err(failed("look at", &file))?;
        Ok(Some(self.describe(vm, layers, layer, snapshot)))
    }

    fn describe(
        &self,
        vm: VmUid,
        layers: &Layers,
        layer: u32,
        snapshot: Snapshot,
    ) -> TakenSnapshot {
        let memory = self.memory_sizes(vm, layers, snapshot.uid);
        TakenSnapshot {
            uid: snapshot.uid,
            parent: layers.parent_snapshot(layer),
            virtual_bytes: layers.bytes_of(layer),
            used_bytes: bytes_of(&self.layer_file(vm, layer)).saturating_add(memory.used),
            created_at: snapshot.created_at,
            quiesced: snapshot.quiesced,
            running: snapshot.running,
            memory_bytes: memory.bytes,
        }
    }

    /// Whether a disk has as many layers as it may have.
    pub fn is_full(&self, vm: VmUid) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(Layers::is_full)
    }

    /// Takes a snapshot of a disk that no machine has; success when it has been taken.
    pub async fn take_snapshot(&self, vm: VmUid, uid: SnapshotUid) -> Result<TakenSnapshot> {
        if let Some(taken) = self.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        let _reserved = self.reserve_layers(vm).await?;
        // A change that an earlier process began may have been this one.
        if let Some(taken) = self.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        let change = self.begin_snapshot(vm, uid, false).await?;
        self.make_layer(vm, change).await?;
        self.commit_change(vm, change.layer, false).await?;
        tracing::info!(%vm, snapshot = %uid, "snapshot taken");
        let taken = self.snapshot(vm, uid).await?;
        taken.ok_or(Error::NoSnapshot { vm, snapshot: uid })
    }

    /// Discards what was written to a disk that no machine has since a snapshot was taken, and since any
    /// that is based on it.
    pub async fn revert(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        self.revert_to(vm, uid, None).await
    }

    /// The same; `memory` is what the next start resumes from.
    async fn revert_to(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        memory: Option<SnapshotMemory>,
    ) -> Result<()> {
        let _reserved = self.reserve_layers(vm).await?;
        let disk = self.known(vm)?;
        let layers = disk.layers.as_ref();
        let found = layers.and_then(|layers| layers.layer_of(uid));
        let absent = Error::NoSnapshot { vm, snapshot: uid };
        let to = found.ok_or(absent)?.0;
        let change = self.begin_change(vm, Step::Revert { to }, None).await?;
        self.make_layer(vm, change).await?;
        let placed = match memory {
            None => Ok(None),
            Some(memory) => self.place_memory(vm, uid, memory).await.map(Some),
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(error) => {
                self.abandon_change(vm, change.layer).await?;
                return Err(error);
            }
        };
        let with_memory = placed.is_some();
        self.commit(vm, change.layer, false, placed).await?;
        tracing::info!(%vm, snapshot = %uid, with_memory, "disk reverted");
        Ok(())
    }

    /// Keeps machines from a disk while its layers are changed.
    pub(super) async fn reserve_layers(&self, vm: VmUid) -> Result<Arc<Reservation>> {
        let reserved = self.reserve(vm).await;
        let reserved = reserved.map_err(|refused| match refused {
            Error::Running { vm, holder } => Error::InUse { vm, holder },
            Error::Suspended(vm) if self.get(vm).is_some_and(|disk| disk.has_memory()) => {
                Error::MemoryFits(vm)
            }
            Error::Suspended(vm) => {
                let doing = "kept for memory that is being saved";
                Error::Busy { vm, doing }
            }
            other => other,
        });
        Ok(Arc::new(reserved?))
    }
}

#[cfg(test)]
mod tests;
