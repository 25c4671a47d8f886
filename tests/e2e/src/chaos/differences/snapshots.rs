//! Whether each snapshot is taken, or says why not, and is exactly what the node of its disk has.
//!
//! Invariant: a snapshot that waits is accepted only for a reason that lasts.
//! Failure: none; the object is in the line.

use std::collections::{BTreeMap, BTreeSet};

use nodeapi::v1::Disk;
use serde_json::Value;

use super::{Expected, Mode, Nodes, Objects, backups, text};
use crate::chaos::desired::Promotion;
use crate::machines::condition;

const CREATED: &str = "VirtualMachineSnapshotCreated";
const READY: &str = "VirtualMachineSnapshotReady";
/// Why a snapshot is always refused, in words of the controller and of the node.
const REFUSED: [&str; 2] = ["the machine is suspended", "no longer exists"];

pub(super) fn compare(wrong: &mut Vec<String>, expected: &Expected, seen: &Objects, nodes: &Nodes) {
    let mut recorded: BTreeSet<&str> = BTreeSet::new();
    for snapshot in &seen.snapshots {
        let uid = text(&snapshot["metadata"]["uid"]);
        let is_on_node = nodes.listed.iter().any(|disk| has(disk, uid));
        if let Some(why) = difference(snapshot, expected, seen, is_on_node) {
            wrong.push(format!("{why}: {snapshot}"));
        }
        recorded.insert(uid);
    }
    for disk in &nodes.listed {
        let all = disk.snapshots.iter();
        let unknown: Vec<_> = all
            .filter(|one| !recorded.contains(one.uid.as_str()))
            .map(|one| &one.uid)
            .collect();
        if !unknown.is_empty() {
            let uid = &disk.vm_uid;
            wrong.push(format!(
                "disk {uid} has snapshots without an object: {unknown:?}"
            ));
        }
    }
    wrong.extend(layers(seen, nodes));
}

/// Whether a machine is to be a clone of a snapshot that went with its own machine before it was copied.
pub(super) fn is_clone_of_nothing(vm: &Value, seen: &Objects, nodes: &Nodes) -> bool {
    let Some(source) = vm["spec"]["source"]["snapshot"]["name"].as_str() else {
        return false;
    };
    let mut names = seen.snapshots.iter().map(|one| &one["metadata"]["name"]);
    let has_disk = nodes.disks.contains_key(text(&vm["metadata"]["uid"]));
    !has_disk && !names.any(|name| name == source)
}

fn has(disk: &Disk, uid: &str) -> bool {
    disk.snapshots.iter().any(|one| one.uid == uid)
}

/// What is wrong with a snapshot.
fn difference(
    snapshot: &Value,
    expected: &Expected,
    seen: &Objects,
    is_on_node: bool,
) -> Option<&'static str> {
    let machine = text(&snapshot["spec"]["vmName"]);
    let desired = expected.machines.get(machine);
    let vm = seen.machines.get(machine);
    let disk = text(&snapshot["status"]["diskUID"]);
    let is_present = vm.is_some_and(|vm| text(&vm["metadata"]["uid"]) == disk);
    let created = condition(snapshot, CREATED);
    let is_created = created["status"] == "True";
    let message = text(&created["message"]);
    if !snapshot["metadata"]["deletionTimestamp"].is_null() {
        // No layer below saved memory is merged.
        let word = vm.map_or("", |vm| text(&vm["status"]["printableStatus"]));
        let is_due = word != "Suspended" || !is_present;
        return is_due.then_some("a deleted snapshot is not removed");
    }
    if is_created {
        let ready = condition(snapshot, READY);
        if !is_present {
            return Some("a snapshot of a disk that no longer exists");
        }
        if ready["status"] != "True" {
            return Some("a snapshot is not ready");
        }
        return (!is_on_node).then_some("no node has the snapshot");
    }
    if created["reason"] == "VirtualMachineSnapshotCreationFailed" {
        let is_expected = REFUSED.iter().any(|words| message.contains(words));
        return (!is_expected).then_some("a snapshot failed");
    }
    // It waits.
    let is_gone = vm.is_none() && desired.is_none_or(|desired| desired.mode == Mode::Gone);
    let is_flattened_first = desired.is_some_and(|one| one.promotion == Promotion::Offline)
        && message.contains("is flattened first");
    (!is_gone && !is_flattened_first).then_some("a snapshot is not taken")
}

/// A disk without snapshots and backups has one file. Each snapshot has one layer, so has the last backup; a deleted
/// one that two others descend from keeps its own, and so does a backup that another program reads.
fn layers(seen: &Objects, nodes: &Nodes) -> Vec<String> {
    let listed: BTreeMap<_, _> = nodes.listed.iter().map(|d| (&d.vm_uid, d)).collect();
    let mut wrong = Vec::new();
    for (uid, files) in &nodes.disks {
        let snapshots = listed.get(uid).map_or(0, |disk| disk.snapshots.len());
        let backups = backups::kept(seen, uid);
        if files.layers > 2 * (snapshots + backups) {
            wrong.push(format!(
                "disk {uid} has {} files of layers, {snapshots} snapshots and {backups} layers of backups",
                files.layers
            ));
        }
    }
    wrong
}
