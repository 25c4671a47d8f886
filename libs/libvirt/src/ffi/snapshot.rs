//! Snapshots of disks, which `virt` has no call for.
//!
//! Invariant: pointers are borrowed from live `virt` handles and local values for one call; the handle
//! that libvirt returns is released at once.
//! Failure: libvirt's own error.

use std::ffi::CString;

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

type Flags = sys::virDomainSnapshotCreateFlags;

/// All disks at once or none, to files that exist, without a record in libvirt.
const FLAGS: Flags = sys::VIR_DOMAIN_SNAPSHOT_CREATE_ATOMIC
    | sys::VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
    | sys::VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA;

/// Lets a running emulator write to the files of this description.
pub(crate) fn switch_disks(domain: &Domain, xml: &str) -> Result<(), Error> {
    create(domain, xml, sys::VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY)
}

/// The same, with the memory of the guest in the file that the description names. `runs`: the guest runs while its
/// memory is written.
pub(crate) fn switch_with_memory(domain: &Domain, xml: &str, runs: bool) -> Result<(), Error> {
    let live = if runs {
        sys::VIR_DOMAIN_SNAPSHOT_CREATE_LIVE
    } else {
        0
    };
    create(domain, xml, live)
}

fn create(domain: &Domain, xml: &str, more: Flags) -> Result<(), Error> {
    let flags = FLAGS | more;
    // A text with a NUL is no XML: libvirt gets an empty one and reports it.
    let xml = CString::new(xml).unwrap_or_default();
    // SAFETY: the handle and the text live for the whole call; the flags are a number.
    let snapshot = unsafe { sys::virDomainSnapshotCreateXML(domain.as_ptr(), xml.as_ptr(), flags) };
    if snapshot.is_null() {
        return Err(Error::last_error());
    }
    // SAFETY: libvirt has just returned the handle to us alone, and nothing uses it after this.
    let _ = unsafe { sys::virDomainSnapshotFree(snapshot) };
    Ok(())
}
