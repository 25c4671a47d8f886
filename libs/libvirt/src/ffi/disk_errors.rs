//! The disks of a domain whose requests failed.
//!
//! Invariant: each name that libvirt allocates is copied and freed once, before anything else can
//! happen; the array belongs to the caller, and has the length that libvirt receives.
//! Failure: libvirt's own error.

use std::ffi::{CStr, c_uint};
use std::ptr;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

use crate::{DiskFailure, FailedDisk};

/// More disks than any machine of ours has.
const MOST: usize = 64;

/// Longest name that is believed; libvirt's own have four characters.
const LONGEST: usize = 32;

/// The disks that have failed, in the order of libvirt's list.
pub(crate) fn failed_disks(domain: &Domain) -> Result<Vec<FailedDisk>, Error> {
    let mut found = [const {
        sys::virDomainDiskError {
            disk: ptr::null_mut(),
            error: 0,
        }
    }; MOST];
    let most = c_uint::try_from(MOST).unwrap_or_default();
    // SAFETY: the handle is alive for the whole call; the array is local and has `most` elements,
    // of which libvirt writes as many as it returns.
    let count =
        unsafe { sys::virDomainGetDiskErrors(domain.as_ptr(), found.as_mut_ptr(), most, 0) };
    let Ok(count) = usize::try_from(count) else {
        return Err(Error::last_error());
    };
    Ok(found.iter().take(count).filter_map(take).collect())
}

/// Copies one element and frees its name.
fn take(found: &sys::virDomainDiskError) -> Option<FailedDisk> {
    if found.disk.is_null() {
        return None;
    }
    // SAFETY: libvirt has set the pointer to a string of its own that ends with NUL, which is ours
    // to free; it is used here only, and not after the call of `free`.
    let name = unsafe {
        let name = CStr::from_ptr(found.disk).to_string_lossy().into_owned();
        free(found.disk.cast());
        name
    };
    let is_text = |c: &char| c.is_ascii_graphic();
    let cause = match found.error.cast_unsigned() {
        sys::VIR_DOMAIN_DISK_ERROR_NONE => return None,
        sys::VIR_DOMAIN_DISK_ERROR_NO_SPACE => DiskFailure::NoSpace,
        _ => DiskFailure::Other,
    };
    Some(FailedDisk {
        name: name.chars().filter(is_text).take(LONGEST).collect(),
        cause,
    })
}

// SAFETY: the declaration is that of the C library, which every program has.
unsafe extern "C" {
    fn free(pointer: *mut std::ffi::c_void);
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;

    // SAFETY: as above.
    unsafe extern "C" {
        fn strdup(text: *const std::ffi::c_char) -> *mut std::ffi::c_char;
    }

    fn found(name: &CStr, error: c_int) -> Option<FailedDisk> {
        // SAFETY: the name ends with NUL; the copy is freed by `take`.
        let disk = unsafe { strdup(name.as_ptr()) };
        take(&sys::virDomainDiskError { disk, error })
    }

    #[test]
    fn a_full_disk_differs_from_one_that_fails() {
        let texts = [0, 1, 2, 7].map(|error| found(c"vda", error).map(|disk| disk.to_string()));
        let other = Some("disk vda: I/O error".to_owned());
        let full = Some("disk vda: no space left".to_owned());
        assert_eq!(texts, [None, other.clone(), full, other]);
    }
}
