//! Block jobs of a disk: long operations that the emulator does while its guest runs.
//!
//! Invariant: pointers are borrowed from live `virt` handles and local values for one call.
//! Failure: libvirt's own error.

use std::ffi::{CString, c_int, c_uint};

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

use crate::BlockJob;

/// Starts to copy all that the disk does not have itself from what it is based on.
pub(crate) fn pull(domain: &Domain, disk: &str, bytes_per_second: u64) -> Result<(), Error> {
    let disk = name(disk);
    let flags = sys::VIR_DOMAIN_BLOCK_PULL_BANDWIDTH_BYTES;
    // SAFETY: the handle and the name live for the whole call; the other arguments are numbers.
    let result =
        unsafe { sys::virDomainBlockPull(domain.as_ptr(), disk.as_ptr(), bytes_per_second, flags) };
    done(result)
}

/// The job of a disk; `None` when it has none.
pub(crate) fn job(domain: &Domain, disk: &str) -> Result<Option<BlockJob>, Error> {
    let disk = name(disk);
    let mut info = sys::virDomainBlockJobInfo {
        type_: 0,
        bandwidth: 0,
        cur: 0,
        end: 0,
    };
    let flags: c_uint = 0;
    // SAFETY: the handle and the name live for the whole call; the out-pointer is a local value.
    let result = unsafe {
        sys::virDomainGetBlockJobInfo(domain.as_ptr(), disk.as_ptr(), &raw mut info, flags)
    };
    match result {
        0 => Ok(None),
        1.. => Ok(Some(BlockJob {
            is_pull: info.type_.cast_unsigned() == sys::VIR_DOMAIN_BLOCK_JOB_TYPE_PULL,
            done: info.cur,
            total: info.end,
        })),
        _ => Err(Error::last_error()),
    }
}

/// Ends the job of a disk and waits until it has.
pub(crate) fn abort(domain: &Domain, disk: &str) -> Result<(), Error> {
    let disk = name(disk);
    // SAFETY: the handle and the name live for the whole call.
    let result = unsafe { sys::virDomainBlockJobAbort(domain.as_ptr(), disk.as_ptr(), 0) };
    done(result)
}

/// A name with a NUL is none of a disk: libvirt gets an empty one and reports it.
fn name(disk: &str) -> CString {
    CString::new(disk).unwrap_or_default()
}

fn done(result: c_int) -> Result<(), Error> {
    match result {
        0.. => Ok(()),
        _ => Err(Error::last_error()),
    }
}
