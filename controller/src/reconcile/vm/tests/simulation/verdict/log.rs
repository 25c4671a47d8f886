//! What must hold on the way, in the events of the API server.
//!
//! Invariant: each event is looked at once, in order.
//! Failure: findings.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::users::SET;
use super::super::world::{World, name, uid};
use crate::reconcile::vm::tests::api::Shown;
use crate::reconcile::vm::tests::bench::{BACKUPS, SETS, SNAPSHOTS, VMS};

/// Kinds of task of which a machine has one at a time.
const ALONE: [&str; 3] = ["Snapshot", "Revert", "DeleteSnapshot"];
const ENDS: [&str; 3] = ["Success", "Error", "Cancelled"];

/// What is known by the events so far.
#[derive(Default)]
struct Known {
    /// Tasks that have not ended, by UID: the machine, and the name.
    open: BTreeMap<String, (String, String)>,
    /// Most machines that the set was ever to have.
    most_replicas: u64,
}

/// Looks at all events, without end.
pub(in super::super) async fn watch(world: Arc<World>) {
    let mut changes = world.changes();
    let mut known = Known::default();
    let mut at = 0;
    loop {
        let new = world.on_server(|state| {
            let log = state.log.as_deref().unwrap_or_default();
            let new = log[at..].to_vec();
            at = log.len();
            new
        });
        for shown in new {
            known.look_at(&world, &shown);
        }
        changes.changed().await;
    }
}

impl Known {
    fn look_at(&mut self, world: &World, shown: &Shown) {
        match shown.place.0.as_str() {
            VMS if shown.is_removed => check_disk(world, &shown.object),
            VMS => self.check_index(world, &shown.object),
            SNAPSHOTS if shown.is_removed => check_snapshot(world, &shown.object),
            BACKUPS if shown.is_removed => check_backup(world, &shown.object),
            SETS => {
                let replicas = shown.object["spec"]["replicas"].as_u64();
                self.most_replicas = self.most_replicas.max(replicas.unwrap_or_default());
            }
            collection if collection.ends_with("/virtualmachinetasks") => {
                self.check_task(world, shown);
            }
            _ => {}
        }
    }

    /// A set makes no machine beyond those that it was ever to have.
    fn check_index(&self, world: &World, vm: &Value) {
        let index = name(vm).strip_prefix(SET);
        let index = index.and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        if index.is_some_and(|index: u64| index >= self.most_replicas) {
            world.finding(&format!("the set makes {}", name(vm)));
        }
    }

    fn check_task(&mut self, world: &World, shown: &Shown) {
        let task = &shown.object;
        let spec = &task["spec"];
        let kind = spec["kind"].as_str().unwrap_or_default();
        if !ALONE.contains(&kind) {
            return;
        }
        let state = task["status"]["state"].as_str().unwrap_or_default();
        if shown.is_removed || ENDS.contains(&state) {
            self.open.remove(uid(task));
            return;
        }
        let machine = spec["vmUID"].as_str().unwrap_or_default();
        if self.open.contains_key(uid(task)) {
            return;
        }
        let mut open = self.open.values();
        if let Some((_, other)) = open.find(|(of, _)| of == machine) {
            let text = format!("{} is made beside {other}", name(task));
            world.finding(&text);
        }
        let entry = (machine.to_owned(), name(task).to_owned());
        self.open.insert(uid(task).to_owned(), entry);
    }
}

/// A snapshot goes after what its node has of it.
fn check_snapshot(world: &World, snapshot: &Value) {
    let disk = snapshot["status"]["diskUID"].as_str().unwrap_or_default();
    let nodes = world.look_at_nodes();
    let layers = nodes.layers(disk);
    if layers.is_some_and(|layers| layers.find(uid(snapshot)).is_some()) {
        let text = format!("{} has gone, and its node has it", name(snapshot));
        world.finding(&text);
    }
}

/// A backup goes after what the target has of it.
fn check_backup(world: &World, backup: &Value) {
    let is_kept = backup["spec"]["deletionPolicy"] == "Retain";
    let nodes = world.look_at_nodes();
    if !is_kept && nodes.target.has(uid(backup)) {
        let text = format!("{} has gone, and the target has it", name(backup));
        world.finding(&text);
    }
}

/// A machine goes after its disk.
fn check_disk(world: &World, vm: &Value) {
    if world.look_at_nodes().has_disk(uid(vm)) {
        let text = format!("{} has gone, and its disk has not", name(vm));
        world.finding(&text);
    }
}
