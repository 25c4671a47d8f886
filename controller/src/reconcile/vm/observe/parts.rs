//! The VolumeSnapshots that are parts of the snapshots of a machine.
//!
//! Invariant: an object is a part only if the snapshot owns it and it is of the claim of the record, whatever its name.
//! Failure: none; what does not exist is recorded in words.

use std::sync::Arc;

use crds::{ClaimSnapshot, VirtualMachineSnapshot};
use kube::ResourceExt;

use crate::context::Key;
use crate::reconcile::vm::pass::Pass;
use crate::stores::VolumeSnapshot;

/// Most characters of an error that are kept.
const ERROR: usize = 512;

/// The part of that record, as the watch shows it.
pub(crate) fn find(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> Option<Arc<VolumeSnapshot>> {
    named(pass, record).filter(|found| is_part(found, snapshot, record))
}

fn named(pass: &Pass<'_>, record: &ClaimSnapshot) -> Option<Arc<VolumeSnapshot>> {
    let key = Key::new(&pass.key.namespace, &record.volume_snapshot_name);
    pass.ctx.stores.volume_snapshots.get(&key.reference())
}

/// Whether an object of the name of a part is the part.
pub(crate) fn is_part(
    found: &VolumeSnapshot,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> bool {
    let uid = snapshot.metadata.uid.as_ref();
    let mut owners = found.owner_references().iter();
    let is_owned = owners.any(|owner| Some(&owner.uid) == uid);
    let source = &found.spec.source.persistent_volume_claim_name;
    is_owned && source.as_ref() == Some(&record.claim_name)
}

/// Whether the storage system makes claims of a part at present.
pub(crate) fn is_ready(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> bool {
    named(pass, record).map_or(record.ready, |found| {
        let status = found.status.as_ref();
        let is_usable = status.is_some_and(|status| status.ready_to_use == Some(true));
        is_usable && is_part(&found, snapshot, record)
    })
}

/// Copies what the storage system reports of a part; `None`: the part does not exist.
pub(crate) fn observe(record: &mut ClaimSnapshot, found: Option<&VolumeSnapshot>) {
    let Some(found) = found else {
        record.error = Some(missing(record));
        record.ready = false;
        return;
    };
    let status = found.status.clone().unwrap_or_default();
    record.ready = status.ready_to_use == Some(true);
    record.creation_time = status.creation_time;
    record.restore_size = status.restore_size;
    let error = status.error.and_then(|error| error.message);
    record.error = error.map(|text| text.chars().take(ERROR).collect());
}

/// Whether a part is on record as one that does not exist.
pub(crate) fn is_missing(record: &ClaimSnapshot) -> bool {
    record.error.as_ref() == Some(&missing(record))
}

fn missing(record: &ClaimSnapshot) -> String {
    let name = &record.volume_snapshot_name;
    format!("VolumeSnapshot {name} does not exist")
}
