//! Lists our domains, the versions of libvirt and QEMU, and the capabilities of an emulator.
//!
//! Invariant: a domain without our metadata element is never reported.
//! Failure: libvirt's error; domains that vanish while the list is made are left out.

use std::path::Path;

use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};
use virt::sys;

use crate::{DomainInfo, DomainType, METADATA_NAMESPACE, Result, Versions, event, ffi, read};

/// All domains of ours.
pub(super) fn ours(connect: &Connect) -> Result<Vec<DomainInfo>, VirtError> {
    let mut found = Vec::new();
    for domain in connect.list_all_domains(0)? {
        match info(&domain) {
            Ok(Some(info)) => found.push(info),
            Ok(None) => {}
            Err(error) if error.code().is(ErrorNumber::NoDomain) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn info(domain: &Domain) -> Result<Option<DomainInfo>, VirtError> {
    let kind = sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();
    let element = match domain.metadata(kind, Some(METADATA_NAMESPACE), 0) {
        Ok(xml) => xml,
        Err(error) if error.code().is(ErrorNumber::NoDomainMetadata) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (state, reason) = ffi::state(domain)?;
    let mark = read::mark(&element).unwrap_or_default();
    Ok(Some(DomainInfo {
        uuid: domain.uuid()?,
        name: domain.name()?,
        state: event::state(state, reason),
        container: mark.container,
        installation: mark.installation,
        vm: mark.vm,
    }))
}

/// Versions of libvirt and of its emulator.
pub(super) fn versions(connect: &Connect) -> Result<Versions, VirtError> {
    let libvirt = connect.lib_version()?;
    // A libvirt that has not found an emulator yet answers with an error, or with zero.
    let qemu = connect.hyp_version().unwrap_or(0);
    Ok(Versions {
        libvirt: dotted(libvirt),
        qemu: if qemu == 0 {
            String::new()
        } else {
            dotted(qemu)
        },
    })
}

/// The capabilities of this emulator, which libvirt has to execute for them. Without a type libvirt
/// takes one that the emulator has.
pub(super) fn of_emulator(
    connect: &Connect,
    program: &Path,
    kind: Option<DomainType>,
) -> Result<String, VirtError> {
    let program = program.to_string_lossy();
    let kind = kind.map(DomainType::as_str);
    connect.domain_capabilities(Some(&program), None, None, kind, 0)
}

fn dotted(version: u32) -> String {
    format!(
        "{}.{}.{}",
        version / 1_000_000,
        version / 1000 % 1000,
        version % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_with_dots() {
        assert_eq!(dotted(7_002_022), "7.2.22");
        assert_eq!(dotted(11_003_000), "11.3.0");
    }
}
