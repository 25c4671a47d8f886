//! Promotion of a disk while its machine runs: the emulator copies the image into it.
//!
//! ```text
//! record    emulator                                     after a crash of the daemon, or of the emulator
//! ready     -                                            -
//! pulled    copies; has the image open                   the repetition goes on; the next start finds an overlay
//! pulled    has copied all; has the image open no more   the repetition, or the next start, looks for the proof
//! ready     has all of it on the device                  the disk needs no image
//! ```
//!
//! Invariant: the record comes before the job, and ends after the job has, by the proof on the device or as an overlay
//! (`disk/pull.rs`). The record of a disk becomes that of an overlay while its machine runs only when no request for a
//! job can be left in libvirtd. No request waits for a promotion: what needs the disk ends it.
//! Failure: [`LayerError::NotPulled`] and [`LayerError::NotProved`] leave a disk that keeps its image; the repetition goes on where
//! the last attempt ended, since what was copied stays.

use std::time::Duration;

use libvirt::{BlockJobEnd, Hypervisor};
use podspec::VmUid;
use tokio::time::Instant;

use super::snapshots::lock_name;
use crate::disk;
use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::model::Container;
use crate::vm::power::LayerError;
use crate::vm::service::Containers;

/// Time between two looks at a copy.
const LOOK: Duration = Duration::from_millis(500);

/// Time between two looks at the free space during a copy.
const ROOM: Duration = Duration::from_secs(10);

/// A copy without progress for so long is on a hung disk, or the emulator does not copy.
const STALL: Duration = Duration::from_secs(600);

/// How often the proof is looked for: the emulator writes its tables when it is requested to, and when its guest
/// requests that all is on the device.
const PROOFS: usize = 10;

impl<P: Platform> Containers<P> {
    /// Has the machine that runs on a disk copy the image into it, with so many bytes per second. Success for a disk
    /// that needs no image, whether its machine runs or not. A caller that drops the future, or gets an error, must
    /// [abandon](Self::abandon_promotion) it. `progress` gets percents.
    pub async fn promote_online(
        &self,
        vm: VmUid,
        bytes_per_second: u64,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        if disks.settle_promotion(vm).await? {
            return Ok(());
        }
        let row = self.running_vm(vm)?;
        if row.vm().is_none() {
            return Err(Error::RootNotOfNode(vm));
        }
        self.check_connected("promote the disk").await?;
        // The emulator knows no reserve.
        let _space = disks.claim_pull(vm).await?;
        {
            let _alone = self.parts.locks.lock(&lock_name(vm)).await;
            disks.begin_pull(vm, &row.id).await?;
            faultpoint::point("node.promote.pulls");
            self.begin_job_of_pull(&row, vm, bytes_per_second).await?;
        }
        faultpoint::point("node.promote.copies");
        self.await_pull(&row, vm, progress).await?;
        faultpoint::point("node.promote.pulled");
        self.prove(&row, vm).await
    }

    /// Ends a promotion whose caller has left, of a machine that runs or is off; returns whether the disk needs no
    /// image all the same.
    pub async fn abandon_promotion(&self, vm: VmUid) -> Result<bool> {
        let disks = &self.parts.disks;
        let Ok(row) = self.running_vm(vm) else {
            return Ok(disks.abandon_promotion(vm).await?);
        };
        // A record of the caller may just be on its way to the database.
        disks.settled().await;
        if !disks.is_pulled(vm) {
            return Ok(disks.abandon_promotion(vm).await?);
        }
        self.end_pull(&row, vm).await
    }

    /// Ends the copy of a machine that runs, if there is one; the disk may stay one that keeps its image.
    pub(super) async fn stop_pull(&self, row: &Container, vm: VmUid) -> Result<()> {
        if !self.parts.disks.is_pulled(vm) {
            return Ok(());
        }
        match self.end_pull(row, vm).await {
            // The job has ended before the look at the disk.
            Err(Error::VmDisk(error)) => {
                let error = crate::one_line(&error);
                tracing::warn!(%vm, error, "pulled disk not settled yet");
                Ok(())
            }
            ended => ended.map(drop),
        }
    }

    /// As [`Self::stop_pull`], before something else changes the disk: then it is known what that has.
    pub(super) async fn make_way_for_change(&self, row: &Container, vm: VmUid) -> Result<()> {
        self.stop_pull(row, vm).await?;
        if self.parts.disks.is_pulled(vm) {
            return Err(LayerError::NotProved(vm).into());
        }
        Ok(())
    }

