//! Domain calls that `virt` lacks, or whose errors it drops.
//!
//! Invariant: pointers are borrowed from live `virt` handles for one call.
//! Failure: libvirt's own error.

use std::ffi::c_int;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

/// State and reason as libvirt numbers them. `virt`'s own function hides the error.
pub(crate) fn state(domain: &Domain) -> Result<(sys::virDomainState, c_int), Error> {
    let (mut state, mut reason): (c_int, c_int) = (0, 0);
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
