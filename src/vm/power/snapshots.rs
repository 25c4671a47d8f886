//! Snapshots of a machine's disk while it runs, and while it is off.
//!
//! ```text
//! record     layer     guest       emulator
//! change N   -         runs        writes to A
//! change N   N         runs        writes to A
//! freezes    N         frozen      writes to A
//! freezes    N         frozen      writes to N    A is on the device
//! freezes    N         runs        writes to N
//! N active   N         runs        writes to N
//! ```
//!
//! Invariant: no other container gets the disk from the switch until it is recorded (`snapshots/switch.rs`). A guest is
//! thawed, or was reset, before a snapshot of it is recorded; the record says that it freezes only with an agent that
//! does not thaw by itself (`quiesce.rs`). What an attempt leaves is ended by `snapshots/settle.rs`.
//! Failure: [`LayerError::NotQuiesced`] and [`LayerError::NotSwitched`] leave no snapshot, [`LayerError::NotThawed`] leaves
//! the change to the repetition; without an emulator the disk's next user ends it.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{Hypervisor, Pause, Power};
use podspec::VmUid;

mod settle;
mod switch;

use super::snapshot_memory::Progress;
use crate::disk::{self, SnapshotUid, TakenSnapshot};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::power::LayerError;
use crate::vm::service::Containers;
pub(super) use settle::report;

impl<P: Platform> Containers<P> {
    /// Takes a snapshot of the disk of a virtual machine; success when it has been taken. `quiesce`: how
    /// long its guest may have its file systems frozen for it, in seconds; 0: it does not freeze them.
    pub async fn take_snapshot(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        quiesce: u32,
    ) -> Result<TakenSnapshot> {
        let taken = self.take_snapshot_once(vm, uid, quiesce, None).await;
        self.end_attempt(vm, taken)
    }

    /// Takes a snapshot of the disk of a virtual machine that runs, with the memory of its guest at that moment; success
    /// when it has been taken. `progress` gets percents.
    pub async fn take_snapshot_with_memory(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        progress: impl Fn(u8) + Send + Sync,
    ) -> Result<TakenSnapshot> {
        let taken = self.take_snapshot_once(vm, uid, 0, Some(&progress)).await;
        self.end_attempt(vm, taken)
    }

    fn end_attempt(
        self: &Arc<Self>,
        vm: VmUid,
        taken: Result<TakenSnapshot>,
    ) -> Result<TakenSnapshot> {
        if taken.is_err()
            && let Ok(row) = self.running_vm(vm)
        {
            // A guest that is still frozen does not wait for the repetition.
            self.catch_up_snapshot(&row);
        }
        taken
    }

    async fn take_snapshot_once(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        quiesce: u32,
        memory: Option<Progress<'_>>,
    ) -> Result<TakenSnapshot> {
        let disks = &self.parts.disks;
        if let Some(taken) = disks.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        let Ok(row) = self.running_vm(vm) else {
            if self.is_starting(vm) {
                return Err(Error::NotRunning(vm));
            }
            if memory.is_some() {
                return Err(LayerError::MemoryOfStopped(vm).into());
            }
            self.take_disk_back(vm).await?;
            return Ok(disks.take_snapshot(vm, uid).await?);
        };
        if row.vm().is_none() {
            return Err(Error::RootNotOfNode(vm));
        }
        self.check_connected("take a snapshot").await?;
        self.make_way_for_change(&row, vm).await?;
        if disks.is_full(vm) {
            // Before it ends the merge that makes room.
            return Err(disk::Error::TooManySnapshots(vm).into());
        }
        let _alone = self.parts.locks.lock(&lock_name(vm)).await;
        self.settle_snapshot(&row, vm).await?;
        if let Some(taken) = disks.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        self.end_forgotten_job(&row, vm).await?;
        let disk = disks.known(vm)?;
        if disk.has_memory() || disk.is_being_saved() {
            let doing = "kept for memory that is being saved";
            return Err(disk::Error::Busy { vm, doing }.into());
        }
        let power = self.parts.hypervisor.power(row.domain()).await;
        let power = power.map_err(hypervisor("look at"))?;
        if quiesce > 0 && matches!(power, Some(Power::Paused(_))) {
            return Err(Error::Paused(vm));
        }
        let limit = Duration::from_secs(quiesce.into());
        let agent = match quiesce {
            0 => None,
            _ => Some(self.freezing_agent(&row, vm, limit).await?),
        };
        let change = match memory {
            None => disks.begin_snapshot(vm, uid, true).await?,
            Some(_) => {
                let paused = power == Some(Power::Paused(Pause::Asked));
                let memory = self.memory_to_save(&row, vm, paused)?;
                disks.begin_snapshot_with_memory(vm, uid, memory).await?
            }
        };
        let claim = disks.claim_memory(vm, uid, change).await?;
        disks.make_layer(vm, change).await?;
        let frozen = match agent {
            None => None,
            Some(agent) => Some(self.freeze(&row, vm, change, agent, limit).await?),
        };
        self.switch(&row, vm, change, frozen, memory).await?;
        drop(claim);
        let taken = disks.snapshot(vm, uid).await?;
        let taken = taken.ok_or(disk::Error::NoSnapshot { vm, snapshot: uid })?;
        let memory_bytes = taken.memory_bytes;
        tracing::info!(%vm, snapshot = %uid, quiesced = taken.quiesced, memory_bytes, "snapshot taken");
        Ok(taken)
    }

    /// Reverts the disk of a virtual machine that is off.
    pub async fn revert(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.revert(vm, uid).await?)
    }

    /// The same; the next start resumes from the memory of the snapshot.
    pub async fn revert_with_memory(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.revert_with_memory(vm, uid).await?)
    }

    /// Deletes a snapshot of the disk of a virtual machine; success when it is gone. A caller that drops the
    /// future must [abandon](Self::abandon_merge) it.
    pub async fn delete_snapshot(
        self: &Arc<Self>,
        vm: VmUid,
        uid: SnapshotUid,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        if disks.get(vm).is_none() {
            // A record that cannot be read is refused.
            return Ok(disks.delete_snapshot(vm, uid, progress).await?);
        }
        match self.take_disk_back(vm).await {
            Ok(()) => Ok(disks.delete_snapshot(vm, uid, progress).await?),
            Err(Error::VmDisk(disk::Error::InUse { vm, holder })) => match self.running_vm(vm) {
                Ok(row) => {
                    let deleted = self.delete_in_use(&row, vm, uid, holder, progress).await;
                    if deleted.is_err() {
                        // A guest that is still paused does not wait for the repetition.
                        self.catch_up_snapshot(&row);
                    }
                    deleted
                }
                Err(_) => Ok(disks.delete_snapshot_in_use(vm, uid, holder).await?),
            },
            Err(error) => Err(error),
        }
    }
}

/// The name of the lock that is held while a snapshot of a machine that runs is taken, or ended.
pub(super) fn lock_name(vm: VmUid) -> String {
    format!("snapshot of {vm}")
}
