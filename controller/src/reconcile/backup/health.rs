//! Which backups a machine can be restored from, as far as verifications have shown.
//!
//! Invariant: pure. A damage lasts until a later verification finds the backup whole: one that is on its way says nothing.
//! What builds upon a damaged backup is damaged, too.
//! Failure: none; a parent without an object is taken for whole, since nothing is known of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::conditions::{BACKUP_READY, BACKUP_VERIFIED};
use crds::{BackupPlace, VirtualMachineBackup};
use kube::ResourceExt;

use super::verify::DAMAGED;

/// What is known of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It is not complete.
    Incomplete,
    /// It is complete, and is to be verified first.
    Unverified,
    /// A machine can be restored from it.
    Good,
    /// It, or what it builds upon, is not as it was made.
    Damaged,
}

/// The health of a backup among all of its machine.
pub(crate) fn health(backup: &VirtualMachineBackup, all: &[Arc<VirtualMachineBackup>]) -> Health {
    if !backup.is_completed() {
        return Health::Incomplete;
    }
    if is_damaged(backup) || ancestors(backup, all).any(is_damaged) {
        return Health::Damaged;
    }
    let status = backup.status.as_ref();
    let is_verified = status.is_some_and(|status| status.verification.is_some());
    if backup.spec.verify && !is_verified {
        return Health::Unverified;
    }
    Health::Good
}

/// Whether a verification has found it damaged, and none since has found it whole.
fn is_damaged(backup: &VirtualMachineBackup) -> bool {
    [BACKUP_READY, BACKUP_VERIFIED].iter().any(|kind| {
        let found = backup.condition(kind);
        found.is_some_and(|found| found.status == "False" && found.reason == DAMAGED)
    })
}

/// The backups that one builds upon, from the nearest one on. Objects that name each other in a circle end it.
pub(crate) fn ancestors<'a>(
    backup: &'a VirtualMachineBackup,
    all: &'a [Arc<VirtualMachineBackup>],
) -> impl Iterator<Item = &'a VirtualMachineBackup> {
    let mut seen: BTreeSet<&str> = backup.metadata.uid.as_deref().into_iter().collect();
    let mut next = parent(backup);
    std::iter::from_fn(move || {
        let uid = next.take().filter(|uid| seen.insert(uid))?;
        let found = all
            .iter()
            .find(|one| one.metadata.uid.as_deref() == Some(uid))?;
        next = parent(found);
        Some(&**found)
    })
}

/// UID of the backup that one builds upon.
fn parent(backup: &VirtualMachineBackup) -> Option<&str> {
    let parent = backup.status.as_ref()?.parent.as_ref()?;
    Some(&parent.uid)
}

/// Whether the next backup of a disk to a target is to be of the whole disk, since what it would build upon is damaged.
pub(super) fn needs_full(
    all: &[Arc<VirtualMachineBackup>],
    disk_uid: &str,
    place: BackupPlace<'_>,
) -> bool {
    let of_disk = all.iter().filter(|backup| {
        let status = backup.status.as_ref();
        let uid = status.and_then(|status| status.disk_uid.as_deref());
        uid == Some(disk_uid) && backup.spec.place() == place && backup.is_completed()
    });
    let made = |backup: &VirtualMachineBackup| {
        let status = backup.status.as_ref();
        let time = status.and_then(|status| status.creation_time.as_ref());
        (time.map(|time| time.0), backup.name_any())
    };
    let newest = of_disk.max_by_key(|backup| made(backup));
    newest.is_some_and(|newest| health(newest, all) == Health::Damaged)
}
