//! What a node keeps of a disk for its backups.
//!
//! Invariant: pure. Until the object of a backup is gone, or has no finalizer of ours, its node may keep something.
//! Failure: none.

use crds::VirtualMachineBackup;
use crds::names::BACKUP_FINALIZER;
use kube::ResourceExt;

/// What a node keeps for a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// What the backup is made of, for as long as it is being made.
    Content,
    /// The layer that the next backup is based on.
    Layer,
}

/// What the node of a backup may keep for it, if anything.
pub(crate) fn kept(backup: &VirtualMachineBackup) -> Option<Kept> {
    let mut finalizers = backup.finalizers().iter();
    if !finalizers.any(|finalizer| finalizer == BACKUP_FINALIZER) {
        return None;
    }
    if backup.is_completed() {
        return (!is_released(backup)).then_some(Kept::Layer);
    }
    backup.is_open().then_some(Kept::Content)
}

/// Whether a later backup took its place, and was deleted.
fn is_released(backup: &VirtualMachineBackup) -> bool {
    let status = backup.status.as_ref();
    status.is_some_and(|status| status.base_released)
}
