//! What the API server knows of a chaos run.
//!
//! Invariant: one read of all kinds; an object of the namespace `default` that the run did not make shows.
//! Failure: what kubectl says.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

use crate::Cluster;

/// The kinds that a run makes or causes.
pub(super) const KINDS: &str =
    "vm,pods,virtualmachinetasks,vmsnap,vmbackup,vmbackupschedule,vmg,vmrs";

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) machines: BTreeMap<String, Value>,
    pub(super) pods: BTreeSet<String>,
    /// Tasks that have not ended, as text.
    pub(super) tasks: Vec<String>,
    pub(super) snapshots: Vec<Value>,
    pub(super) backups: Vec<Value>,
    pub(super) groups: Vec<Value>,
    pub(super) sets: Vec<Value>,
}

impl Objects {
    pub(super) fn read(cluster: &Cluster) -> Result<Self> {
        let mut list = cluster.get_json(&[KINDS])?;
        let mut found = Self::default();
        for object in list["items"].as_array_mut().context("items")? {
            found.add(object.take());
        }
        Ok(found)
    }

    pub(super) fn add(&mut self, mut object: Value) {
        let name = text(&object["metadata"]["name"]).to_owned();
        match text(&object["kind"]) {
            "VirtualMachine" => {
                if let Some(meta) = object["metadata"].as_object_mut() {
                    meta.remove("managedFields");
                    meta.remove("annotations");
                }
                self.machines.insert(name, object);
            }
            "Pod" => {
                self.pods.insert(name);
            }
            "VirtualMachineSnapshot" => self.snapshots.push(object),
            "VirtualMachineBackup" => self.backups.push(object),
            "VirtualMachineGroup" => self.groups.push(object),
            "VirtualMachineReplicaSet" => self.sets.push(object),
            "VirtualMachineTask" if is_open(&object) => {
                self.tasks.push(format!("open task {object}"));
            }
            _ => {}
        }
    }

    /// Machines whose next start is later than `limit`.
    pub(super) fn starts_after(&self, limit: Timestamp) -> impl Iterator<Item = &str> {
        let waits = move |vm: &Value| {
            let retry = &vm["status"]["startFailure"]["retryAfterTimestamp"];
            let retry = text(retry).parse::<Timestamp>();
            retry.is_ok_and(|retry| retry > limit)
        };
        let machines = self.machines.iter();
        let waiting = machines.filter(move |(_, vm)| waits(vm));
        waiting.map(|(name, _)| name.as_str())
    }
}

fn is_open(task: &Value) -> bool {
    let state = text(&task["status"]["state"]);
    !["Success", "Error", "Cancelled"].contains(&state)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_back_off_is_distinguished_from_a_short_one() {
        let now = Timestamp::now();
        let mut objects = Objects::default();
        for (name, seconds) in [("long", 3600), ("short", 1)] {
            let retry = (now + Duration::from_secs(seconds)).to_string();
            objects.add(json!({
                "kind": "VirtualMachine", "metadata": { "name": name },
                "status": { "startFailure": { "retryAfterTimestamp": retry } },
            }));
        }
        objects.add(json!({ "kind": "VirtualMachine", "metadata": { "name": "well" } }));
        let late = now + Duration::from_secs(20);
        let late: Vec<_> = objects.starts_after(late).collect();
        assert_eq!(late, ["long"]);
    }

    #[test]
    fn only_tasks_that_have_not_ended_are_open() {
        let mut objects = Objects::default();
        for state in [json!("Success"), json!("Running"), Value::Null] {
            objects.add(json!({ "kind": "VirtualMachineTask", "status": { "state": state } }));
        }
        assert_eq!(objects.tasks.len(), 2);
    }
}
