//! Snapshots of the bench.
//!
//! Invariant: as for machines: a pass acts on what the stores show.
//! Failure: panics with what was not there.

use crds::names;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{Bench, TASKS};

pub(in crate::reconcile::vm::tests) const SNAPSHOTS: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachinesnapshots";

impl Bench {
    /// The leases are listed, and node `n1` takes snapshots.
    pub(in crate::reconcile::vm::tests) fn snapshotting(&mut self) {
        self.agents(&["n1"]);
        let kinds = ["Snapshot", "Revert", "DeleteSnapshot"];
        self.agent("n1", &json!({ "taskKinds": kinds }));
    }

    /// The same, with the memory of guests.
    pub(in crate::reconcile::vm::tests) fn saving_memory(&mut self) {
        self.agents(&["n1"]);
        let kinds = ["Snapshot", "Revert", "DeleteSnapshot"];
        let features = [names::MEMORY_SNAPSHOTS];
        let facts = json!({ "daemon": { "taskKinds": kinds }, "features": features });
        self.agent_reports("n1", &facts);
    }

    /// Node `n1` has guests freeze for claims, too.
    pub(in crate::reconcile::vm::tests) fn freezing(&mut self) {
        let kinds = ["Snapshot", "Revert", "DeleteSnapshot", "Freeze"];
        self.agent("n1", &json!({ "taskKinds": kinds }));
    }

    /// Passes, of which none fails, until one writes nothing.
    pub(in crate::reconcile::vm::tests) async fn settles(&mut self) {
        let result = self.settle().await;
        assert!(result.is_ok(), "{result:?}");
    }

    /// A snapshot of the machine `vm`; returns its UID.
    pub(in crate::reconcile::vm::tests) fn snapshot(&mut self, name: &str, spec: Value) -> String {
        let mut snapshot = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
            "metadata": { "name": name, "namespace": "ns" }, "spec": { "vmName": "vm" },
        });
        json_patch::merge(&mut snapshot["spec"], &spec);
        let made = self.put(SNAPSHOTS, snapshot);
        self.sync();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The watch of snapshots shows this one as it is now, and no other object.
    pub(in crate::reconcile::vm::tests) fn see_snapshot(&mut self, name: &str) {
        let snapshot = serde_json::from_value(self.get(SNAPSHOTS, name)).unwrap();
        self.feeds.snapshots.apply(Event::Apply(snapshot));
    }

    /// The watch of snapshots does not show this one until the next write.
    pub(in crate::reconcile::vm::tests) fn hide_snapshot(&mut self, name: &str) {
        let snapshot = serde_json::from_value(self.get(SNAPSHOTS, name)).unwrap();
        self.feeds.snapshots.apply(Event::Delete(snapshot));
    }

    /// The same as [`Self::snapshot`], taken by the node of a machine that runs.
    pub(in crate::reconcile::vm::tests) async fn taken(&mut self, name: &str) -> String {
        let uid = self.snapshot(name, json!({}));
        self.settle().await.ok();
        self.node_takes(true);
        self.settle().await.ok();
        let created = self.snapshot_condition(name, "Created");
        assert_eq!(created, "True/Created");
        uid
    }

    /// The node has taken the requested snapshot.
    pub(in crate::reconcile::vm::tests) fn node_takes(&mut self, running: bool) {
        self.node_takes_with(running, 0);
    }

    /// The same, with so many bytes of memory.
    pub(in crate::reconcile::vm::tests) fn node_takes_with(&mut self, running: bool, memory: u64) {
        let now = self.time();
        let open = |task: &Value| task["status"]["state"].is_null();
        let all = self.tasks("Snapshot");
        let task = all.iter().find(|task| open(task)).unwrap();
        let name = task["metadata"]["name"].as_str().unwrap().to_owned();
        let status = json!({
            "state": "Success", "completionTime": now, "snapshot": {
                "quiesced": false, "running": running, "virtualBytes": 10 << 20,
                "usedBytes": 3 << 20, "createdTime": now, "memoryBytes": memory,
            },
        });
        self.edit(TASKS, &name, json!({ "status": status }));
    }

    /// Status and reason of a condition, less what all types begin with.
    pub(in crate::reconcile::vm::tests) fn snapshot_condition(
        &self,
        name: &str,
        kind: &str,
    ) -> String {
        let found = self.condition_of(name, kind);
        let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
        let reason = text("reason");
        let reason = reason.trim_start_matches("VirtualMachineSnapshot");
        format!("{}/{reason}", text("status"))
    }

    /// The message of a condition.
    pub(in crate::reconcile::vm::tests) fn snapshot_message(
        &self,
        name: &str,
        kind: &str,
    ) -> String {
        let found = self.condition_of(name, kind);
        found["message"].as_str().unwrap_or_default().to_owned()
    }

    fn condition_of(&self, name: &str, kind: &str) -> Value {
        let snapshot = self.get(SNAPSHOTS, name);
        let all = snapshot["status"]["conditions"].as_array();
        let mut all = all.into_iter().flatten();
        let kind = format!("VirtualMachineSnapshot{kind}");
        let found = all.find(|one| one["type"] == kind.as_str());
        found.cloned().unwrap_or_default()
    }

    /// Deletes a snapshot, as a user does.
    pub(in crate::reconcile::vm::tests) fn delete_snapshot(&mut self, name: &str) {
        self.mark_deleted(name);
        self.sync();
    }

    /// The same, of one that a finalizer keeps; only the watch of snapshots shows it.
    pub(in crate::reconcile::vm::tests) fn delete_snapshot_ahead(&mut self, name: &str) {
        self.mark_deleted(name);
        self.see_snapshot(name);
    }

    fn mark_deleted(&mut self, name: &str) {
        let now = self.time();
        let deleted = json!({ "metadata": { "deletionTimestamp": now } });
        self.edit_unseen(SNAPSHOTS, name, deleted);
    }
}
