//! The storage class of the root disk.
//!
//! Invariant: an empty class means a disk local to the node, which needs nothing.
//! Failure: a class that does not exist, a claim that cannot be made in it, or a block device that is to
//! be mounted.

use super::{Missing, Pass};

pub(super) fn check(pass: &Pass<'_>) -> Result<(), Missing> {
    mounts_are_file_systems(pass)?;
    let class = pass.vm.spec.storage_class.as_deref().unwrap_or_default();
    if class.is_empty() {
        return Ok(());
    }
    match pass.ctx.stores.storage_class(class) {
        None => {
            let message = format!("storage class {class} does not exist");
            Err(Missing::new("NotFound", message))
        }
        Some(class) => super::root_claim::check(pass, &class),
    }
}

/// A claim that does not exist yet is waited for elsewhere.
fn mounts_are_file_systems(pass: &Pass<'_>) -> Result<(), Missing> {
    let disks = super::volumes::disks(pass);
    let is_wrong = |disk: &&super::Disk| disk.mount_path.is_some() && disk.is_block;
    match disks.iter().find(is_wrong) {
        Some(disk) => {
            let message = format!(
                "claim {} is a block device: mountPath needs a claim with volumeMode Filesystem",
                disk.claim
            );
            Err(Missing::new("Invalid", message))
        }
        None => Ok(()),
    }
}
