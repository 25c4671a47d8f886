//! Snapshots in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use crds::conditions::SNAPSHOT_CREATED;
use serde_json::Value;

use super::super::world::{World, condition, is_deleting, name, uid};
use crate::reconcile::vm::observe::snapshots::CREATION_FAILED;
use crate::reconcile::vm::tests::bench::{SNAPSHOTS, VMS};

/// What objects show is what nodes have, and nothing is on its way.
pub(super) fn check(world: &World) -> Result<(), String> {
    let snapshots = world.all(SNAPSHOTS);
    for vm in world.all(VMS) {
        check_machine(world, &vm, &snapshots)?;
    }
    for snapshot in &snapshots {
        if is_deleting(snapshot) {
            return Err(format!("{} is still there: {snapshot}", name(snapshot)));
        }
        let created = condition(snapshot, SNAPSHOT_CREATED);
        let is_over = created["status"] == "True" || created["reason"] == CREATION_FAILED;
        let machine = snapshot["spec"]["vmName"].as_str().unwrap_or_default();
        if !is_over && world.get(VMS, machine).is_some() {
            let status = &snapshot["status"];
            return Err(format!("{} is not taken: {status}", name(snapshot)));
        }
    }
    Ok(())
}

fn check_machine(world: &World, vm: &Value, snapshots: &[Value]) -> Result<(), String> {
    let nodes = world.look_at_nodes();
    let Some(layers) = nodes.layers(uid(vm)) else {
        return Ok(());
    };
    let current = vm["status"]["currentSnapshot"]["uid"].as_str();
    if current != layers.current() {
        let found = layers.current();
        return Err(format!(
            "the disk of {} descends from {found:?}, and not from {current:?}",
            name(vm)
        ));
    }
    for snapshot in snapshots {
        let status = &snapshot["status"];
        let is_taken = condition(snapshot, SNAPSHOT_CREATED)["status"] == "True";
        if !is_taken || status["diskUID"] != uid(vm) {
            continue;
        }
        let Some(layer) = layers.find(uid(snapshot)) else {
            return Err(format!("{} is lost: {status}", name(snapshot)));
        };
        let parent = status["parent"]["uid"].as_str();
        let is_same =
            parent == layer.parent.as_deref() && (status["memory"] == true) == layer.has_memory;
        if !is_same {
            return Err(format!("{} is {layer:?}: {status}", name(snapshot)));
        }
    }
    let mut left = layers.uids();
    let is_known = |wanted: &&String| snapshots.iter().any(|one| uid(one) == wanted.as_str());
    match left.find(|wanted| !is_known(wanted)) {
        Some(left) => Err(format!("snapshot {left} of {} is left", name(vm))),
        None => Ok(()),
    }
}
