//! Domain calls that `virt` lacks, or whose errors it drops.
//!
//! Invariant: pointers are borrowed from live `virt` handles for one call.
//! Failure: libvirt's own error.

use std::ffi::{CString, c_int};
use std::path::Path;
use std::ptr;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

/// State and reason as libvirt numbers them. `virt`'s own function hides the error.
pub(crate) fn state(domain: &Domain) -> Result<(sys::virDomainState, c_int), Error> {
    let mut state: c_int = 0;
    let mut reason: c_int = 0;
    // SAFETY: the handle is alive for the whole call and both out-pointers are local integers.
    let result =
        unsafe { sys::virDomainGetState(domain.as_ptr(), &raw mut state, &raw mut reason, 0) };
    if result < 0 {
        return Err(Error::last_error());
    }
    Ok((state.cast_unsigned(), reason))
}

/// Limits how long libvirt waits for the guest agent's answer to its own commands, in seconds.
pub(crate) fn set_agent_timeout(domain: &Domain, seconds: c_int) -> Result<(), Error> {
    // SAFETY: the handle is alive for the whole call; the other arguments are plain numbers.
    let result = unsafe { sys::virDomainAgentSetResponseTimeout(domain.as_ptr(), seconds, 0) };
    if result < 0 {
        Err(Error::last_error())
    } else {
        Ok(())
    }
}

/// Writes the machine's memory to a file and ends the machine.
pub(crate) fn save(domain: &Domain, file: &Path) -> Result<(), Error> {
    // A path with a NUL names no file: libvirt gets an empty one and reports it.
    let file = CString::new(file.as_os_str().as_encoded_bytes()).unwrap_or_default();
    // SAFETY: the handle and the string live for the whole call; no XML is given.
    let result = unsafe { sys::virDomainSaveFlags(domain.as_ptr(), file.as_ptr(), ptr::null(), 0) };
    if result < 0 {
        Err(Error::last_error())
    } else {
        Ok(())
    }
}

/// Ends the long operation on a domain that is in progress.
pub(crate) fn abort_job(domain: &Domain) -> Result<(), Error> {
    // SAFETY: the handle is alive for the whole call.
    let result = unsafe { sys::virDomainAbortJob(domain.as_ptr()) };
    if result < 0 {
        Err(Error::last_error())
    } else {
        Ok(())
    }
}
