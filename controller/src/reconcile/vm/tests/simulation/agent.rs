//! The agents of the nodes, and their daemons: they do what tasks request.
//!
//! Invariant: the effect of a task comes once, after it was reported as running and before its end is; a task
//! without its object has no effect any more. Tasks of a machine are worked on in the order in which they came,
//! but for those that a daemon works on beside others.
//! Failure: as scheduled, before the effect; what must not have been requested is a finding, and so is
//! a panic.

mod effects;
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::effects::{Refusal, effect};
use self::turns::{Turn, Turns};
use super::plan::Fault;
use super::signal::Changes;
use super::world::{World, is_deleting, name, some_time, uid};
use crate::reconcile::vm::tests::bench::{SYSTEM_TASKS, TASKS};

/// Kinds of tasks for which no other one waits.
const BESIDE: [&str; 4] = ["Promote", "DeleteSnapshot", "Backup", "DeleteBackup"];

/// The tasks of a node, without end.
pub(super) async fn run(world: Arc<World>, node: &'static str) {
    let mut known = BTreeSet::new();
    let mut running = JoinSet::new();
    let mut changes = world.changes();
    let turns = Turns::default();
    loop {
        for (collection, task) in new_tasks(&world, node, &mut known) {
            let kind = task["spec"]["kind"].as_str().unwrap_or_default();
            let machine = task["spec"]["vmUID"].as_str().unwrap_or_default();
            let random = world.plan.random(&format!("task {}", uid(&task)));
            let run = Run {
                world: Arc::clone(&world),
                node,
                collection,
                turn: turns.take(machine, BESIDE.contains(&kind)),
                task,
                random,
                changes: world.changes(),
            };
            running.spawn(run.run_to_end());
        }
        tokio::select! {
            biased;
            Some(ended) = running.join_next(), if !running.is_empty() => {
                world.ended("a task", ended);
                world.wake();
            }
            () = changes.changed() => {}
        }
    }
}

/// Tasks of the node that were not known, in the order of their creation.
fn new_tasks(
    world: &World,
    node: &str,
    known: &mut BTreeSet<String>,
) -> Vec<(&'static str, Value)> {
    let all = [TASKS, SYSTEM_TASKS].into_iter().flat_map(|collection| {
        let found = world.all(collection).into_iter();
        found.map(move |task| (collection, task))
    });
    let is_new = |(_, task): &(_, Value)| {
        task["spec"]["nodeName"] == node && known.insert(uid(task).to_owned())
    };
    let mut new: Vec<_> = all.filter(is_new).collect();
    // UIDs count up.
    new.sort_by(|(_, a), (_, b)| uid(a).cmp(uid(b)));
    new
}

/// One task.
struct Run {
    world: Arc<World>,
    node: &'static str,
    collection: &'static str,
    turn: Turn,
    task: Value,
    random: Rng,
    changes: Changes,
}

impl Run {
    async fn run_to_end(mut self) {
        sleep(some_time(&mut self.random, 1, 2_000)).await;
        if !self.begins().await {
            return;
        }
        let now = self.world.time();
        let running = json!({ "status": {
            "state": "Running", "progressPercent": 1, "startTime": now,
        } });
        self.world.edit(self.collection, &self.task, &running);
        sleep(some_time(&mut self.random, 10, 20_000)).await;
        let Some(task) = self.present() else {
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
        let change = result.unwrap_or_else(|failure| failure);
        json_patch::merge(&mut status, &change);
        let status = json!({ "status": status });
        self.world.edit(self.collection, &task, &status);
    }

    fn present(&self) -> Option<Value> {
        let found = self.world.same(self.collection, &self.task);
        found.filter(|task| !is_deleting(task))
    }

    /// Waits for its turn; false: its object has gone before that.
    async fn begins(&mut self) -> bool {
        while !self.turn.has_come() {
            if self.present().is_none() {
                return false;
            }
            self.changes.changed().await;
        }
        self.reaches().await;
        true
    }

    async fn reaches(&mut self) {
        while !self.world.look_at_nodes().reports(self.node) {
            self.changes.changed().await;
        }
    }

    /// The effect: what is reported with its success, or instead of that.
    fn work(&mut self, task: &Value) -> Result<Value, Value> {
        if task["spec"]["cancel"] == true {
            return Err(json!({ "state": "Cancelled" }));
        }
        if self.world.has(Fault::Tasks) && self.random.u8(..5) == 0 {
            let transient = self.random.bool();
            return Err(json!({ "state": "Error", "transient": transient, "message": "no" }));
        }
        effect(&self.world, self.node, task).map_err(|refusal| {
            let why = match refusal {
                Refusal::Expected(why) => why,
                Refusal::Finding(why) => {
                    self.world.finding(&why);
                    why
                }
            };
            json!({ "state": "Error", "transient": true, "message": why })
        })
    }
}
