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
use crate::reconcile::vm::prerequisites::{self, bytes, quantity};

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

/// What a pod that is built now requests of its node for the disk; `None`: nothing.
pub(crate) fn request(pass: &Pass<'_>) -> Option<Quantity> {
    let percent = i128::from(pass.ctx.config.machines.disk_request_percent);
    if pass.root_claim().is_some() || percent == 0 {
        return None;
    }
    let known = recorded(pass).or_else(|| of_image(pass));
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
