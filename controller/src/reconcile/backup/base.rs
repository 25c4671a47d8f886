//! Marks backups whose layer the node of the disk keeps no more.
//!
//! ```text
//! objects                 node
//! A, B                    keeps the layer of B, since B is complete
//! A, B is being deleted   has merged it
//! A, marked; B            the same
//! A, marked               the same
//! ```
//!
//! Invariant: a node keeps the layer of the last complete backup alone, so that a mark is true of each earlier one of the
//! disk, whatever follows. It is written before the object goes that shows which one was the last.
//! Failure: a conflict repeats the pass.

use crds::{VirtualMachineBackup, VirtualMachineBackupStatus};
use k8s_openapi::jiff::Timestamp;

use super::pass::Pass;
use super::write;
use crate::flow::Outcome;

/// A node has removed the backup, and merged its layer.
pub(super) async fn release_earlier(pass: &Pass<'_>) -> Outcome<()> {
    if !pass.backup.is_completed() {
        return Ok(());
    }
    for earlier in pass.ctx.stores.backups_of(&pass.machine()) {
        if !is_earlier(&earlier, &pass.draft) {
            continue;
        }
        let status = VirtualMachineBackupStatus {
            base_released: true,
            ..earlier.status.clone().unwrap_or_default()
        };
        write::apply_status(pass.ctx, &*earlier, &status).await?;
    }
    Ok(())
}

/// Whether a backup of the same disk without a mark was complete before the one with this status.
fn is_earlier(backup: &VirtualMachineBackup, later: &VirtualMachineBackupStatus) -> bool {
    let Some(status) = backup.status.as_ref().filter(|_| backup.is_completed()) else {
        return false;
    };
    let is_of_disk = status.disk_uid.is_some() && status.disk_uid == later.disk_uid;
    let is_before = made(status)
        .zip(made(later))
        .is_some_and(|(one, other)| one < other);
    is_of_disk && is_before && !status.base_released
}

fn made(status: &VirtualMachineBackupStatus) -> Option<Timestamp> {
    status.creation_time.as_ref().map(|time| time.0)
}
