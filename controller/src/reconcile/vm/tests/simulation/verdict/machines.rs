//! Machines in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use std::collections::BTreeMap;

use crds::names;
use serde_json::Value;

use super::super::users::Desired;
use super::super::world::{World, is_deleting, name, uid};
use crate::reconcile::vm::observe::pods::INSTANCE;
use crate::reconcile::vm::tests::bench::{PODS, SYSTEM_TASKS, TASKS, VMS};

pub(super) fn check(world: &World, desired: &BTreeMap<String, Desired>) -> Result<(), String> {
    for (machine, desired) in desired {
        let found = match desired {
            Desired::On => is_on(world, machine),
            Desired::Off => is_off(world, machine),
            Desired::Gone => is_gone(world, machine),
        };
        found.map_err(|why| format!("{machine} is not {desired:?}: {why}"))?;
    }
    Ok(())
}

fn status<'a>(vm: &'a Value, field: &str) -> &'a str {
    vm["status"][field].as_str().unwrap_or_default()
}

fn pods(world: &World, machine: &str) -> Vec<Value> {
    let all = world.all(PODS).into_iter();
    let holder = format!("{machine}{}", names::PLACEHOLDER_OF);
    all.filter(|pod| name(pod) == machine || name(pod).starts_with(&holder))
        .collect()
}

fn shows(vm: &Value, word: &str, power: &str) -> Result<(), String> {
    let shown = [status(vm, "printableStatus"), status(vm, "powerState")];
    let is_shown = shown == [word, power];
    is_shown
        .then_some(())
        .ok_or_else(|| format!("its status is {shown:?}: {}", vm["status"]))
}

pub(super) fn is_on(world: &World, machine: &str) -> Result<(), String> {
    let vm = world.get(VMS, machine).ok_or("it does not exist")?;
    let pods = pods(world, machine);
    let [pod] = pods.as_slice() else {
        return Err(format!("it has {} pods: {}", pods.len(), vm["status"]));
    };
    let runs = !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
    let is_instance = pod["metadata"]["labels"][names::POD_ROLE_LABEL] == INSTANCE;
    if !runs || !is_instance || is_deleting(pod) {
        return Err(format!("its pod does not run: {pod}"));
    }
    match world.look_at_nodes().guests_with(uid(&vm)) {
        1 => shows(&vm, "Running", "PoweredOn"),
        count => Err(format!("it has {count} guests")),
    }
}

fn is_off(world: &World, machine: &str) -> Result<(), String> {
    let vm = world.get(VMS, machine).ok_or("it does not exist")?;
    let pods = pods(world, machine);
    if let Some(pod) = pods.first() {
        return Err(format!("{} is there: {}", name(pod), vm["status"]));
    }
    let nodes = world.look_at_nodes();
    match (nodes.has_disk(uid(&vm)), nodes.has_memory(uid(&vm))) {
        (true, false) => {}
        (has_disk, has_memory) => {
            let both = format!("disk: {has_disk}, saved memory: {has_memory}");
            return Err(format!("{both}: {}", vm["status"]));
        }
    }
    shows(&vm, "Stopped", "PoweredOff")
}

fn is_gone(world: &World, machine: &str) -> Result<(), String> {
    if let Some(vm) = world.get(VMS, machine) {
        return Err(format!("it exists: {vm}"));
    }
    if let Some(pod) = pods(world, machine).first() {
        return Err(format!("{} is there: {pod}", name(pod)));
    }
    let tasks = [TASKS, SYSTEM_TASKS].into_iter();
    let mut tasks = tasks.flat_map(|collection| world.all(collection));
    // Those of backups stay as long as these.
    let is_its =
        |task: &Value| task["spec"]["vmName"] == machine && task["spec"]["backup"].is_null();
    match tasks.find(is_its) {
        Some(task) => Err(format!("{} is there", name(&task))),
        None => Ok(()),
    }
}
