//! Makes the disk of a virtual machine independent of its image, while the guest runs or is off.
//!
//! ```text
//! settled? ──no──► a pull in progress? ──no──► begin one ─┐
//!    │ yes             │ yes                              │
//!    ▼                 └──────────► wait for an event ◄───┘
//!  done                                    │
//!    ▲                                     ▼
//!    └───────────────── look again ────────┘
//! ```
//!
//! Invariant: the disk itself shows whether it is done, so that a pull that an earlier process or an
//! earlier libvirtd began is found, or begun again; a pull never affects the guest's own requests
//! beyond the bandwidth.
//! Failure: [`Error::PullEnded`] or [`Error::PullStalled`] with a disk that is still an overlay, and has what
//! was copied so far.

use std::time::Duration;

use libvirt::{BlockJob, Event, Hypervisor, Power};
use podspec::VmUid;
use tokio::time::Instant;
use uuid::Uuid;

use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::service::Containers;

/// The root disk's name in every domain.
const ROOT: &str = "vda";

/// Interval of the looks at a pull, for its progress; its end is an event.
const LOOK: Duration = Duration::from_secs(2);

/// A pull that gets no further for so long is on a hung disk.
const STALL: Duration = Duration::from_secs(600);

impl<P: Platform> Containers<P> {
    /// Copies what the disk of a running machine has of its image into the disk, with at most this
    /// many bytes per second; success when it needs no image. A caller that drops the
    /// future [ends](Self::abort_promotion) the copy. `progress` gets percents.
    pub async fn promote_online(
        &self,
        vm: VmUid,
        bytes_per_second: u64,
        progress: impl Fn(u8) + Send,
    ) -> Result<()> {
        let (disks, driver) = (&self.parts.disks, &self.parts.hypervisor);
        let (mut events, mut changes) = (driver.events(), self.parts.table.changes());
        let mut pull: Option<Pull> = None;
        let mut room = None;
        loop {
            if disks.settle_promotion(vm).await? {
                return Ok(());
            }
            let row = self.running_vm(vm)?;
            if row.vm().is_none() {
                return Err(Error::RootNotOfNode(vm));
            }
            let domain = row.domain();
            match driver.block_job(domain, ROOT.to_owned()).await {
                Ok(Some(job)) => {
                    progress(percent(job));
                    // What the guest writes has the reserve to itself.
                    if let Err(full) = disks.check_room(vm).await {
                        self.abort_promotion(vm).await?;
                        return Err(full.into());
                    }
                    let seen = pull.get_or_insert_with(|| Pull::begun(Some(job)));
                    if seen.has_stalled(job) {
                        self.abort_promotion(vm).await?;
                        return Err(Error::PullStalled(vm));
                    }
                }
                Ok(None) if pull.is_some() => {
                    // It may have ended since the disk was looked at.
                    let is_whole = disks.settle_promotion(vm).await?;
                    return is_whole.then_some(()).ok_or(Error::PullEnded(vm));
                }
                Ok(None) => {
                    if room.is_none() {
                        room = Some(disks.claim_promotion(vm).await?);
                    }
                    let begun = driver
                        .pull_disk(domain, ROOT.to_owned(), bytes_per_second)
                        .await;
                    if let Err(error) = begun {
                        return Err(self.unless_off(vm, domain, error).await);
                    }
                    pull = Some(Pull::begun(None));
                    faultpoint::point("node.pull.begun");
                }
                // The emulator goes on; the connection returns.
                Err(error) if error.is_unavailable() => {}
                Err(error) => return Err(self.unless_off(vm, domain, error).await),
            }
            let wakes = |event: &Event| match event {
                Event::BlockJob(other) | Event::Stopped(other, _) => *other == domain,
                Event::Connected => true,
                _ => false,
            };
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = async { while !events.recv().await.as_ref().map_or(true, wakes) {} } => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// What the error of a call about a domain's disk means: libvirt may know before us that the
    /// machine has ended.
    async fn unless_off(&self, vm: VmUid, domain: Uuid, error: libvirt::Error) -> Error {
        match self.parts.hypervisor.power(domain).await {
            Ok(Some(Power::Off) | None) => Error::NotRunning(vm),
            _ => hypervisor("pull the disk of")(error),
        }
    }

    /// Copies the disk of a machine that is off; see [`crate::disk::Disks::flatten`].
    pub async fn promote_offline(&self, vm: VmUid, progress: impl FnMut(u8) + Send) -> Result<()> {
        if self.parts.disks.settle_promotion(vm).await? {
            return Ok(());
        }
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.flatten(vm, progress).await?)
    }

    /// Ends the copy of a disk that is in progress, in whatever way; true when it was complete
    /// before. The disk keeps what was copied.
    pub async fn abort_promotion(&self, vm: VmUid) -> Result<bool> {
        let disks = &self.parts.disks;
        if let Ok(row) = self.running_vm(vm)
            && row.vm().is_some()
        {
            let aborted = self
                .parts
                .hypervisor
                .abort_block_job(row.domain(), ROOT.to_owned());
            if let Err(error) = aborted.await {
                match self.unless_off(vm, row.domain(), error).await {
                    Error::NotRunning(_) => {}
                    error => return Err(error),
                }
            }
        } else {
            disks.abandon_copy(vm).await?;
        }
        Ok(disks.settle_promotion(vm).await?)
    }
}

/// How far a pull was when it last got further.
#[derive(Debug, Clone, Copy)]
struct Pull {
    done: u64,
    since: Instant,
}

impl Pull {
    fn begun(job: Option<BlockJob>) -> Self {
        Self {
            done: job.map_or(0, |job| job.done),
            since: Instant::now(),
        }
    }

    fn has_stalled(&mut self, job: BlockJob) -> bool {
        if job.done != self.done {
            *self = Self::begun(Some(job));
        }
        self.since.elapsed() >= STALL
    }
}

/// A job that has just begun does not know its end.
fn percent(job: BlockJob) -> u8 {
    let percent = job.done.saturating_mul(100).checked_div(job.total);
    u8::try_from(percent.unwrap_or_default().min(99)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_never_all_before_the_disk_shows_it() {
        let job = |done, total| BlockJob {
            is_pull: true,
            done,
            total,
        };
        let percents = [(0, 0), (1, 2), (5, 5), (u64::MAX, u64::MAX)];
        let percents = percents.map(|(done, total)| percent(job(done, total)));
        assert_eq!(percents, [0, 50, 99, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_stalls_when_it_gets_no_further_for_ten_minutes() {
        let job = |done| BlockJob {
            is_pull: true,
            done,
            total: 100,
        };
        let mut pull = Pull::begun(Some(job(1)));
        tokio::time::advance(STALL - LOOK).await;
        assert!(!pull.has_stalled(job(2)));
        tokio::time::advance(STALL - LOOK).await;
        assert!(!pull.has_stalled(job(2)));
        tokio::time::advance(LOOK).await;
        assert!(pull.has_stalled(job(2)));
    }
}
