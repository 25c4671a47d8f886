//! Whether the group and the replica set of a run report what they should.
//!
//! Invariant: their machines are compared like all others; here are their own objects.
//! Failure: none; the object is in the line.

use serde_json::Value;

use super::{Expected, Mode, Objects, text};
use crate::machines::condition;

pub(super) fn compare(wrong: &mut Vec<String>, expected: &Expected, seen: &Objects) {
    if let Some((name, mode)) = expected.group {
        match find(&seen.groups, name) {
            Some(group) if is_powered(group, mode) => {}
            Some(group) => wrong.push(format!("the group is not {}: {group}", mode.name())),
            None => wrong.push(format!("group {name} does not exist")),
        }
    }
    if let Some((name, replicas)) = expected.set {
        match find(&seen.sets, name) {
            Some(set) if has_replicas(set, replicas) => {}
            Some(set) => wrong.push(format!("the set has not {replicas} machines: {set}")),
            None => wrong.push(format!("replica set {name} does not exist")),
        }
    }
}

fn find<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
    let mut all = all.iter();
    all.find(|object| text(&object["metadata"]["name"]) == name)
}

fn is_powered(group: &Value, mode: Mode) -> bool {
    let is_given = group["status"]["powerChange"]["powerState"] == mode.name();
    // A member that is off is not suspended: its condition says so, and the machines are compared.
    let is_ready = condition(group, "Ready")["status"] == "True";
    is_given && (is_ready || mode == Mode::Suspended)
}

fn has_replicas(set: &Value, replicas: usize) -> bool {
    let status = &set["status"];
    let counts = ["replicas", "availableReplicas", "updatedReplicas"];
    let has_all = counts.iter().all(|count| {
        let counted = status[count].as_u64().unwrap_or_default();
        usize::try_from(counted) == Ok(replicas)
    });
    has_all && status["observedGeneration"] == set["metadata"]["generation"]
}
