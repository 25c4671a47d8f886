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
//! Failure: [`LayerError::NotMerged`] leaves both layers, which are merged by the repetition, or when the machine is off.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{BlockCommit, BlockJobEnd, Hypervisor, Pause, Power};
use podspec::{ContainerId, VmUid};
use tokio::time::Instant;
use uuid::Uuid;

use super::late::PausedGuest;
use super::snapshots::{lock_name, report};
use crate::disk;
use crate::disk::{Change, SnapshotUid, Step};
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::service::Containers;

/// Time between two looks at a merge.
const LOOK: Duration = Duration::from_millis(500);

/// Time between two looks at the last writes of a guest that is paused.
const GLANCE: Duration = Duration::from_millis(10);

/// How long a guest is paused at most while its last writes are copied.
const PIVOT_LIMIT: Duration = Duration::from_secs(5);

/// Limit of the speed, so that the guest and its neighbours have a part of the disk.
const BYTES_PER_SECOND: u64 = 256 << 20;

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

    /// Ends what an earlier attempt left.
    async fn settle_before_merge(&self, row: &Container, vm: VmUid) -> Result<()> {
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

    /// Ends the merge of an earlier process, or of a task that was dropped.
    pub(super) async fn settle_interrupted_merge(
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
    pub(super) async fn end_forgotten_job(&self, row: &Container, vm: VmUid) -> Result<()> {
        if self.parts.disks.merge_in_use(vm).is_none() {
            return Ok(());
        }
        self.end_job(row, vm).await
    }

    /// Has the emulator copy a layer to the one below it, and take that in its place.
    async fn copy_and_take(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        progress: &mut (impl FnMut(u8) + Send),
    ) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let disks = &self.parts.disks;
        let child = change.step.merged().unwrap_or_default();
        let is_active = disks.layer(vm, child) == disks.file(vm);
        let not_merged = |source| Error::from(LayerError::NotMerged { vm, source });
        let mut outcome = self.begin_job(row, vm, change, is_active).await;
        faultpoint::point("node.snapshot.copies");
        while outcome.is_ok() {
            match driver.root_job(row.domain()).await {
                Ok(Some(job)) if is_active && job.is_ready() => break,
                // One that waits for its end copies the active layer: it is another job.
                Ok(Some(job)) if job.is_ready() => outcome = Err(not_merged(without_success())),
                Ok(Some(job)) => progress(job.percent()),
                Ok(None) if is_active => outcome = Err(not_merged(without_success())),
                Ok(None) => break,
                Err(source) => outcome = Err(not_merged(source)),
            }
            tokio::time::sleep(LOOK).await;
        }
        let _alone = self.parts.locks.lock(&lock_name(vm)).await;
        let begun = Instant::now();
        if outcome.is_ok() && is_active {
            outcome = self.pivot(row, vm, change).await;
        }
        let now = disks.change(vm).filter(|now| {
            let is_merge = !now.step.makes_layer();
            is_merge && now.layer == change.layer
        });
        let change = now.ok_or(Error::NotRunning(vm))?;
        let is_merged = self.settle_merge(row, vm, change).await?;
        if is_merged {
            let paused = is_active.then(|| begun.elapsed());
            tracing::info!(%vm, layer = change.layer, ?paused, "layers of a running machine merged");
            return Ok(());
        }
        outcome?;
        Err(not_merged(without_success()))
    }

    /// Begins to copy a layer to the one below it, unless that has begun, or is done.
    async fn begin_job(
        &self,
        row: &Container,
        vm: VmUid,
        change: Change,
        is_active: bool,
    ) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let disks = &self.parts.disks;
        let not_merged = |source| Error::from(LayerError::NotMerged { vm, source });
        let job = driver.root_job(row.domain()).await.map_err(not_merged)?;
        let child = change.step.merged().unwrap_or_default();
        let top = disks.layer(vm, child);
        let files = driver.disk_files(row.domain()).await.map_err(not_merged)?;
        let files = files.ok_or(Error::NotRunning(vm))?;
        if job.is_some() || !files.iter().any(|file| file.path == top) {
            return Ok(());
        }
        let commit = BlockCommit {
            top,
            base: disks.layer(vm, change.layer),
            is_active,
            bytes_per_second: BYTES_PER_SECOND,
        };
        let begun = driver.commit_root(row.domain(), commit).await;
        begun.map_err(not_merged)
    }

    /// Pauses the guest until its last writes are copied, and lets the emulator write to the layer in place of its
    /// child. Only a look shows whether it does; the guest stays paused until then.
    async fn pivot(&self, row: &Container, vm: VmUid, change: Change) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let domain = row.domain();
        let not_merged = |source| Error::from(LayerError::NotMerged { vm, source });
        let resumes = {
            let _still = self.parts.locks.lock(&pause_name(vm)).await;
            let power = driver.power(domain).await.map_err(not_merged)?;
            let resumes = match power {
                Some(Power::On) => true,
                Some(Power::Paused(Pause::Asked)) => false,
                Some(Power::Paused(_)) => return Err(Error::Paused(vm)),
                Some(Power::Off) | None => return Err(Error::NotRunning(vm)),
            };
            let disks = &self.parts.disks;
            disks.begin_pivot(vm, change.layer, resumes).await?;
            resumes
        };
        if resumes {
            driver.suspend(domain).await.map_err(not_merged)?;
            let power = driver.power(domain).await.map_err(not_merged)?;
            if power != Some(Power::Paused(Pause::Asked)) {
                // Its disk failed just before, and what has space again resumes it.
                return Err(Error::Paused(vm));
            }
        }
        faultpoint::point("node.snapshot.paused");
        let in_time = tokio::time::timeout(PIVOT_LIMIT, self.await_copy(domain)).await;
        let copied = in_time.unwrap_or(Err(libvirt::Error::Deadline {
            call: "copy the last writes",
            deadline: PIVOT_LIMIT,
        }));
        copied.map_err(not_merged)?;
        let pivoted = driver.end_root_job(domain, BlockJobEnd::Pivot).await;
        faultpoint::point("node.snapshot.pivoted");
        pivoted.map_err(not_merged)
    }

    /// Waits until the block job of a guest that is paused has copied all.
    async fn await_copy(&self, domain: Uuid) -> libvirt::Result<()> {
        loop {
            match self.parts.hypervisor.root_job(domain).await? {
                Some(job) if job.is_ready() => return Ok(()),
                Some(_) => tokio::time::sleep(GLANCE).await,
                None => return Err(without_success()),
            }
        }
    }

    /// Ends a merge as the emulator says: its job first, so that it stays so. True when the layer is in the place
    /// of its child.
    async fn settle_merge(&self, row: &Container, vm: VmUid, change: Change) -> Result<bool> {
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

    /// Ends the block job of the first disk, if there is one, of whatever process.
    async fn end_job(&self, row: &Container, vm: VmUid) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let domain = row.domain();
        let not_merged = |source| Error::from(LayerError::NotMerged { vm, source });
        if driver.root_job(domain).await.map_err(not_merged)?.is_none() {
            return Ok(());
        }
        // It may end by itself meanwhile.
        let ended = driver.end_root_job(domain, BlockJobEnd::Cancel).await;
        match driver.root_job(domain).await.map_err(not_merged)? {
            None => Ok(()),
            Some(_) => Err(not_merged(ended.err().unwrap_or_else(|| {
                let call = "end block job";
                let reason = "it goes on".to_owned();
                libvirt::Error::Refused { call, reason }
            }))),
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

/// What a merge fails with that libvirt does not speak about.
fn without_success() -> libvirt::Error {
    libvirt::Error::Refused {
        call: "merge disk files",
        reason: "the emulator ended the block job without success; its log may say why".to_owned(),
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
