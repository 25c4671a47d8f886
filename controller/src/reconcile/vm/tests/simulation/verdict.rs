//! What must hold in the end, and on the way.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::names;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::users::Desired;
use super::world::{World, is_deleting, name, uid};
use crate::reconcile::vm::observe::pods::INSTANCE;
use crate::reconcile::vm::tests::bench::{PODS, SYSTEM_TASKS, TASKS, VMS};

/// Longest time from the last fault to the desired states. The longest delays between two attempts are five
/// minutes: of a guest that keeps ending, and of a task that failed.
const LONGEST: Duration = Duration::from_mins(30);
/// What is written about settled machines is looked at for so long.
const QUIET: Duration = Duration::from_mins(4);

/// Reports machines that have gone while their disk has not, without end.
pub(super) async fn watch_disks(world: Arc<World>) {
    let mut changes = world.changes();
    let mut at = 0;
    loop {
        let gone = world.on_server(|state| {
            let log = state.log.as_deref().unwrap_or_default();
            let new = log[at..].iter();
            at = log.len();
            let gone = new.filter(|shown| shown.is_removed && shown.place.0 == VMS);
            gone.map(|shown| shown.object.clone()).collect::<Vec<_>>()
        });
        for vm in gone {
            if world.look_at_nodes().has_disk(uid(&vm)) {
                let text = format!("{} has gone, and its disk has not", name(&vm));
                world.finding(&text);
            }
        }
        changes.changed().await.unwrap();
    }
}

/// Waits for the desired states, and for the end of all writes.
pub(super) async fn settles(world: &World, desired: &BTreeMap<String, Desired>) {
    let end = Instant::now() + LONGEST;
    while let Some(difference) = difference(world, desired) {
        if Instant::now() >= end {
            world.finding(&difference);
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    world.note("everything is as desired");
    sleep(Duration::from_mins(1)).await;
    let before = world.on_server(|state| state.writes.len());
    sleep(QUIET).await;
    let again = world.on_server(|state| {
        let again = repeated(&state.writes[before..]);
        again.into_iter().map(str::to_owned).collect::<Vec<_>>()
    });
    if !again.is_empty() {
        world.finding(&format!("settled machines are written: {again:?}"));
    }
    if let Some(difference) = difference(world, desired) {
        world.finding(&format!("no longer: {difference}"));
    }
}

/// What was written more than once: a task that ended is removed after ten minutes, and its machine then has one
/// write.
fn repeated(writes: &[String]) -> BTreeSet<&str> {
    let mut once = BTreeSet::new();
    let writes = writes.iter().map(String::as_str);
    writes.filter(|write| !once.insert(*write)).collect()
}

fn difference(world: &World, desired: &BTreeMap<String, Desired>) -> Option<String> {
    let mut all = desired.iter();
    all.find_map(|(machine, desired)| {
        let difference = match desired {
            Desired::On => is_on(world, machine),
            Desired::Off => is_off(world, machine),
            Desired::Gone => is_gone(world, machine),
        };
        let why = difference.err()?;
        Some(format!("{machine} is not {desired:?}: {why}"))
    })
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

fn is_on(world: &World, machine: &str) -> Result<(), String> {
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
    match tasks.find(|task| task["spec"]["vmName"] == machine) {
        Some(task) => Err(format!("{} is there", name(&task))),
        None => Ok(()),
    }
}
