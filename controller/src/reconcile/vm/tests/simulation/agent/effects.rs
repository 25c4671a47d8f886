//! What daemons do for tasks.
//!
//! Invariant: each effect can be repeated; what a daemon itself refuses is refused here.
//! Failure: [`Refusal`].

use serde_json::{Value, json};

use crate::reconcile::vm::tests::bench::{BACKUPS, NODES, SNAPSHOTS, VMS};
use crate::reconcile::vm::tests::simulation::nodes::{End, Nodes};
use crate::reconcile::vm::tests::simulation::world::{World, is_deleting, name, uid};

/// Why a task has no effect.
pub(super) enum Refusal {
    /// It must not have been requested.
    Finding(String),
    /// The controller cannot know, and the daemon looks for that.
    Expected(String),
}

/// Works on a task; returns what its status says beside its success.
pub(super) fn effect(world: &World, node: &str, task: &Value) -> Result<Value, Refusal> {
    let spec = &task["spec"];
    let kind = spec["kind"].as_str().unwrap_or_default();
    let disk = spec["vmUID"].as_str().unwrap_or_default();
    let done = |()| json!({});
    match kind {
        "Provision" => {
            let made = world.on_nodes(|nodes| nodes.make_disk(node, disk));
            made.map(done).map_err(Refusal::Finding)
        }
        "DeleteDisk" => {
            let deleted = world.on_nodes(|nodes| nodes.delete_disk(disk));
            check_deletion(world, disk);
            deleted.map(done).map_err(Refusal::Finding)
        }
        "Snapshot" => snapshot(world, disk, &spec["snapshot"]),
        "Revert" => {
            let wanted = &spec["snapshot"];
            let memory = wanted["memory"] == true;
            let reverted = world.on_nodes(|nodes| nodes.revert(disk, text(wanted, "uid"), memory));
            reverted.map(done).map_err(Refusal::Finding)
        }
        "DeleteSnapshot" => {
            let wanted = text(&spec["snapshot"], "uid");
            is_to_go(world, SNAPSHOTS, wanted)?;
            world.on_nodes(|nodes| nodes.delete_snapshot(disk, wanted));
            Ok(json!({}))
        }
        "Backup" => backup(world, disk, &spec["backup"]),
        "DeleteBackup" => {
            let wanted = text(&spec["backup"], "uid");
            is_to_go(world, BACKUPS, wanted)?;
            let removed = world.on_nodes(|nodes| nodes.target.remove(wanted));
            removed.map(done).map_err(Refusal::Expected)
        }
        "InspectImage" => Ok(json!({ "image": {
            "format": "qcow2", "virtualBytes": 1 << 30, "fileBytes": 1 << 20, "bootable": true,
        } })),
        "PullImage" => {
            pull(world, node, text(spec, "image"));
            Ok(json!({}))
        }
        _ => {
            world.on_nodes(|nodes| power(nodes, kind, task, disk));
            Ok(json!({}))
        }
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// What is not running has ended already.
fn power(nodes: &mut Nodes, kind: &str, task: &Value, disk: &str) {
    match kind {
        "GuestShutdown" => _ = nodes.end_guest(disk, End::SHUTDOWN),
        "PowerOff" => _ = nodes.end_guest(disk, End::STOPPED),
        "Save" => _ = nodes.save(disk),
        "Restore" if task["spec"]["discard"] == true => nodes.discard(disk),
        _ => {}
    }
}

/// Only a machine that is being deleted loses its disk.
fn check_deletion(world: &World, disk: &str) {
    let all = world.all(VMS);
    if let Some(vm) = all.iter().find(|vm| uid(vm) == disk && !is_deleting(vm)) {
        let text = format!("the disk of {} is deleted, which is not", name(vm));
        world.finding(&text);
    }
}

/// Only what is being deleted, or was, goes.
fn is_to_go(world: &World, collection: &str, wanted: &str) -> Result<(), Refusal> {
    let all = world.all(collection);
    let mut stay = all.iter().filter(|one| !is_deleting(one));
    match stay.find(|one| uid(one) == wanted) {
        Some(one) => Err(Refusal::Finding(format!(
            "what {} stands for is deleted, and that is not",
            name(one)
        ))),
        None => Ok(()),
    }
}

fn snapshot(world: &World, disk: &str, wanted: &Value) -> Result<Value, Refusal> {
    let memory = wanted["memory"] == true;
    let taken = world.on_nodes(|nodes| nodes.take_snapshot(disk, text(wanted, "uid"), memory));
    let why = || Refusal::Expected("there is no such disk, or no memory".to_owned());
    let taken = taken.ok_or_else(why)?;
    let bytes = if taken.has_memory { 1 << 20 } else { 0 };
    Ok(json!({ "snapshot": {
        "quiesced": false, "running": taken.is_of_running, "virtualBytes": 1 << 30,
        "usedBytes": 1 << 20, "memoryBytes": bytes, "createdTime": world.time(),
    } }))
}

fn backup(world: &World, disk: &str, wanted: &Value) -> Result<Value, Refusal> {
    let is_full = wanted["full"] == true;
    let runs = world.look_at_nodes().guests_with(disk) > 0;
    let made = world.on_nodes(|nodes| {
        let is_there = nodes.has_disk(disk);
        is_there.then(|| nodes.target.make(disk, text(wanted, "uid"), is_full))
    });
    let why = || Refusal::Expected("there is no such disk".to_owned());
    let made = made.ok_or_else(why)?;
    Ok(json!({ "backup": {
        "full": made.parent.is_none(), "parentUID": made.parent, "running": runs,
        "storedBytes": 1 << 20, "readBytes": 1 << 20, "virtualBytes": 1 << 30,
        "manifestSHA256": "a".repeat(64), "createdTime": world.time(),
    } }))
}

/// The node has the image, and kubelet says so.
fn pull(world: &World, node: &str, image: &str) {
    let Some(object) = world.get(NODES, node) else {
        return;
    };
    let mut images = object["status"]["images"].as_array().cloned();
    let images = images.get_or_insert_default();
    if images.iter().any(|one| one["names"][0] == image) {
        return;
    }
    images.push(json!({ "names": [image], "sizeBytes": 1 }));
    world.edit(NODES, &object, &json!({ "status": { "images": images } }));
}
