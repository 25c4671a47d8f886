//! Whether each backup is made, or says why not, and whether a deleted one is gone.
//!
//! Invariant: a backup that waits, or stays though it is deleted, is accepted only for a reason that lasts.
//! Failure: none; the object is in the line.

use serde_json::Value;

use super::{Expected, Mode, Objects, text};
use crate::machines::condition;

const COMPLETED: &str = "VirtualMachineBackupCompleted";
const READY: &str = "VirtualMachineBackupReady";
/// Why a backup is always refused, in words of the controller.
const REFUSED: &str = "no longer exists";
/// The base of the next backup, and one before it that is not merged yet.
const MOST_LAYERS: usize = 2;

pub(super) fn compare(wrong: &mut Vec<String>, expected: &Expected, seen: &Objects) {
    for backup in &seen.backups {
        if let Some(why) = difference(backup, expected, seen) {
            wrong.push(format!("{why}: {backup}"));
        }
    }
}

/// Layers that a node may keep of a disk for its backups.
pub(super) fn kept(seen: &Objects, disk: &str) -> usize {
    let all = seen.backups.iter();
    let of_disk = all.filter(|one| text(&one["status"]["diskUID"]) == disk);
    let kept = of_disk.filter(|one| is_completed(one) && one["status"]["baseReleased"] != true);
    kept.count().min(MOST_LAYERS)
}

fn is_completed(backup: &Value) -> bool {
    condition(backup, COMPLETED)["status"] == "True"
}

/// What is wrong with a backup.
fn difference(backup: &Value, expected: &Expected, seen: &Objects) -> Option<&'static str> {
    let machine = text(&backup["spec"]["vmName"]);
    let vm = seen.machines.get(machine);
    // Its disk lacks what is in its memory, and no layer below that is merged.
    let is_suspended = vm.is_some_and(|vm| text(&vm["status"]["printableStatus"]) == "Suspended");
    if !backup["metadata"]["deletionTimestamp"].is_null() {
        let is_due = !is_suspended && !is_built_upon(backup, seen);
        return is_due.then_some("a deleted backup is not removed");
    }
    let completed = condition(backup, COMPLETED);
    if completed["status"] == "True" {
        let is_ready = condition(backup, READY)["status"] == "True";
        return (!is_ready).then_some("a backup is not ready");
    }
    if completed["reason"] == "VirtualMachineBackupFailed" {
        let is_expected = text(&completed["message"]).contains(REFUSED);
        return (!is_expected).then_some("a backup failed");
    }
    // It waits.
    let desired = expected.machines.get(machine);
    let is_gone = vm.is_none() && desired.is_none_or(|desired| desired.mode == Mode::Gone);
    (!is_gone && !is_suspended).then_some("a backup is not made")
}

/// Whether a later backup needs it.
fn is_built_upon(backup: &Value, seen: &Objects) -> bool {
    let name = &backup["metadata"]["name"];
    let mut later = seen.backups.iter();
    later.any(|one| one["status"]["parent"]["name"] == *name)
}
