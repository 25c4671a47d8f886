//! Backups of the bench, and their schedules.
//!
//! Invariant: as for machines: a pass acts on what the stores show.
//! Failure: panics with what was not there.

use crds::names;
use serde_json::{Value, json};

use super::{Bench, TASKS, VMS};
use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::{backup, backup_schedule};

pub(in crate::reconcile::vm::tests) const BACKUPS: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachinebackups";
pub(in crate::reconcile::vm::tests) const SCHEDULES: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachinebackupschedules";
const KINDS: [&str; 4] = ["Backup", "VerifyBackup", "DeleteBackup", "RestoreBackup"];

impl Bench {
    /// The agent of a node reports that it makes backups, to these targets.
    pub(in crate::reconcile::vm::tests) fn reaches(&mut self, node: &str, targets: &[&str]) {
        let targets = targets
            .iter()
            .map(|name| format!("{}{name}", names::BACKUP_TARGET));
        let mut features: Vec<_> = targets.collect();
        features.push(names::DISK_BACKUPS.to_owned());
        let facts = json!({ "daemon": { "taskKinds": KINDS }, "features": features });
        self.agent_reports(node, &facts);
    }

    /// The same, and it keeps backups in claims.
    pub(in crate::reconcile::vm::tests) fn keeps_claims(&mut self, node: &str) {
        let features = [names::DISK_BACKUPS, names::BACKUP_CLAIMS];
        let facts = json!({ "daemon": { "taskKinds": KINDS }, "features": features });
        self.agent_reports(node, &facts);
    }

    /// A machine that is off, with its disk on node `n1`, which reaches the target `default`; returns its UID.
    pub(in crate::reconcile::vm::tests) fn with_disk(&mut self, name: &str) -> String {
        self.agents(&["n1"]);
        self.reaches("n1", &["default"]);
        let halted = json!({ "spec": { "runStrategy": "Halted" } });
        let uid = self.machine_named(name, halted);
        let created = json!({
            "type": "VirtualMachineCreated", "status": "True", "reason": "Provisioned", "message": "",
            "lastTransitionTime": "2027-01-01T00:00:00Z",
        });
        let status = json!({
            "nodeName": "n1", "powerState": "PoweredOff", "image": "registry.example/debian:12",
            "conditions": [created],
        });
        self.edit(VMS, name, json!({ "status": status }));
        uid
    }

    /// A backup of the machine `vm`; returns its UID.
    pub(in crate::reconcile::vm::tests) fn backup(&mut self, name: &str, spec: &Value) -> String {
        let mut backup = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackup",
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "vmName": "vm", "target": "default" },
        });
        json_patch::merge(&mut backup["spec"], spec);
        let made = self.put(BACKUPS, backup);
        self.sync();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// One pass over the backup on what the stores show.
    pub(in crate::reconcile::vm::tests) async fn backup_pass(&mut self, name: &str) -> Outcome {
        let key = Key::new("ns", name);
        let result = Box::pin(backup::reconcile(&self.ctx, &key)).await;
        self.sync();
        result
    }

    /// Passes over the backup, of which none fails, until one writes nothing.
    pub(in crate::reconcile::vm::tests) async fn backup_settles(&mut self, name: &str) {
        for _ in 0..20 {
            let before = self.server.lock().unwrap().writes.len();
            let result = self.backup_pass(name).await;
            assert!(result.is_ok(), "{result:?}");
            if self.server.lock().unwrap().writes.len() == before {
                return;
            }
        }
        panic!("never settles: {:?}", self.writes());
    }

    /// One pass over the schedule `nightly`.
    pub(in crate::reconcile::vm::tests) async fn schedule_pass(&mut self) -> Outcome {
        let key = Key::new("ns", "nightly");
        let result = Box::pin(backup_schedule::reconcile(&self.ctx, &key)).await;
        self.sync();
        result
    }

    /// A pass over the schedule, which does not fail.
    pub(in crate::reconcile::vm::tests) async fn scheduled(&mut self) {
        let result = self.schedule_pass().await;
        assert!(result.is_ok(), "{result:?}");
    }

    /// The node has made the requested backup; `parent`: the UID of the one that it builds upon.
    pub(in crate::reconcile::vm::tests) fn node_backs_up(&mut self, parent: Option<&str>) {
        let now = self.time();
        let backup = json!({
            "full": parent.is_none(), "fullReason": "it is the first one", "parentUID": parent,
            "storedBytes": 3 << 20, "readBytes": 4 << 20, "virtualBytes": 10 << 20,
            "manifestSHA256": "a".repeat(64), "running": true, "createdTime": now,
        });
        self.backup_task_ends("Backup", &json!({ "state": "Success", "backup": backup }));
    }

    /// The open task of that kind ends so.
    pub(in crate::reconcile::vm::tests) fn backup_task_ends(&mut self, kind: &str, end: &Value) {
        let now = self.time();
        let all = self.tasks(kind);
        let is_open = |task: &&Value| task["status"]["completionTime"].is_null();
        let task = all.iter().find(is_open).unwrap();
        let name = task["metadata"]["name"].as_str().unwrap().to_owned();
        let mut status = json!({
            "completionTime": now, "startTime": now, "transient": false, "message": "said the node",
        });
        json_patch::merge(&mut status, end);
        self.edit(TASKS, &name, json!({ "status": status }));
    }

    /// A complete backup of the machine `vm`; returns its UID.
    pub(in crate::reconcile::vm::tests) async fn backed_up(
        &mut self,
        name: &str,
        parent: Option<&str>,
    ) -> String {
        let uid = self.backup(name, &json!({}));
        self.backup_settles(name).await;
        self.node_backs_up(parent);
        self.backup_settles(name).await;
        assert_eq!(self.backup_condition(name, "Ready"), "True/Ready");
        uid
    }

    /// Status and reason of a condition, less what all types begin with.
    pub(in crate::reconcile::vm::tests) fn backup_condition(
        &self,
        name: &str,
        kind: &str,
    ) -> String {
        let found = self.condition_of_backup(name, kind);
        let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
        let reason = text("reason");
        let reason = reason.trim_start_matches("VirtualMachineBackup");
        format!("{}/{reason}", text("status"))
    }

    /// The message of a condition.
    pub(in crate::reconcile::vm::tests) fn backup_message(&self, name: &str, kind: &str) -> String {
        let found = self.condition_of_backup(name, kind);
        found["message"].as_str().unwrap_or_default().to_owned()
    }

    fn condition_of_backup(&self, name: &str, kind: &str) -> Value {
        let backup = self.get(BACKUPS, name);
        let all = backup["status"]["conditions"].as_array();
        let mut all = all.into_iter().flatten();
        let kind = format!("VirtualMachineBackup{kind}");
        let found = all.find(|one| one["type"] == kind.as_str());
        found.cloned().unwrap_or_default()
    }

    /// Deletes a backup, as a user does.
    pub(in crate::reconcile::vm::tests) fn delete_backup(&mut self, name: &str) {
        let now = self.time();
        let deleted = json!({ "metadata": { "deletionTimestamp": now } });
        self.edit(BACKUPS, name, deleted);
    }
}