    async fn end_pull(&self, row: &Container, vm: VmUid) -> Result<bool> {
        {
            let _alone = self.parts.locks.lock(&lock_name(vm)).await;
            self.end_job_of_pull(row, vm).await?;
        }
        // A request of an earlier process would begin another one, of a disk that is recorded as an overlay.
        self.late_requests.outlast_all(vm).await;
        let _alone = self.parts.locks.lock(&lock_name(vm)).await;
        self.end_job_of_pull(row, vm).await?;
        self.flush(row, vm).await;
        Ok(self.parts.disks.end_pull(vm, &row.id).await?)
    }

    /// Begins to copy the image, unless that has begun, or is done.
    async fn begin_job_of_pull(
        &self,
        row: &Container,
        vm: VmUid,
        bytes_per_second: u64,
    ) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let not_pulled = |source| Error::from(LayerError::NotPulled { vm, source });
        let job = driver.root_job(row.domain()).await.map_err(not_pulled)?;
        if job.is_some() || !self.has_image_open(row, vm).await? {
            return Ok(());
        }
        let request = self.late_requests.send(vm);
        let begun = driver.pull_root(row.domain(), bytes_per_second).await;
        request.end(&begun);
        begun.map_err(not_pulled)
    }

    /// Waits until the emulator copies nothing any more.
    async fn await_pull(
        &self,
        row: &Container,
        vm: VmUid,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let not_pulled = |source| Error::from(LayerError::NotPulled { vm, source });
        let mut done = 0;
        let mut moved_at = Instant::now();
        let mut measured_at = moved_at;
        while let Some(job) = driver.root_job(row.domain()).await.map_err(not_pulled)? {
            progress(job.percent());
            if job.done > done {
                done = job.done;
                moved_at = Instant::now();
            }
            if moved_at.elapsed() >= STALL {
                return Err(not_pulled(without_progress()));
            }
            if measured_at.elapsed() >= ROOM {
                measured_at = Instant::now();
                self.parts.disks.check_room(vm).await?;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends the block job of a disk that is pulled, if there is one.
    async fn end_job_of_pull(&self, row: &Container, vm: VmUid) -> Result<()> {
        let driver = &self.parts.hypervisor;
        let not_pulled = |source| Error::from(LayerError::NotPulled { vm, source });
        let job = driver.root_job(row.domain()).await.map_err(not_pulled)?;
        if job.is_none() {
            return Ok(());
        }
        let ended = driver.end_root_job(row.domain(), BlockJobEnd::Cancel).await;
        // It may have ended by itself meanwhile.
        match driver.root_job(row.domain()).await.map_err(not_pulled)? {
            None => Ok(()),
            Some(_) => Err(not_pulled(ended.err().unwrap_or_else(goes_on))),
        }
    }

    /// Looks for the proof that the device has all of the image, until it is there.
    async fn prove(&self, row: &Container, vm: VmUid) -> Result<()> {
        for _ in 0..PROOFS {
            {
                let _alone = self.parts.locks.lock(&lock_name(vm)).await;
                if self.has_image_open(row, vm).await? {
                    let source = without_success();
                    return Err(LayerError::NotPulled { vm, source }.into());
                }
                self.flush(row, vm).await;
                if self.parts.disks.end_pull(vm, &row.id).await? {
                    return Ok(());
                }
                if !self.parts.disks.is_pulled(vm) {
                    // Its header names the image still.
                    let source = without_success();
                    return Err(LayerError::NotPulled { vm, source }.into());
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(LayerError::NotProved(vm).into())
    }

    /// Requests the emulator to write its tables; what the device has then is the proof, or none.
    async fn flush(&self, row: &Container, vm: VmUid) {
        if let Err(error) = self.parts.hypervisor.flush_root(row.domain()).await {
            let error = crate::one_line(&error);
            tracing::debug!(%vm, error, "disk not flushed");
        }
    }

    /// Whether the emulator still reads the image under the disk.
    async fn has_image_open(&self, row: &Container, vm: VmUid) -> Result<bool> {
        let image = self.parts.disks.base(vm);
        let image = image.ok_or(disk::Error::ImageLost(vm))?;
        let files = self.parts.hypervisor.disk_files(row.domain()).await;
        let files = files.map_err(|source| LayerError::NotPulled { vm, source })?;
        let files = files.ok_or(Error::NotRunning(vm))?;
        Ok(files.iter().any(|file| file.path == image.path))
    }
}

/// What a copy fails with that libvirt does not speak about.
fn without_success() -> libvirt::Error {
    libvirt::Error::Refused {
        call: "pull disk files",
        reason: "the emulator ended the block job without success; its log may say why".to_owned(),
    }
}

fn without_progress() -> libvirt::Error {
    libvirt::Error::Refused {
        call: "pull disk files",
        reason: format!("the emulator has copied nothing for {} s", STALL.as_secs()),
    }
}

fn goes_on() -> libvirt::Error {
    libvirt::Error::Refused {
        call: "end block job",
        reason: "it goes on".to_owned(),
    }
}
