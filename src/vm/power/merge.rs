//! Merges of layers while the machine runs on them, for snapshots that are deleted.
//!
//! ```text
//! record    emulator                               guest      after a crash of the daemon
//! Merge     copies C to L                          runs       the job is gone on with, or ended
//! Pivot     C is copied; writes to C, or to L      paused     the job is ended, then the emulator is looked at
//! Resume    writes to L; L is in C's place         paused     the guest is resumed
//! ```
//!
//! A layer C below the active one needs no pivot: the emulator lets it go by itself when all of it is copied.
//!
//! Invariant: the emulator says which files it has, and never the outcome of a call. A guest that is paused for
//! a merge is so by its record, and nothing resumes it before the record says which layer it writes to; whichever
//! process finds the record resumes it. No other request waits for a merge: what needs the disk ends it.
//! Failure: [`LayerError::NotMerged`](super::LayerError::NotMerged) leaves both layers, which the repetition merges, or
//! the next step on the disk while the machine is off.

use std::sync::Arc;

use podspec::{ContainerId, VmUid};

use super::snapshots::{lock_name, report};
use crate::disk;
use crate::disk::{Change, SnapshotUid, Step};
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;

mod copy;
mod settle;

impl<P: Platform> Containers<P> {
    /// Deletes a snapshot of a machine that runs; its emulator merges the layers.
    pub(super) async fn delete_in_use(
        &self,
        row: &Container,
        vm: VmUid,
        uid: SnapshotUid,
        holder: ContainerId,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        let _merges = self.parts.locks.lock(&merge_name(vm)).await;
        if let Some(change) = disks.change(vm)
            && let Step::Merge { child } = change.step
        {
            let _claim = disks.claim_merge(vm, change.layer, child)?;
            self.copy_and_take(row, vm, change, &mut progress).await?;
        }
        {
            let _alone = self.parts.locks.lock(&lock_name(vm)).await;
            self.settle_before_merge(row, vm).await?;
            let deleted = disks.delete_snapshot_in_use(vm, uid, holder.clone());
            match deleted.await {
                Err(disk::Error::LayersInUse { .. }) => {}
                deleted => return Ok(deleted?),
            }
            disks.delete_snapshot_of_chain(vm, uid, &holder).await?;
        }
        while let Some(merge) = disks.merge_in_use(vm) {
            // They would be about the job that begins now.
            self.late_requests.outlast(vm).await;
            let _claim = disks.claim_merge(vm, merge.layer, merge.child)?;
            let change = {
                let _alone = self.parts.locks.lock(&lock_name(vm)).await;
                self.end_job(row, vm).await?;
                disks.begin_merge(vm, merge, &row.id).await?
            };
            self.copy_and_take(row, vm, change, &mut progress).await?;
        }
        self.merge_branches(row, vm, &mut progress).await?;
        let deleted = disks.delete_snapshot_in_use(vm, uid, holder);
        Ok(deleted.await?)
    }

    /// Merges layers that the emulator does not have open. One that is being read keeps no other from its turn.
    async fn merge_branches(
        &self,
        row: &Container,
        vm: VmUid,
        progress: &mut (impl FnMut(u8) + Send),
    ) -> Result<()> {
        let disks = &self.parts.disks;
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        while let Some(merge) = disks.merge_in_branch(vm, &refused) {
            match disks.merge_branch(vm, merge, progress).await {
                Ok(merged) => {
                    let _alone = self.parts.locks.lock(&lock_name(vm)).await;
                    self.settle_before_merge(row, vm).await?;
                    disks.end_branch(merged).await?;
                    tracing::info!(%vm, layer = merge.layer, "layers merged beside a running machine");
                }
                Err(error) => {
                    refused.push(merge);
                    outcome = outcome.and(Err(error.into()));
                }
            }
        }
        outcome
    }

    /// Ends the merge of a task that was dropped.
    pub async fn abandon_merge(self: &Arc<Self>, vm: VmUid) {
        let Ok(row) = self.running_vm(vm) else {
            return;
        };
        let disks = &self.parts.disks;
        let is_left = || {
            let change = disks.change(vm);
            change.is_some_and(|change| !change.step.makes_layer())
        };
        {
            let _alone = self.parts.locks.lock(&lock_name(vm)).await;
            // A record of the task may just be on its way to the database.
            disks.settled().await;
            if is_left() {
                report(vm, self.settle_snapshot(&row, vm).await);
            }
        }
        if is_left() {
            self.catch_up_snapshot(&row);
        }
    }

    /// Whether a task of this process carries out a change, which is a merge.
    pub(super) fn is_merging(&self, vm: VmUid, change: Change) -> bool {
        let is_free = || self.parts.locks.try_lock(&merge_name(vm)).is_some();
        !change.step.makes_layer() && !is_free()
    }

    /// Whether a guest that ran is paused for a merge, or about to be: nothing else resumes it.
    pub fn is_paused_for_merge(&self, row: &Container) -> bool {
        let change = row.vm().and_then(|vm| self.parts.disks.change(vm));
        change.is_some_and(|change| {
            matches!(
                change.step,
                Step::Pivot { resumes: true, .. } | Step::Resume
            )
        })
    }

    /// Whether a guest may not run, so that its emulator goes over to another layer.
    pub(in crate::vm) fn is_pivoting(&self, row: &Container) -> bool {
        let change = row.vm().and_then(|vm| self.parts.disks.change(vm));
        change.is_some_and(|change| matches!(change.step, Step::Pivot { .. } | Step::Resume))
    }
}

/// The name of the lock that is held while layers are merged by an emulator.
fn merge_name(vm: VmUid) -> String {
    format!("merge of {vm}")
}

/// The name of the lock that is held while it is found out whether a guest is to be paused or resumed, and that is
/// done.
pub(in crate::vm) fn pause_name(vm: VmUid) -> String {
    format!("pause of {vm}")
}
