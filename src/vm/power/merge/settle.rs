//! Ends merges as the emulator says: those of a task, of a task that was dropped, and of an earlier process.
//!
//! Invariant: the block job ends before the files of the emulator are looked at, so that what they show stays so.
//! The record names the layer in the place of its child only when the emulator has it there.
//! Failure: the record stays, and with it the pause of the guest, until the next attempt.

use std::sync::Arc;

use libvirt::Hypervisor;
use podspec::VmUid;

use super::merge_name;
use crate::disk;
use crate::disk::{Change, Step};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::power::late::PausedGuest;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Ends what an earlier attempt left.
    pub(super) async fn settle_before_merge(&self, row: &Container, vm: VmUid) -> Result<()> {
        let Some(change) = self.parts.disks.change(vm) else {
            return Ok(());
        };
        if change.step.makes_layer() {
            return self.settle_snapshot(row, vm).await;
        }
        self.settle_left_merge(row, vm, change).await
    }

    /// Ends a merge that this process has found, whose guest may have stood still for long.
    async fn settle_left_merge(&self, row: &Container, vm: VmUid, change: Change) -> Result<()> {
        let was_paused = self.is_paused_for_merge(row);
        self.settle_merge(row, vm, change).await?;
        if was_paused {
            self.set_guest_time(row);
        }
        Ok(())
    }

    /// Ends the merge of an earlier process, or of a task that was dropped.
    pub(in crate::vm::power) async fn settle_interrupted_merge(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
    ) -> Result<()> {
        let doing = "merged by another request";
        let merges = self.parts.locks.try_lock(&merge_name(vm));
        let _merges = merges.ok_or(disk::Error::Busy { vm, doing })?;
        let disks = &self.parts.disks;
        let claim = match change.step {
            Step::Merge { child } => Some(disks.claim_merge(vm, change.layer, child)),
            // No snapshot has layers above the one that the guest writes to, or is about to.
            _ => None,
        };
        if let Some(Err(_)) = claim {
            // A reader has one of the layers: the record stays as it was before, and is right.
            self.end_job(row, vm).await?;
            return Ok(disks.end_merge(vm, change.layer).await?);
        }
        self.settle_left_merge(row, vm, change).await
    }

    /// Ends a block job that no record is about: libvirtd began it for a process that had gone.
    pub(in crate::vm::power) async fn end_forgotten_job(
        &self,
        row: &Container,
        vm: VmUid,
    ) -> Result<()> {
        if self.parts.disks.merge_in_use(vm).is_none() {
            return Ok(());
        }
        self.end_job(row, vm).await
    }

    /// Ends a merge as the emulator says: its job first, so that it stays so. True when the layer is in the place
    /// of its child.
    pub(super) async fn settle_merge(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
    ) -> Result<bool> {
        let disks = &self.parts.disks;
        let mut is_merged = false;
        {
            let _turn = self.disk_lock(vm).await;
            if disks.change(vm) != Some(change) || !disks.is_held_by(vm, &row.id) {
                // The machine ended, and the disk's next user ended the merge, or will.
                return Ok(false);
            }
            if change.step.merged().is_some() {
                self.end_job(row, vm).await?;
                is_merged = self.is_merged(row, vm, change).await?;
            }
            if is_merged {
                disks.commit_merge(vm, change.layer).await?;
            }
        }
        let guest = self.paused_guest(row, vm);
        if self.is_paused_for_merge(row) {
            guest.resume().await?;
        }
        if let Step::Pivot { resumes, .. } = change.step
            && !is_merged
        {
            let late = self.late_requests.note(vm);
            // Not one that shutdown waits for.
            tokio::spawn(guest.outlive(late, resumes));
        }
        disks.end_merge(vm, change.layer).await?;
        Ok(is_merged)
    }

    fn paused_guest(&self, row: &Container, vm: VmUid) -> PausedGuest<P::Hypervisor> {
        PausedGuest {
            driver: Arc::clone(&self.parts.hypervisor),
            disks: Arc::clone(&self.parts.disks),
            table: Arc::clone(&self.parts.table),
            locks: self.parts.locks.clone(),
            id: row.id.clone(),
            vm,
        }
    }

    /// Whether the emulator has a layer in the place of its child, and the device has all of that.
    async fn is_merged(&self, row: &Container, vm: VmUid, change: Change) -> Result<bool> {
        let driver = &self.parts.hypervisor;
        let disks = &self.parts.disks;
        let layer = disks.layer(vm, change.layer);
        let file = driver.root_file(row.domain()).await;
        let file = file.map_err(hypervisor("look at the disk of"))?;
        let is_active = file.ok_or(Error::NotRunning(vm))? == layer;
        if is_active || matches!(change.step, Step::Pivot { .. }) {
            // It has written all to the device before it took the layer.
            return Ok(is_active);
        }
        let child = disks.layer(vm, change.step.merged().unwrap_or_default());
        let files = driver.disk_files(row.domain()).await;
        let files = files.map_err(hypervisor("look at the disk of"))?;
        let files = files.ok_or(Error::NotRunning(vm))?;
        let has_child = files.iter().any(|file| file.path == child);
        let mut merged = files.iter().filter(|file| file.path == layer);
        Ok(!has_child && merged.any(|file| file.is_read_only))
    }
}
