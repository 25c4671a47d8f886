//! The layers of a machine's disk that backups need.
//!
//! Invariant: a snapshot for a backup is taken to its end, also when the task has ended: the guest may have its file
//! systems frozen. A backup that was not completed keeps no layer.
//! Failure: as of a snapshot, and of its deletion; layers that are not merged now are by the next backup.

use std::sync::Arc;

use podspec::VmUid;

use super::snapshots::lock_name;
use crate::disk::{self, SnapshotUid, TakenSnapshot};
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Takes the snapshot of a machine's disk that a backup is made from, as [`Self::take_snapshot`].
    pub async fn take_for_backup(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        quiesce: u32,
    ) -> Result<TakenSnapshot> {
        let this = Arc::clone(self);
        let take = async move {
            let _alone = this.parts.locks.lock(&name(vm)).await;
            this.take_snapshot(vm, uid, quiesce).await
        };
        self.parts.tasks.finish(take).await
    }

    /// Ends what a task that failed, or was dropped, has begun for a backup.
    pub async fn abandon_backup(self: &Arc<Self>, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        let disks = &self.parts.disks;
        {
            let _alone = self.parts.locks.lock(&name(vm)).await;
            // What was begun may just be on its way to the database.
            disks.settled().await;
            // One that was not switched to, or not thawed for: the end of the change may be later than this task.
            if disks.is_being_taken(vm, uid)
                && let Ok(row) = self.running_vm(vm)
            {
                let _change = self.parts.locks.lock(&lock_name(vm)).await;
                self.settle_snapshot(&row, vm).await?;
            }
            if disks.is_snapshot(vm, uid) {
                disks.release_layer(vm, uid).await?;
            }
        }
        self.abandon_merge(vm).await;
        Ok(())
    }

    /// No layer is kept for a backup any more, and all that nothing needs are merged; success when that is so. A caller
    /// that drops the future must [abandon](Self::abandon_merge) it.
    pub async fn drop_backup(self: &Arc<Self>, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        if self.parts.disks.has_layer_for(vm, uid) {
            self.merge(vm, uid).await?;
        }
        self.merge_unneeded(vm).await
    }

    /// Merges the layers that nothing needs any more. A caller that drops the future must
    /// [abandon](Self::abandon_merge) it.
    pub async fn merge_unneeded(self: &Arc<Self>, vm: VmUid) -> Result<()> {
        match self.parts.disks.unmerged(vm) {
            Some(deleted) => self.merge(vm, deleted).await,
            None => Ok(()),
        }
    }

    /// Ends for a machine that is to start meanwhile: a merge without an emulator keeps the disk from it.
    async fn merge(self: &Arc<Self>, vm: VmUid, deleted: SnapshotUid) -> Result<()> {
        let yielding = self.parts.disks.yielding(vm);
        tokio::select! {
            merged = self.delete_snapshot(vm, deleted, |_| {}) => merged,
            () = yielding.asked() => {
                let doing = "needed by the machine, which starts: its layers are merged later";
                Err(disk::Error::Busy { vm, doing }.into())
            }
        }
    }
}

/// The name of the lock that is held while a snapshot for a backup is taken.
fn name(vm: VmUid) -> String {
    format!("backup of {vm}")
}
