//! Snapshots of disks, which `virt` has no call for.
//!
//! Invariant: pointers are borrowed from live `virt` handles and local values for one call; the handle
//! that libvirt returns is released at once.
//! Failure: libvirt's own error.

use std::ffi::CString;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

/// All disks at once or none, to files that exist, without a record in libvirt.
const FLAGS: sys::virDomainSnapshotCreateFlags = sys::VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY
    | sys::VIR_DOMAIN_SNAPSHOT_CREATE_ATOMIC
    | sys::VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
    | sys::VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA;

/// Lets a running emulator write to the files of this description.
pub(crate) fn switch_disks(domain: &Domain, xml: &str) -> Result<(), Error> {
    // A text with a NUL is no XML: libvirt gets an empty one and reports it.
    let xml = CString::new(xml).unwrap_or_default();
    // SAFETY: the handle and the text live for the whole call; the flags are a number.
    let snapshot = unsafe { sys::virDomainSnapshotCreateXML(domain.as_ptr(), xml.as_ptr(), FLAGS) };
    if snapshot.is_null() {
        return Err(Error::last_error());
    }
    // SAFETY: libvirt has just returned the handle to us alone, and nothing uses it after this.
    let _ = unsafe { sys::virDomainSnapshotFree(snapshot) };
    Ok(())
}
