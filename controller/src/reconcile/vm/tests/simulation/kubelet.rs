//! The kubelets: pods that are bound to a node run there, and end.
//!
//! Invariant: a pod is over once nothing of it runs; the kubelet of a silent node neither learns nor
//! reports anything, and its guests run on.
//! Failure: a start that must not have been requested is a finding, and so is a panic.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crds::names;
use fastrand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::nodes::{End, Start};
use super::plan::Fault;
use super::signal::Changes;
use super::world::{World, is_deleting, some_time, uid};
use crate::reconcile::vm::observe::pods::INSTANCE;
use crate::reconcile::vm::tests::bench::{PODS, alive};

/// When nothing is planned.
const NEVER: Duration = Duration::from_hours(1000);

/// The pods of a node, without end.
pub(super) async fn run(world: Arc<World>, node: &'static str) {
    let mut known = BTreeSet::new();
    let mut running = JoinSet::new();
    let mut changes = world.changes();
    loop {
        for pod in world.all(PODS) {
            if pod["spec"]["nodeName"] == node && known.insert(uid(&pod).to_owned()) {
                let random = world.plan.random(&format!("pod {}", uid(&pod)));
                let world = Arc::clone(&world);
                let changes = world.changes();
                let run = Run {
                    world,
                    node,
                    pod,
                    random,
                    changes,
                };
                running.spawn(run.run_to_end());
            }
        }
        tokio::select! {
            biased;
            Some(ended) = running.join_next(), if !running.is_empty() => world.ended("a pod", ended),
            () = changes.changed() => {}
        }
    }
}

/// One pod.
struct Run {
    world: Arc<World>,
    node: &'static str,
    pod: Value,
    random: Rng,
    changes: Changes,
}

impl Run {
    async fn run_to_end(mut self) {
        sleep(some_time(&mut self.random, 50, 20_000)).await;
        if !self.start().await {
            return;
        }
        self.world.note(&format!("{} runs", uid(&self.pod)));
        self.reaches().await;
        self.report_running();
        let end = self.end().await;
        self.world
            .on_nodes(|nodes| nodes.remove_guest(uid(&self.pod)));
        self.world
            .note(&format!("{} ended: {end:?}", uid(&self.pod)));
        sleep(some_time(&mut self.random, 1, 2_000)).await;
        self.reaches().await;
        self.report_end(end);
    }

    fn is_instance(&self) -> bool {
        self.pod["metadata"]["labels"][names::POD_ROLE_LABEL] == INSTANCE
    }

    fn present(&self) -> Option<Value> {
        self.world.same(PODS, &self.pod)
    }

    /// Returns when the node reaches the API server.
    async fn reaches(&mut self) {
        while !self.world.look_at_nodes().reports(self.node) {
            self.changes.changed().await;
        }
    }

    /// Whether it was started; else it is over, or gone.
    async fn start(&mut self) -> bool {
        loop {
            self.reaches().await;
            let Some(pod) = self.present() else {
                return false;
            };
            if is_deleting(&pod) {
                let status = json!({ "status": { "phase": "Failed" } });
                self.world.edit(PODS, &self.pod, &status);
                return false;
            }
            if !self.is_instance() {
                return true;
            }
            let annotations = &pod["metadata"]["annotations"];
            let disk = annotations[names::VM_DISK].as_str().unwrap_or_default();
            let resumes = annotations[names::RESTORE] == "true";
            let started = {
                let mut nodes = self.world.look_at_nodes();
                nodes.start(uid(&self.pod), self.node, disk, resumes)
            };
            match started {
                Start::Runs => {
                    self.world.on_nodes(|_| ());
                    return true;
                }
                Start::Waits => self.changes.changed().await,
                Start::Refused(why) => {
                    self.world.finding(&why);
                    return false;
                }
            }
        }
    }

    fn report_running(&self) {
        let now = self.world.time();
        let status = json!({ "status": {
            "phase": "Running",
            "podIPs": [{ "ip": "10.1.0.7" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{
                "name": "vm", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": now } },
            }],
        }});
        self.world.edit(PODS, &self.pod, &status);
        if self.is_instance() {
            let facts = json!({ names::GUEST_FACTS: alive().to_string() });
            let facts = json!({ "metadata": { "annotations": facts } });
            self.world.edit(PODS, &self.pod, &facts);
        }
    }

    fn report_end(&self, end: End) {
        let now = self.world.time();
        let phase = if end.code == 0 { "Succeeded" } else { "Failed" };
        let status = json!({ "status": {
            "phase": phase,
            "conditions": [{ "type": "Ready", "status": "False" }],
            "containerStatuses": [{
                "name": "vm", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": {
                    "exitCode": end.code, "reason": end.reason, "startedAt": now, "finishedAt": now,
                }},
            }],
        }});
        self.world.edit(PODS, &self.pod, &status);
    }

    /// When and how it ends: by itself, by a task, or because its object is deleted.
    async fn end(&mut self) -> End {
        let ends_itself = self.is_instance() && self.random.u8(..3) == 0;
        let planned = if ends_itself {
            some_time(&mut self.random, 5_000, 600_000)
        } else {
            NEVER
        };
        let how = [End::SHUTDOWN, End::CRASHED][self.random.usize(..2)];
        let mut planned = Instant::now() + planned;
        loop {
            if let Some(end) = self.world.look_at_nodes().end(uid(&self.pod)) {
                return end;
            }
            if self.world.look_at_nodes().reports(self.node) {
                match self.present() {
                    None => return End::STOPPED,
                    Some(pod) if is_deleting(&pod) => return self.stop(&pod).await,
                    Some(_) => {}
                }
            }
            tokio::select! {
                biased;
                () = self.changes.changed() => {}
                () = sleep_until(planned) => {
                    if self.world.has(Fault::Guests) {
                        return how;
                    }
                    planned += NEVER;
                }
            }
        }
    }

    /// Its guest has the time that the deletion gives it.
    async fn stop(&mut self, pod: &Value) -> End {
        let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
        let grace = grace.unwrap_or_default().min(120) * 1000;
        sleep(some_time(&mut self.random, 1, grace.max(1))).await;
        let end = self.world.look_at_nodes().end(uid(&self.pod));
        end.unwrap_or(End::STOPPED)
    }
}
