//! Block jobs, which `virt` has no calls for.
//!
//! Invariant: pointers are borrowed from live `virt` handles and local values for one call.
//! Failure: libvirt's own error.

use std::ffi::{CString, c_ulong};
use std::path::Path;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

use crate::{BlockCommit, BlockJob, BlockJobEnd};

/// Begins to copy one file of a disk to the next one below it.
pub(crate) fn commit(domain: &Domain, disk: &str, commit: &BlockCommit) -> Result<(), Error> {
    let disk = text(disk.as_bytes());
    let base = of_path(&commit.base);
    let top = of_path(&commit.top);
    let mut flags = sys::VIR_DOMAIN_BLOCK_COMMIT_BANDWIDTH_BYTES;
    if commit.is_active {
        flags |= sys::VIR_DOMAIN_BLOCK_COMMIT_ACTIVE;
    }
    let speed: c_ulong = commit.bytes_per_second;
    // SAFETY: the handle and the three strings live for the whole call; speed and flags are numbers.
    let result = unsafe {
        sys::virDomainBlockCommit(
            domain.as_ptr(),
            disk.as_ptr(),
            base.as_ptr(),
            top.as_ptr(),
            speed,
            flags,
        )
    };
    checked(result)
}

/// Begins to copy all that a disk has of the files below the one that the guest writes to into that one.
pub(crate) fn pull(domain: &Domain, disk: &str, bytes_per_second: u64) -> Result<(), Error> {
    let disk = text(disk.as_bytes());
    let flags = sys::VIR_DOMAIN_BLOCK_PULL_BANDWIDTH_BYTES;
    let speed: c_ulong = bytes_per_second;
    // SAFETY: the handle and the string live for the whole call; speed and flags are numbers.
    let result = unsafe { sys::virDomainBlockPull(domain.as_ptr(), disk.as_ptr(), speed, flags) };
    checked(result)
}

/// The job of a disk, if there is one.
pub(crate) fn block_job(domain: &Domain, disk: &str) -> Result<Option<BlockJob>, Error> {
    let disk = text(disk.as_bytes());
    let mut info = sys::virDomainBlockJobInfo {
        type_: 0,
        bandwidth: 0,
        cur: 0,
        end: 0,
    };
    // SAFETY: the handle and the string live for the whole call; `info` is a local of the type that libvirt
    // writes to.
    let found =
        unsafe { sys::virDomainGetBlockJobInfo(domain.as_ptr(), disk.as_ptr(), &raw mut info, 0) };
    checked(found)?;
    Ok((found > 0).then_some(BlockJob {
        done: info.cur,
        total: info.end,
    }))
}

/// Ends the job of a disk, and waits for its end.
pub(crate) fn end_block_job(domain: &Domain, disk: &str, end: BlockJobEnd) -> Result<(), Error> {
    let disk = text(disk.as_bytes());
    let flags = match end {
        BlockJobEnd::Cancel => 0,
        BlockJobEnd::Pivot => sys::VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT,
    };
    // SAFETY: the handle and the string live for the whole call; the flags are a number.
    let result = unsafe { sys::virDomainBlockJobAbort(domain.as_ptr(), disk.as_ptr(), flags) };
    checked(result)
}

/// A text with a NUL names nothing: libvirt gets an empty one and reports it.
fn text(bytes: &[u8]) -> CString {
    CString::new(bytes).unwrap_or_default()
}

fn of_path(path: &Path) -> CString {
    text(path.as_os_str().as_encoded_bytes())
}

fn checked(result: std::ffi::c_int) -> Result<(), Error> {
    if result < 0 {
        return Err(Error::last_error());
    }
    Ok(())
}
