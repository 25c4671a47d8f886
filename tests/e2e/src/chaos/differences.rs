//! What of a chaos run is not as it should be: a pure comparison of desired states with objects and nodes.
//!
//! Invariant: no difference without the object or the file that shows it.
//! Failure: none; each difference is a line of the verdict.

mod backups;
mod promotion;
mod sets;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::desired::{DesiredState, Mode};
use super::nodes::Nodes;
use super::objects::{Objects, text};

/// What there should be.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Every machine by its name, also those that are to have no object.
    pub(super) machines: BTreeMap<String, DesiredState>,
    /// Why something cannot be compared yet.
    pub(super) unsettled: Vec<String>,
    /// The group of that name has this power state.
    pub(super) group: Option<(&'static str, Mode)>,
    /// Disks of machines that run become independent of their images, too.
    pub(super) promotes_online: bool,
    /// The replica set of that name has so many machines.
    pub(super) set: Option<(&'static str, usize)>,
}

/// Everything that is not as it should be.
pub(super) fn differences(expected: &Expected, seen: &Objects, nodes: &Nodes) -> Vec<String> {
    let mut wrong = [
        expected.unsettled.as_slice(),
        nodes.findings.as_slice(),
        seen.tasks.as_slice(),
    ]
    .concat();
    machines(&mut wrong, expected, seen, nodes);
    snapshots::compare(&mut wrong, expected, seen, nodes);
    backups::compare(&mut wrong, expected, seen);
    promotion::compare(&mut wrong, expected, seen, nodes);
    sets::compare(&mut wrong, expected, seen);
    let transfers = nodes.transfers.iter();
    wrong.extend(transfers.map(|file| format!("left by a client: {file}")));
    wrong
}

fn machines(wrong: &mut Vec<String>, expected: &Expected, seen: &Objects, nodes: &Nodes) {
    let mut there = Presence::default();
    for (name, desired) in &expected.machines {
        let Some(vm) = seen.machines.get(name) else {
            if desired.mode != Mode::Gone {
                wrong.push(format!("{name} does not exist"));
            }
            continue;
        };
        if snapshots::is_clone_of_nothing(vm, seen, nodes) {
            continue;
        }
        let status = &vm["status"];
        let word = text(&status["printableStatus"]);
        let files = nodes.disks.get(text(&vm["metadata"]["uid"]));
        let has_memory = files.is_some_and(|files| files.has_memory);
        if !fulfils(word, has_memory, desired.mode)
            || status["desiredGeneration"] != vm["metadata"]["generation"]
        {
            wrong.push(format!(
                "{name}: {word}, saved memory {has_memory}, desired {desired:?}: {vm}"
            ));
        }
        there.add(name, vm, word, desired.mode);
    }
    let unexpected = seen.machines.keys();
    let unexpected = unexpected.filter(|name| !expected.machines.contains_key(*name));
    wrong.extend(unexpected.map(|name| format!("{name} should not exist")));
    let pods = seen.pods.difference(&there.may_have_pod).cloned();
    compare(wrong, "pods", &there.pods, &pods.collect());
    compare(wrong, "domains that run", &there.domains, &nodes.domains);
    let disks = nodes.disks.keys().cloned().collect();
    compare(wrong, "disks", &there.disks, &disks);
}

/// What the machines must have.
#[derive(Default)]
struct Presence {
    pods: BTreeSet<String>,
    may_have_pod: BTreeSet<String>,
    domains: BTreeSet<String>,
    disks: BTreeSet<String>,
}

impl Presence {
    fn add(&mut self, name: &str, vm: &Value, word: &str, desired: Mode) {
        self.disks.insert(text(&vm["metadata"]["uid"]).to_owned());
        match (word, desired) {
            ("Running", _) => {
                let domain = text(&vm["status"]["instanceUUID"]);
                self.domains.insert(domain.to_owned());
                self.pods.insert(name.to_owned());
            }
            (_, Mode::Manual | Mode::Once) => {
                self.may_have_pod.insert(name.to_owned());
            }
            _ => {}
        }
    }
}

/// A machine that was suspended while it was off has no memory to save.
fn fulfils(word: &str, has_memory: bool, desired: Mode) -> bool {
    match desired {
        Mode::On | Mode::Always | Mode::RerunOnFailure => word == "Running" && !has_memory,
        Mode::Off | Mode::Halted => word == "Stopped" && !has_memory,
        Mode::Suspended => matches!((word, has_memory), ("Suspended", true) | ("Stopped", false)),
        // On or off: what it was, or what became of its run.
        Mode::Manual | Mode::Once => matches!(
            (word, has_memory),
            ("Running" | "Stopped", false) | ("Suspended", true)
        ),
        Mode::Gone => false,
    }
}

fn compare(
    wrong: &mut Vec<String>,
    what: &str,
    expected: &BTreeSet<String>,
    found: &BTreeSet<String>,
) {
    if expected != found {
        wrong.push(format!("{what}: {found:?} instead of {expected:?}"));
    }
}
