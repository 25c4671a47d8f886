//! Requests for clones of disks.
//!
//! Invariant: a clone is of another disk, for a machine with a namespace and a name.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::VmUid;

use super::manifests::machine_name;
use super::{Invalid, uid};
use crate::node::task::Work;

/// The work of a request to make the disk of `vm` as a copy.
pub(super) fn clone_disk(vm: VmUid, requested: &v1::CloneDisk) -> Result<Work, Invalid> {
    let field = "clone_disk.source_vm_uid";
    let source = uid(field, &requested.source_vm_uid)?;
    if source == vm {
        let reason = "the disk of another machine is needed";
        return Err(Invalid { field, reason });
    }
    let snapshot = match requested.snapshot_uid.as_str() {
        "" => None,
        text => Some(uid("clone_disk.snapshot_uid", text)?),
    };
    if i64::try_from(requested.size_bytes).is_err() {
        return Err(Invalid {
            field: "clone_disk.size_bytes",
            reason: "a size up to 8 EiB is allowed",
        });
    }
    Ok(Work::CloneDisk {
        source,
        snapshot,
        size: requested.size_bytes,
        name: machine_name("clone_disk.vm_name", &requested.vm_name)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";
    const OWN: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b02";

    fn requested(source: &str, snapshot: &str, size: u64, name: &str) -> v1::CloneDisk {
        v1::CloneDisk {
            source_vm_uid: source.to_owned(),
            snapshot_uid: snapshot.to_owned(),
            size_bytes: size,
            vm_name: name.to_owned(),
        }
    }

    #[test]
    fn a_clone_is_of_another_disk_and_perhaps_of_a_snapshot() {
        let own = OWN.parse().unwrap();
        let work = clone_disk(own, &requested(SOURCE, "", 7, "ns/vm")).unwrap();
        let expected = |snapshot| Work::CloneDisk {
            source: SOURCE.parse().unwrap(),
            snapshot,
            size: 7,
            name: "ns/vm".to_owned(),
        };
        assert_eq!(work, expected(None));
        let work = clone_disk(own, &requested(SOURCE, OWN, 7, "ns/vm")).unwrap();
        assert_eq!(work, expected(Some(own)));
        for (odd, field) in [
            (requested("", "", 0, "ns/vm"), "source_vm_uid"),
            (requested("../disk", "", 0, "ns/vm"), "source_vm_uid"),
            (requested(OWN, "", 0, "ns/vm"), "source_vm_uid"),
            (requested(SOURCE, "s", 0, "ns/vm"), "snapshot_uid"),
            (requested(SOURCE, "", u64::MAX, "ns/vm"), "size_bytes"),
            (requested(SOURCE, "", 0, "vm"), "vm_name"),
            (requested(SOURCE, "", 0, &"n/".repeat(400)), "vm_name"),
        ] {
            let refused = clone_disk(own, &odd).unwrap_err();
            assert_eq!(refused.field, format!("clone_disk.{field}"), "{odd:?}");
        }
    }
}
