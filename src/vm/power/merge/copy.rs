//! Has the emulator copy a layer to the one below it, and write there in place of the child.
//!
//! Invariant: the record says that the guest is about to be paused before it is paused. The emulator changes to the
//! layer only while a request has paused the guest, not while an error of its disk has.
//! Failure: [`LayerError::NotMerged`] with what the emulator says; both layers stay.

use std::time::Duration;

use libvirt::{BlockCommit, BlockJobEnd, Hypervisor, Pause, Power};
use podspec::VmUid;
use tokio::time::Instant;
use uuid::Uuid;

use super::pause_name;
use crate::disk::Change;
use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::power::snapshots::lock_name;
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
    /// Has the emulator copy a layer to the one below it, and take that in its place.
    pub(super) async fn copy_and_take(
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

    /// Ends the block job of the first disk, if there is one, of whatever process.
    pub(super) async fn end_job(&self, row: &Container, vm: VmUid) -> Result<()> {
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
}

/// What a merge fails with that libvirt does not speak about.
fn without_success() -> libvirt::Error {
    libvirt::Error::Refused {
        call: "merge disk files",
        reason: "the emulator ended the block job without success; its log may say why".to_owned(),
    }
}
