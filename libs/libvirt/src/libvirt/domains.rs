//! What calls about one domain have in common: to find it, and errors that mean success.
//!
//! Invariant: a domain that does not run is stopped, one that does not exist is removed.
//! Failure: libvirt's other errors, untouched.

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};
use virt::sys;

use crate::Result;

pub(super) fn find(connect: &Connect, domain: Uuid) -> Result<Domain, VirtError> {
    connect.lookup_domain_by_uuid(domain)
}

/// Turns the refusal to stop a domain that does not run into success.
pub(super) fn unless_off(domain: &Domain, result: Result<(), VirtError>) -> Result<(), VirtError> {
    match result {
        Err(error) if error.code().is(ErrorNumber::OperationInvalid) => match domain.is_active() {
            Ok(false) => Ok(()),
            Ok(true) => Err(error),
            // Another client undefined it meanwhile: the caller decides what that means.
            Err(gone) => Err(gone),
        },
        other => other,
    }
}

/// Undefines with everything that libvirt keeps about a domain, as far as the driver knows the
/// flags. The variable store of UEFI is its owner's, as the disks are.
pub(super) fn forget(domain: &Domain) -> Result<(), VirtError> {
    let everything = sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
        | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
        | sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM;
    match domain.undefine_flags(everything) {
        Err(error) if error.code().is(ErrorNumber::InvalidArg) => domain.undefine(),
        other => other,
    }
}

pub(super) fn absent_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(crate::Error::NoDomain(_)) => Ok(()),
        other => other,
    }
}

/// Turns the absence of the domain into `None`.
pub(super) fn absent_is_none<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(crate::Error::NoDomain(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
