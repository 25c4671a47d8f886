//! Replica sets of the bench.
//!
//! Invariant: as for machines: a pass acts on what the stores show; no garbage collector runs.
//! Failure: panics with what was not there.

use crds::VirtualMachine;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{Bench, CLAIMS, VMS};
use crate::context::Key;
use crate::flow::Outcome;

pub(in crate::reconcile::vm::tests) const SETS: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachinereplicasets";

impl Bench {
    /// The set `web` with that many machines, with changes to its specification.
    pub(in crate::reconcile::vm::tests) fn set(&mut self, replicas: u32, changes: &Value) {
        let mut set = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineReplicaSet",
            "metadata": { "name": "web", "namespace": "ns" },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "className": "small", "imageName": "debian", "runStrategy": "Always" },
                },
            },
        });
        json_patch::merge(&mut set["spec"], changes);
        self.put(SETS, set);
        self.sync();
    }

    /// One pass over the set on what the stores show.
    pub(in crate::reconcile::vm::tests) async fn set_pass(&mut self) -> Outcome {
        let result = self.blind_set_pass().await;
        self.sync();
        result
    }

    /// The same; the stores do not show what it wrote.
    pub(in crate::reconcile::vm::tests) async fn blind_set_pass(&mut self) -> Outcome {
        let key = Key::new("ns", "web");
        Box::pin(crate::reconcile::replica_set::reconcile(&self.ctx, &key)).await
    }

    /// Passes over the set until one writes nothing; returns the last result. No pass waits until the
    /// status may be written again.
    pub(in crate::reconcile::vm::tests) async fn set_settles(&mut self) -> Outcome {
        for _ in 0..20 {
            self.ctx.shared.set_reports.forget(&Key::new("ns", "web"));
            let before = self.server.lock().unwrap().writes.len();
            let result = self.set_pass().await;
            if self.server.lock().unwrap().writes.len() == before {
                return result;
            }
        }
        panic!("never settles: {:?}", self.writes());
    }

    /// Passes over the set, of which the last one does not fail, until one writes nothing.
    pub(in crate::reconcile::vm::tests) async fn settled_set(&mut self) {
        let result = self.set_settles().await;
        assert!(result.is_ok(), "{result:?}");
    }

    /// Changes the specification of the set.
    pub(in crate::reconcile::vm::tests) fn edit_set(&mut self, change: &Value) {
        self.edit(SETS, "web", json!({ "spec": change }));
    }

    /// The machine has this state of `Ready`, since the beginning of the test.
    pub(in crate::reconcile::vm::tests) fn machine_is_ready(&mut self, name: &str, status: &str) {
        let ready = json!({
            "type": "Ready", "status": status, "reason": "Ready", "message": "",
            "lastTransitionTime": self.time(),
        });
        let change = json!({ "status": { "conditions": [ready] } });
        self.edit_unseen(VMS, name, change);
    }

    /// The watch shows this machine as it is, and no other change.
    pub(in crate::reconcile::vm::tests) fn see(&mut self, name: &str) {
        let vm: VirtualMachine = serde_json::from_value(self.get(VMS, name)).unwrap();
        self.feeds.vms.apply(Event::Apply(vm));
    }

    /// The same for the set.
    pub(in crate::reconcile::vm::tests) fn see_set(&mut self) {
        let set = serde_json::from_value(self.get(SETS, "web")).unwrap();
        self.feeds.replica_sets.apply(Event::Apply(set));
    }

    /// The same for a claim.
    pub(in crate::reconcile::vm::tests) fn see_claim(&mut self, name: &str) {
        let claim = serde_json::from_value(self.get(CLAIMS, name)).unwrap();
        self.feeds.claims.apply(Event::Apply(claim));
    }

    /// Names of all machines, in alphabetical order; those that are being deleted in brackets.
    pub(in crate::reconcile::vm::tests) fn machines(&self) -> String {
        let server = self.server.lock().unwrap();
        let machines = server.objects.iter().filter(|((of, _), _)| of == VMS);
        let names = machines.map(|((_, name), vm)| {
            if vm["metadata"]["deletionTimestamp"].is_null() {
                name.clone()
            } else {
                format!("({name})")
            }
        });
        names.collect::<Vec<_>>().join(" ")
    }

    /// Numbers in the status: all, ready, available, updated.
    pub(in crate::reconcile::vm::tests) fn numbers(&self) -> [u64; 4] {
        let status = &self.get(SETS, "web")["status"];
        let fields = [
            "replicas",
            "readyReplicas",
            "availableReplicas",
            "updatedReplicas",
        ];
        fields.map(|field| status[field].as_u64().unwrap())
    }

    /// Status, reason and message of a condition of the set; `-` without it.
    pub(in crate::reconcile::vm::tests) fn set_condition(&self, kind: &str) -> String {
        let set = self.get(SETS, "web");
        let all = set["status"]["conditions"].as_array().cloned();
        let all = all.unwrap_or_default();
        let found = all.iter().find(|one| one["type"] == kind);
        found.map_or("-".to_owned(), |found| {
            let text = |field: &str| found[field].as_str().unwrap().to_owned();
            format!("{} {} {}", text("status"), text("reason"), text("message"))
        })
    }
}
