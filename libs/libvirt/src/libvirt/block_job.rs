//! Block jobs of running machines.
//!
//! Invariant: to start what runs already, and to end what does not, is success.
//! Failure: libvirt's error.

use uuid::Uuid;
use virt::domain::Domain;
use virt::error::Error as VirtError;

use super::Libvirt;
use crate::{BlockJob, Result, ffi};

impl Libvirt {
    pub(super) async fn begin_pull(
        &self,
        domain: Uuid,
        disk: String,
        bytes_per_second: u64,
    ) -> Result<()> {
        let pull = move |d: &Domain| match ffi::block_job(d, &disk)? {
            Some(job) if job.is_pull => Ok(()),
            _ => ffi::block_pull(d, &disk, bytes_per_second),
        };
        self.ask_emulator("pull disk", domain, pull).await
    }

    pub(super) async fn find_block_job(
        &self,
        domain: Uuid,
        disk: String,
    ) -> Result<Option<BlockJob>> {
        let look = move |d: &Domain| ffi::block_job(d, &disk);
        self.ask_emulator("look at block job", domain, look).await
    }

    pub(super) async fn end_block_job(&self, domain: Uuid, disk: String) -> Result<()> {
        let abort = move |d: &Domain| unless_over(d, &disk, ffi::block_job_abort(d, &disk));
        self.ask_emulator("abort block job", domain, abort).await
    }
}

/// A job that ended meanwhile cannot be ended.
fn unless_over(
    domain: &Domain,
    disk: &str,
    aborted: Result<(), VirtError>,
) -> Result<(), VirtError> {
    match aborted {
        Err(error) => match ffi::block_job(domain, disk) {
            Ok(None) => Ok(()),
            _ => Err(error),
        },
        done => done,
    }
}
