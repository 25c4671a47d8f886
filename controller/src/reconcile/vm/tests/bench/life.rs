//! What scheduler, kubelet and agent do for a machine of a test, up to the state that the test begins with.
//!
//! Invariant: they write what the real ones write, and nothing else.
//! Failure: panics with what was not there.

use serde_json::{Value, json};

use super::{Bench, PODS, SYSTEM_TASKS, TASKS, VMS};

impl Bench {
    /// A machine whose root disk is to be created by a task that no agent has started.
    pub(in crate::reconcile::vm::tests) async fn provisioning(&mut self, changes: Value) -> String {
        let uid = self.machine(changes);
        self.settle().await.ok();
        self.placeholder_is_bound("vm", "n1");
        self.settle().await.ok();
        self.placeholder_runs("vm");
        self.settle().await.ok();
        uid
    }

    /// A machine whose root disk is ready, without a running pod yet.
    pub(in crate::reconcile::vm::tests) async fn created(&mut self, changes: Value) -> String {
        let uid = Box::pin(self.provisioning(changes)).await;
        self.task_ends("Provision", "Success");
        self.pass().await.ok();
        uid
    }

    /// A machine that runs.
    pub(in crate::reconcile::vm::tests) async fn running(&mut self, changes: Value) -> String {
        let uid = Box::pin(self.booting(changes)).await;
        self.facts(alive());
        self.settle().await.ok();
        self.writes();
        self.events();
        uid
    }

    /// A machine whose guest has shown no sign of life yet.
    pub(in crate::reconcile::vm::tests) async fn booting(&mut self, changes: Value) -> String {
        let uid = self.created(changes).await;
        self.settle().await.ok();
        self.run("n1");
        self.settle().await.ok();
        self.writes();
        self.events();
        uid
    }

    /// The scheduler binds a pod.
    pub(in crate::reconcile::vm::tests) fn bind(&mut self, pod: &str, node: &str) {
        self.edit(
            PODS,
            pod,
            json!({ "spec": { "nodeName": node }, "status": { "phase": "Pending" } }),
        );
    }

    fn placeholder_name(&self, vm: &str) -> String {
        let uid = self.get(VMS, vm)["metadata"]["uid"].clone();
        format!(
            "{vm}-placeholder-of-virtual-machine-{}",
            uid.as_str().unwrap()
        )
    }

    /// The pod that holds the place of a machine.
    pub(in crate::reconcile::vm::tests) fn placeholder(&self, vm: &str) -> Option<Value> {
        self.try_get(PODS, &self.placeholder_name(vm))
    }

    pub(in crate::reconcile::vm::tests) fn placeholder_is_bound(&mut self, vm: &str, node: &str) {
        let name = self.placeholder_name(vm);
        self.bind(&name, node);
    }

    /// kubelet has removed it.
    pub(in crate::reconcile::vm::tests) fn placeholder_is_gone(&mut self, vm: &str) {
        let name = self.placeholder_name(vm);
        self.remove(PODS, &name);
        self.sync();
    }

    /// The image is there.
    pub(in crate::reconcile::vm::tests) fn placeholder_runs(&mut self, vm: &str) {
        let name = self.placeholder_name(vm);
        let node = self.get(PODS, &name)["spec"]["nodeName"].clone();
        self.pod_runs(&name, node.as_str().unwrap());
    }

    /// The machine's pod is bound and runs.
    pub(in crate::reconcile::vm::tests) fn run(&mut self, node: &str) {
        self.pod_runs("vm", node);
    }

    fn pod_runs(&mut self, pod: &str, node: &str) {
        let now = self.time();
        self.edit(
            PODS,
            pod,
            json!({
                "spec": { "nodeName": node },
                "status": {
                    "phase": "Running",
                    "podIPs": [{ "ip": "10.1.0.7" }],
                    "conditions": [{ "type": "Ready", "status": "True" }],
                    "containerStatuses": [{
                        "name": "vm", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "state": { "running": { "startedAt": now } },
                    }],
                },
            }),
        );
    }

    /// A pod's container ends.
    pub(in crate::reconcile::vm::tests) fn end(&mut self, pod: &str, code: i32, reason: &str) {
        let now = self.time();
        let old = self.get(PODS, pod);
        let state = "/status/containerStatuses/0/state/running/startedAt";
        let started = old.pointer(state).cloned().unwrap_or(json!(now));
        self.edit(
            PODS,
            pod,
            json!({ "status": {
                "phase": if code == 0 { "Succeeded" } else { "Failed" },
                "conditions": [{ "type": "Ready", "status": "False" }],
                "containerStatuses": [{
                    "name": "vm", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": {
                        "exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now,
                    }},
                }],
            }}),
        );
    }

    /// The node's agent reports how all tasks of a kind that are not over ended.
    pub(in crate::reconcile::vm::tests) fn task_ends(&mut self, kind: &str, state: &str) {
        let now = self.time();
        for task in self.tasks(kind) {
            let old = task["status"]["state"].as_str().unwrap_or_default();
            if !matches!(old, "Success" | "Error" | "Cancelled") {
                let name = task["metadata"]["name"].as_str().unwrap().to_owned();
                let is_own = task["metadata"]["namespace"] == "ns";
                self.edit(
                    if is_own { TASKS } else { SYSTEM_TASKS },
                    &name,
                    json!({ "status": {
                        "state": state, "transient": false, "message": "said the node",
                        "completionTime": now, "progressPercent": 0,
                    }}),
                );
            }
        }
    }

    /// The agent publishes facts about the guest.
    pub(in crate::reconcile::vm::tests) fn facts(&mut self, facts: Value) {
        self.edit(
            PODS,
            "vm",
            json!({ "metadata": { "annotations": {
                "vmlet.dev/guest-facts": facts.to_string(),
            }}}),
        );
    }
}

/// Facts of a guest that has booted.
pub(in crate::reconcile::vm::tests) fn alive() -> Value {
    json!({ "power": "On", "agent": "Connected" })
}
