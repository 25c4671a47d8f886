//! Saved memory, and guests that do not run.
//!
//! Invariant: a restored guest has not run one instruction when the call returns.
//! Failure: libvirt's own error; what was half restored is gone then, and the file stays.

use std::path::Path;
use std::time::Duration;

use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};
use virt::sys;

/// For writing or reading all of a machine's memory.
pub(super) const DEADLINE: Duration = Duration::from_secs(60 * 60);

/// Starts a defined domain from a file, paused.
pub(super) fn restore(connect: &Connect, xml: &str, file: &Path) -> Result<(), VirtError> {
    let flags = sys::VIR_DOMAIN_SAVE_PAUSED;
    connect.restore_domain_flags(&file.to_string_lossy(), Some(xml), flags)
}

/// Lets the guest run; libvirt refuses that to one that does.
pub(super) fn resume(domain: &Domain) -> Result<(), VirtError> {
    match domain.resume() {
        Err(error) if error.code().is(ErrorNumber::OperationInvalid) => {
            let (state, _) = crate::ffi::state(domain)?;
            if state == sys::VIR_DOMAIN_RUNNING {
                return Ok(());
            }
            Err(error)
        }
        other => other,
    }
}
