//! The agents of the nodes, and their daemons: they do what tasks request.
//!
//! Invariant: the effect of a task comes once, after it was reported as running and before its end is; a task
//! without its object has no effect any more.
//! Failure: as scheduled, before the effect; what must not have been requested is a finding, and so is
//! a panic.

use std::collections::BTreeSet;
use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::nodes::{End, Nodes};
use super::plan::Fault;
use super::world::{World, is_deleting, name, some_time, uid};
use crate::reconcile::vm::tests::bench::{SYSTEM_TASKS, TASKS, VMS};

/// The tasks of a node, without end.
pub(super) async fn run(world: Arc<World>, node: &'static str) {
    let mut known = BTreeSet::new();
    let mut running = JoinSet::new();
    let mut changes = world.changes();
    loop {
        for collection in [TASKS, SYSTEM_TASKS] {
            for task in world.all(collection) {
                let is_new = task["spec"]["nodeName"] == node;
                if is_new && known.insert(uid(&task).to_owned()) {
                    let random = world.plan.random(&format!("task {}", uid(&task)));
                    let run = Run {
                        world: Arc::clone(&world),
                        node,
                        collection,
                        task,
                        random,
                        changes: world.changes(),
                    };
                    running.spawn(run.run_to_end());
                }
            }
        }
        tokio::select! {
            biased;
            Some(ended) = running.join_next(), if !running.is_empty() => world.ended("a task", ended),
            changed = changes.changed() => changed.unwrap(),
        }
    }
}

/// One task.
struct Run {
    world: Arc<World>,
    node: &'static str,
    collection: &'static str,
    task: Value,
    random: Rng,
    changes: watch::Receiver<()>,
}

impl Run {
    async fn run_to_end(mut self) {
        sleep(some_time(&mut self.random, 1, 2_000)).await;
        self.reaches().await;
        let running = json!({ "status": { "state": "Running", "progressPercent": 1 } });
        self.world.edit(self.collection, &self.task, &running);
        sleep(some_time(&mut self.random, 10, 20_000)).await;
        let present = self.world.same(self.collection, &self.task);
        let Some(task) = present.filter(|task| !is_deleting(task)) else {
            return;
        };
        let result = self.work(&task);
        let what = format!("{} {result:?}", name(&task));
        self.world.note(&what);
        sleep(some_time(&mut self.random, 1, 2_000)).await;
        self.reaches().await;
        let mut status = json!({
            "state": "Success", "transient": false, "message": "", "progressPercent": 100,
            "completionTime": self.world.time(),
        });
        if let Err(change) = result {
            json_patch::merge(&mut status, &change);
        }
        let status = json!({ "status": status });
        self.world.edit(self.collection, &task, &status);
    }

    async fn reaches(&mut self) {
        while !self.world.look_at_nodes().reports(self.node) {
            self.changes.changed().await.unwrap();
        }
    }

    /// The effect, or what is reported instead of success.
    fn work(&mut self, task: &Value) -> Result<(), Value> {
        if task["spec"]["cancel"] == true {
            return Err(json!({ "state": "Cancelled" }));
        }
        if self.world.has(Fault::Tasks) && self.random.u8(..5) == 0 {
            let transient = self.random.bool();
            return Err(json!({ "state": "Error", "transient": transient, "message": "no" }));
        }
        let disk = task["spec"]["vmUID"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let kind = task["spec"]["kind"].as_str().unwrap_or_default().to_owned();
        let done = self.world.on_nodes(|nodes| match kind.as_str() {
            "Provision" => nodes.make_disk(self.node, &disk),
            "DeleteDisk" => nodes.delete_disk(&disk),
            _ => {
                power(nodes, &kind, task, &disk);
                Ok(())
            }
        });
        if kind == "DeleteDisk" {
            self.check_deletion(&disk);
        }
        done.map_err(|finding| {
            self.world.finding(&finding);
            json!({ "state": "Error", "message": finding })
        })
    }

    /// Only a machine that is being deleted loses its disk.
    fn check_deletion(&self, disk: &str) {
        let all = self.world.all(VMS);
        if let Some(vm) = all.iter().find(|vm| uid(vm) == disk && !is_deleting(vm)) {
            let text = format!("the disk of {} is deleted, which is not", name(vm));
            self.world.finding(&text);
        }
    }
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
