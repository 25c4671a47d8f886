//! Snapshots, taken, deleted and reverted to.
//!
//! Invariant: `currentSnapshotName` changes when the API server lets it change.
//! Failure: a revert that never ends is a finding.

use std::time::Duration;

use crds::conditions::{REVERT_IN_PROGRESS, REVERT_SUCCEEDED, SNAPSHOT_CREATED};
use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::verdict::LONGEST;
use super::super::world::{World, condition, is_deleting, name};
use super::{MACHINES, create, delete, object, set};
use crate::reconcile::vm::tests::bench::{SNAPSHOTS, VMS};

/// For so long reverts have time to end while something goes wrong.
const PATIENCE: Duration = Duration::from_mins(10);

pub(super) fn change(world: &World, random: &mut Rng) {
    let snapshot = format!("s{}", random.usize(..5));
    let machine = MACHINES[random.usize(..MACHINES.len())];
    match (random.u8(..10), world.get(SNAPSHOTS, &snapshot)) {
        (0..=4, None) => {
            let memory = random.u8(..3) == 0;
            let spec = json!({ "vmName": machine, "memory": memory });
            create(
                world,
                SNAPSHOTS,
                object("VirtualMachineSnapshot", &snapshot, spec),
            );
        }
        (0..=2, Some(_)) => delete(world, SNAPSHOTS, &snapshot),
        (3, _) => name_snapshot(world, machine, None),
        _ => revert(world, random),
    }
}

/// To one that was taken, of any machine.
fn revert(world: &World, random: &mut Rng) {
    let mut all = world.all(SNAPSHOTS);
    all.retain(|one| condition(one, SNAPSHOT_CREATED)["status"] == "True");
    if all.is_empty() {
        return;
    }
    let chosen = &all[random.usize(..all.len())];
    let machine = chosen["spec"]["vmName"].as_str().unwrap_or_default();
    name_snapshot(world, machine, Some(name(chosen)));
}

fn name_snapshot(world: &World, machine: &str, snapshot: Option<&str>) {
    let vm = world.get(VMS, machine);
    if let Some(vm) = vm.filter(is_changeable) {
        set(world, VMS, &vm, &json!({ "currentSnapshotName": snapshot }));
    }
}

/// As the definition of the kind says it.
fn is_changeable(vm: &Value) -> bool {
    let reverts = condition(vm, REVERT_SUCCEEDED)["reason"] == REVERT_IN_PROGRESS;
    !reverts || vm["status"]["snapshotRevert"]["phase"] == "Restoring"
}

/// Waits until no machine reverts, and lets none begin: the end of a revert replaces what its owner desires.
pub(super) async fn end_reverts(world: &World) {
    let begun = Instant::now();
    loop {
        let mut reverting = world.all(VMS);
        reverting.retain(|vm| {
            let is_named = !vm["spec"]["currentSnapshotName"].is_null();
            let is_begun = !vm["status"]["snapshotRevert"].is_null();
            (is_named || is_begun) && !is_deleting(vm)
        });
        let Some(first) = reverting.first() else {
            return;
        };
        if begun.elapsed() > PATIENCE + LONGEST {
            let text = format!(
                "a revert of {} never ends: {}",
                name(first),
                first["status"]
            );
            return world.finding(&text);
        }
        if begun.elapsed() > PATIENCE {
            world.calm_down();
        }
        for vm in &reverting {
            let is_named = !vm["spec"]["currentSnapshotName"].is_null();
            if is_named && is_changeable(vm) {
                set(world, VMS, vm, &json!({ "currentSnapshotName": null }));
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}
