//! The storage class of the root disk.
//!
//! Invariant: an empty class means a disk local to the node, which needs nothing.
//! Failure: a class that does not exist, one without the claim that it would serve, or a root claim
//! with a file system.

use super::{Missing, Pass};

pub(super) fn check(pass: &Pass<'_>) -> Result<(), Missing> {
    root_is_block(pass)?;
    let class = pass.vm.spec.storage_class.as_deref().unwrap_or_default();
    if class.is_empty() {
        return Ok(());
    }
    match pass.ctx.stores.storage_class(class) {
        None => {
            let message = format!("storage class {class} does not exist");
            Err(Missing::new("NotFound", message))
        }
        Some(_) if pass.root_claim().is_none() => Err(Missing::new(
            "Invalid",
            "a root disk in a storage class needs a volume with root: true; name its claim or a \
             dataVolumeTemplate",
        )),
        Some(_) => Ok(()),
    }
}

/// A guest boots from a block device; a claim that does not exist yet is waited for elsewhere.
fn root_is_block(pass: &Pass<'_>) -> Result<(), Missing> {
    let disks = crate::reconcile::vm::prerequisites::volumes::disks(pass);
    match disks.iter().find(|disk| disk.is_root && disk.is_filesystem) {
        Some(disk) => {
            let message = format!(
                "claim {} has a file system: the root disk needs a claim with volumeMode Block",
                disk.claim
            );
            Err(Missing::new("Invalid", message))
        }
        None => Ok(()),
    }
}
