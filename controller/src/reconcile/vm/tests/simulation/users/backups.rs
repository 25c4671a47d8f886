//! Backups, made and deleted.
//!
//! Invariant: none.
//! Failure: none of its own.

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::watches::TARGET;
use super::super::world::{World, is_deleting, uid};
use super::{MACHINES, create, delete, object, set};
use crate::reconcile::vm::tests::bench::BACKUPS;

pub(super) fn change(world: &World, random: &mut Rng) {
    let backup = format!("b{}", random.usize(..5));
    let machine = MACHINES[random.usize(..MACHINES.len())];
    match world.get(BACKUPS, &backup) {
        None => {
            let mode = ["Incremental", "Incremental", "Full"][random.usize(..3)];
            let spec = json!({ "vmName": machine, "target": TARGET, "mode": mode });
            create(
                world,
                BACKUPS,
                object("VirtualMachineBackup", &backup, spec),
            );
        }
        Some(found) if random.u8(..4) == 0 => {
            set(
                world,
                BACKUPS,
                &found,
                &json!({ "deletionPolicy": "Retain" }),
            );
        }
        Some(_) => delete(world, BACKUPS, &backup),
    }
}

/// What builds upon a backup may stay in the target without an object: the object of that backup can go without
/// its data, as its condition says.
pub(super) fn decide(world: &World) {
    // One that goes without its data may build upon another one.
    while let Some(backup) = built_upon(world) {
        let retained = json!({ "deletionPolicy": "Retain" });
        set(world, BACKUPS, &backup, &retained);
    }
}

/// A backup that is being deleted with its data, upon which data without an object build.
fn built_upon(world: &World) -> Option<Value> {
    let backups = world.all(BACKUPS);
    let is_staying = |wanted: &str| {
        let mut all = backups.iter();
        let found = all.find(|one| uid(one) == wanted);
        found.is_some_and(|one| !is_leaving(one))
    };
    let nodes = world.look_at_nodes();
    let mut open = backups.iter().filter(|one| is_deleting(one));
    let found = open.find(|one| {
        let mut children = nodes.target.children(uid(one));
        !is_leaving(one) && children.any(|child| !is_staying(child))
    });
    found.cloned()
}

/// Whether its object goes, and its data do not.
fn is_leaving(backup: &Value) -> bool {
    is_deleting(backup) && backup["spec"]["deletionPolicy"] == "Retain"
}
