//! Merges of layers that the emulator of a running machine carries out.
//!
//! ```text
//! record                    emulator                          guest
//! L without one, C          reads L below C                   runs
//! Merge of C to L           copies C to L                     runs
//! Pivot of C to L           has copied all; C is active       is paused, or about to be
//! Resume, L in C's place    writes to L                       is paused
//! L                         writes to L                       runs
//! ```
//!
//! Invariant: a snapshot is deleted in the record before its layer changes. A guest is paused only under the record
//! of a pivot, and nothing writes to the layer before the record names it in the place of its child: after a crash
//! without the emulator the child has all.
//! Failure: [`Error`]; a merge that is dropped is repeated from its beginning, by an emulator or without one.

use std::path::PathBuf;

use podspec::{ContainerId, VmUid};

use super::normalise;
use crate::disk::error::{Error, Result};
use crate::disk::layers::{SnapshotUid, Unneeded};
use crate::disk::{Change, ClaimedLayers, Disks};

/// Two layers that an emulator can merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeInUse {
    /// What gets the content of its child.
    pub layer: u32,
    /// The child.
    pub child: u32,
}

impl Disks {
    /// Records that a snapshot of a disk that a machine runs on is deleted, if its layer, or one that waits, can
    /// be merged, by the emulator or beside it; else it stays as it is.
    pub async fn delete_snapshot_of_chain(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        holder: &ContainerId,
    ) -> Result<()> {
        let mut is_deleted = false;
        let possible = self.records.change(&vm, |disk| {
            let Some(layers) = &mut disk.layers else {
                return false;
            };
            let mut after = layers.clone();
            is_deleted = after.delete(uid);
            let waits = after.merge_in_use().is_some() || !after.merges_in_branches().is_empty();
            let is_possible = after.change().is_none() && waits;
            if is_possible {
                *layers = after;
            }
            is_possible
        });
        if possible.await?.is_none() {
            let holder = holder.clone();
            return Err(Error::LayersInUse { vm, holder });
        }
        if is_deleted {
            tracing::info!(%vm, snapshot = %uid, "snapshot deleted");
        }
        faultpoint::point("node.snapshot.deleted");
        // Its memory goes also where its layer stays.
        self.tidy_layers(vm).await
    }

    /// The next merge that the emulator of a machine can carry out.
    pub fn merge_in_use(&self, vm: VmUid) -> Option<MergeInUse> {
        let disk = self.get(vm)?;
        let layers = disk.layers.as_ref()?;
        let Unneeded::Merge { layer, child } = layers.merge_in_use()? else {
            return None;
        };
        Some(MergeInUse { layer, child })
    }

    /// Waits until every record that was changed is in the database, and is seen.
    pub async fn settled(&self) {
        self.records.settled().await;
    }

    /// The file of a layer.
    pub fn layer(&self, vm: VmUid, layer: u32) -> PathBuf {
        self.layer_file(vm, layer)
    }

    /// Keeps readers from two layers that are merged.
    pub fn claim_merge(&self, vm: VmUid, layer: u32, child: u32) -> Result<ClaimedLayers> {
        self.claim_layers(vm, &[layer, child])
    }

    /// Records that the emulator of a container that has the disk merges two layers.
    pub async fn begin_merge(
        &self,
        vm: VmUid,
        merge: MergeInUse,
        holder: &ContainerId,
    ) -> Result<Change> {
        let mut begun = None;
        let recorded = self.records.change(&vm, |disk| {
            if disk.holder.as_ref() != Some(holder) {
                return false;
            }
            let layers = disk.layers.as_mut();
            begun = layers.and_then(|layers| layers.begin_merge(merge.layer, merge.child));
            begun.is_some()
        });
        let recorded = recorded.await?;
        let doing = "changed, or removed";
        let begun = begun.filter(|_| recorded.is_some());
        let begun = begun.ok_or(Error::Busy { vm, doing })?;
        faultpoint::point("node.snapshot.merges");
        Ok(begun)
    }

    /// Records that the guest is about to be paused for the end of a merge. `resumes`: it runs.
    pub async fn begin_pivot(&self, vm: VmUid, layer: u32, resumes: bool) -> Result<()> {
        let recorded = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            layers.is_some_and(|layers| layers.begin_pivot(layer, resumes))
        });
        let doing = "changed, or removed";
        recorded.await?.ok_or(Error::Busy { vm, doing })?;
        faultpoint::point("node.snapshot.pivots");
        Ok(())
    }

    /// Records that a layer has taken the place of its child. What is left of it is removed by
    /// [`Self::end_merge`].
    pub async fn commit_merge(&self, vm: VmUid, layer: u32) -> Result<()> {
        let recorded = self.records.change(&vm, |disk| {
            let Some(layers) = &mut disk.layers else {
                return false;
            };
            let is_done = layers.end_merge(layer);
            disk.virtual_bytes = layers.active_bytes();
            normalise(disk);
            is_done
        });
        let doing = "changed, or removed";
        recorded.await?.ok_or(Error::Busy { vm, doing })?;
        faultpoint::point("node.snapshot.merged");
        Ok(())
    }

    /// Drops the record of a merge, which is complete or has not taken place, and removes the file of a layer that
    /// is gone.
    pub async fn end_merge(&self, vm: VmUid, layer: u32) -> Result<()> {
        let ended = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            let is_ended = layers.is_some_and(|layers| layers.abandon(layer));
            normalise(disk);
            is_ended
        });
        ended.await?;
        faultpoint::point("node.snapshot.ended");
        self.tidy_layers(vm).await
    }
}
