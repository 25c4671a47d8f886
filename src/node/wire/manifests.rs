//! Requests about manifests, and about disks that machines take over.
//!
//! Invariant: a manifest is text of a bounded size; a machine has a namespace and a name.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::VmUid;

use super::super::task::Work;
use super::{Invalid, NAME, uid};
use crate::disk::manifest::{Manifest, Summary};

/// The manifest to keep, and for which disk.
pub(in crate::node) fn manifest(
    request: v1::SetManifestRequest,
) -> Result<(VmUid, Manifest), Invalid> {
    let vm = uid("vm_uid", &request.vm_uid)?;
    let manifest = Manifest::new(&request.cluster_uid, request.manifest);
    let field = "manifest";
    let manifest = manifest.map_err(|reason| Invalid { field, reason })?;
    Ok((vm, manifest))
}

/// The check whether a machine can have a disk.
pub(super) fn adopt(wanted: &v1::Adopt) -> Result<Work, Invalid> {
    let name = machine_name("adopt.vm_name", &wanted.vm_name)?;
    Ok(Work::Adopt { name })
}

/// The namespace and the name of a machine.
pub(super) fn machine_name(field: &'static str, name: &str) -> Result<String, Invalid> {
    let is_name = |name: &str| {
        name.split_once('/')
            .is_some_and(|(a, b)| !a.is_empty() && !b.is_empty())
    };
    if name.len() > NAME || !is_name(name) {
        let reason = "the namespace and the name of a machine are needed";
        return Err(Invalid { field, reason });
    }
    Ok(name.to_owned())
}

/// A disk, and what is known of its manifest.
pub(in crate::node) fn with_manifest(disk: v1::Disk, manifest: Option<Summary>) -> v1::Disk {
    match manifest {
        None => disk,
        Some(manifest) => v1::Disk {
            manifest_bytes: manifest.bytes as u64,
            cluster_uid: manifest.cluster,
            ..disk
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adoption_names_a_machine_with_its_namespace() {
        let request = |name: &str| v1::Adopt {
            vm_name: name.to_owned(),
        };
        let work = adopt(&request("ns/vm")).unwrap();
        let name = "ns/vm".to_owned();
        assert_eq!(work, Work::Adopt { name });
        for odd in ["", "vm", "/vm", "ns/", &"n/".repeat(NAME)] {
            let refused = adopt(&request(odd)).unwrap_err();
            assert_eq!(refused.field, "adopt.vm_name", "{odd}");
        }
    }
}
