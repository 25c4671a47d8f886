//! Groups of the bench.
//!
//! Invariant: as for machines: a pass acts on what the stores show.
//! Failure: panics with what was not there.

use serde_json::{Value, json};

use super::{Bench, VMS};
use crate::context::Key;
use crate::flow::Outcome;

pub(in crate::reconcile::vm::tests) const GROUPS: &str =
    "apis/vmlet.dev/v1alpha1/namespaces/ns/virtualmachinegroups";

impl Bench {
    pub(in crate::reconcile::vm::tests) fn group(&mut self, name: &str, spec: Value) -> String {
        let group = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineGroup",
            "metadata": { "name": name, "namespace": "ns" }, "spec": spec,
        });
        let made = self.put(GROUPS, group);
        self.sync();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// One pass over a group on what the stores show.
    pub(in crate::reconcile::vm::tests) async fn group_pass(&mut self, name: &str) -> Outcome {
        let key = Key::new("ns", name);
        let result = Box::pin(crate::reconcile::group::reconcile(&self.ctx, &key)).await;
        self.sync();
        result
    }

    /// Passes over a group until one writes nothing; returns the last result. No pass waits until the
    /// status may be written again.
    pub(in crate::reconcile::vm::tests) async fn group_settles(&mut self, name: &str) -> Outcome {
        let key = Key::new("ns", name);
        for _ in 0..10 {
            self.ctx.shared.reports.forget(&key);
            let before = self.server.lock().unwrap().writes.len();
            let result = self.group_pass(name).await;
            if self.server.lock().unwrap().writes.len() == before {
                return result;
            }
        }
        panic!("never settles: {:?}", self.writes());
    }

    /// Passes over a group, of which none fails, until one writes nothing.
    pub(in crate::reconcile::vm::tests) async fn settled(&mut self, name: &str) {
        let result = self.group_settles(name).await;
        assert!(result.is_ok(), "{result:?}");
    }

    /// Status, reason and message of a condition of the group.
    pub(in crate::reconcile::vm::tests) fn group_condition(&self, name: &str) -> String {
        let group = self.get(GROUPS, name);
        condition(&group["status"]["conditions"], "Ready")
    }

    /// The same of a member of the group.
    pub(in crate::reconcile::vm::tests) fn member(
        &self,
        name: &str,
        member: &str,
        kind: &str,
    ) -> String {
        let group = self.get(GROUPS, name);
        let all = group["status"]["members"].as_array().cloned();
        let all = all.unwrap_or_default();
        let found = all.iter().find(|one| one["name"] == member);
        let found = found.unwrap_or_else(|| panic!("no member {member}: {group}"));
        condition(&found["conditions"], kind)
    }

    /// An annotation of a machine, `-` without it.
    pub(in crate::reconcile::vm::tests) fn annotation(&self, vm: &str, key: &str) -> String {
        let annotations = &self.get(VMS, vm)["metadata"]["annotations"];
        annotations[key].as_str().unwrap_or("-").to_owned()
    }
}

fn condition(all: &Value, kind: &str) -> String {
    let mut all = all.as_array().into_iter().flatten();
    let found = all.find(|one| one["type"] == kind);
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    found.map_or_else(
        || "-".to_owned(),
        |one| {
            let message = text(one, "message");
            format!("{}/{} {message}", text(one, "status"), text(one, "reason"))
                .trim_end()
                .to_owned()
        },
    )
}
