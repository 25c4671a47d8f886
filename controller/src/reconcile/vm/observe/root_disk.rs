//! Size of a root disk that is a file on a node, which the pods of its machine request.
//!
//! Invariant: the recorded size is that of the disk, and never shrinks; a larger capacity in the
//! specification counts from the start that makes the disk larger.
//! Failure: none; while no node has read the image, the capacity in the specification is all that
//! is known.

use crds::vm::StorageStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::pods;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Image, bytes, quantity};

/// Records the size of a disk that exists, as far as it is known.
pub(crate) fn record(pass: &mut Pass<'_>) {
    if pass.root_claim().is_some() {
        if let Some(storage) = &mut pass.status().storage {
            storage.requested = None;
        }
        return;
    }
    let runs = pass.view.pod.as_deref().is_some_and(|p| !pods::is_over(p));
    let there = recorded(pass);
    let Some(known) = there.or_else(|| of_image(pass)) else {
        return;
    };
    // The disk of a machine that runs grows at the next start.
    let grows = capacity(pass).filter(|_| there.is_none() || !runs);
    let size = grows.map_or(known, |capacity| capacity.max(known));
    if there != Some(size) {
        let storage = pass.status().storage.get_or_insert_default();
        storage.requested = Some(quantity(size));
    }
}

/// Records the size of a disk that is to be a copy of one of this size. Whether it was another one.
pub(crate) fn record_source(pass: &mut Pass<'_>, source: Option<i128>) -> bool {
    match source.max(capacity(pass)) {
        Some(size) => set(pass, Some(size)),
        None => false,
    }
}

/// Records the size of a disk that is about to be made from an image that follows a tag: it may not know
/// the version any more when the disk is there. What an attempt with another version or image has recorded ends.
/// Whether it was another size.
pub(crate) fn record_version(pass: &mut Pass<'_>, image: &Image) -> bool {
    let object = image.object.as_ref();
    let follows_tag = object.is_some_and(|object| object.update().is_some());
    if !follows_tag && recorded(pass).is_none() {
        return false;
    }
    let size = image.virtual_bytes.max(capacity(pass));
    set(pass, size)
}

/// There is no disk, and the next one may be of another image.
pub(crate) fn forget(pass: &mut Pass<'_>) {
    set(pass, None);
}

fn set(pass: &mut Pass<'_>, size: Option<i128>) -> bool {
    let is_another = size != recorded(pass);
    if is_another {
        let storage = pass.status().storage.get_or_insert_default();
        storage.requested = size.map(quantity);
    }
    is_another
}

/// What a pod that is built now requests of its node for the disk; `None`: nothing.
pub(crate) fn request(pass: &Pass<'_>) -> Option<Quantity> {
    let percent = i128::from(pass.ctx.config.machines.disk_request_percent);
    if pass.root_claim().is_some() || percent == 0 {
        return None;
    }
    let recorded = recorded(pass);
    let known = if pass.is_created() {
        recorded.or_else(|| of_image(pass))
    } else {
        // What was begun for another version of the image says nothing about this one.
        of_image(pass).or(recorded)
    };
    let size = known.max(capacity(pass))?;
    Some(quantity(size.checked_mul(percent)?.div_euclid(100)))
}

/// Size of a disk that is made now, in bytes; `None` while that is not known.
pub(crate) fn size(pass: &Pass<'_>) -> Option<i128> {
    of_image(pass).max(capacity(pass))
}

fn recorded(pass: &Pass<'_>) -> Option<i128> {
    let storage: &StorageStatus = pass.seen()?.storage.as_ref()?;
    storage.requested.as_ref().and_then(bytes)
}

fn of_image(pass: &Pass<'_>) -> Option<i128> {
    prerequisites::image(pass)?.virtual_bytes
}

fn capacity(pass: &Pass<'_>) -> Option<i128> {
    pass.vm.spec.boot_disk_capacity.as_ref().and_then(bytes)
}
