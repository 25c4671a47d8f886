//! Pulls of the fake's disks.
//!
//! Invariant: a pull is as far as a test says, and ends when a test says so, or with its emulator.
//! Failure: the errors that the real hypervisor gives in the same place.

use uuid::Uuid;

use super::FakeHypervisor;
use crate::{BlockJob, Error, Event, Result, State};

/// Steps of a pull.
const TOTAL: u64 = 100;

/// A pull in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pull {
    disk: String,
    bytes_per_second: u64,
    percent: u64,
}

impl FakeHypervisor {
    /// The bandwidth of the pull of a disk, if there is one.
    pub fn pull(&self, domain: Uuid, disk: &str) -> Option<u64> {
        let mut inner = self.lock();
        let job = inner.domains.get_mut(&domain)?.job.as_ref();
        job.filter(|job| job.disk == disk)
            .map(|job| job.bytes_per_second)
    }

    /// The pull of a domain gets this far; nothing reports it.
    pub fn advance_pull(&self, domain: Uuid, percent: u64) {
        let mut inner = self.lock();
        if let Some(job) = inner.domains.get_mut(&domain).and_then(|d| d.job.as_mut()) {
            job.percent = percent.min(TOTAL);
        }
    }

    /// The pull of a domain ends, by whatever cause: the disk shows it.
    pub fn finish_pull(&self, domain: Uuid) {
        let job = self.lock().domains.get_mut(&domain).map(|d| d.job.take());
        if job.flatten().is_some() {
            self.emit(Event::BlockJob(domain));
        }
    }

    pub(super) fn begin_pull(
        &self,
        domain: Uuid,
        disk: String,
        bytes_per_second: u64,
    ) -> Result<()> {
        let mut inner = self.lock();
        let found = inner.domain(domain)?;
        if found.state != State::Active {
            return Err(Error::Refused {
                call: "pull disk",
                reason: "the domain is not running".to_owned(),
            });
        }
        found.job.get_or_insert(Pull {
            disk,
            bytes_per_second,
            percent: 0,
        });
        Ok(())
    }

    pub(super) fn find_pull(&self, domain: Uuid, disk: &str) -> Result<Option<BlockJob>> {
        let mut inner = self.lock();
        let found = inner.domain(domain)?;
        if found.state != State::Active {
            return Err(Error::Refused {
                call: "look at block job",
                reason: "the domain is not running".to_owned(),
            });
        }
        let job = found.job.as_ref().filter(|job| job.disk == disk);
        Ok(job.map(|job| BlockJob {
            is_pull: true,
            done: job.percent,
            total: TOTAL,
        }))
    }

    pub(super) fn end_pull(&self, domain: Uuid, disk: &str) -> Result<()> {
        let is_there = self.find_pull(domain, disk)?.is_some();
        if is_there {
            self.finish_pull(domain);
        }
        Ok(())
    }
}
