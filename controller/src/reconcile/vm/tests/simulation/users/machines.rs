//! Machines on, off, suspended, deleted and made again.
//!
//! Invariant: a final decision is one that every machine can follow.
//! Failure: none of its own.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::plan::Kind;
use super::super::world::{World, is_deleting, uid};
use super::{GROUP, delete, object, pause, set};
use crate::reconcile::vm::tests::bench::{PODS, VMS};

pub(in super::super) const MACHINES: [&str; 3] = ["vm0", "vm1", "vm2"];

/// What a machine is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Desired {
    On,
    Off,
    Gone,
}

/// Creates machines, and changes them.
pub(super) async fn change(world: &World) {
    let mut random = world.plan.random("users");
    let machines = &MACHINES[..random.usize(1..=MACHINES.len())];
    for machine in machines {
        create(world, machine, &state(&mut random));
    }
    for _ in 0..world.plan.changes {
        pause(world, &mut random, 10).await;
        let machine = machines[random.usize(..machines.len())];
        change_one(world, machine, &mut random);
    }
}

/// The last decisions.
pub(super) fn decide(world: &World, random: &mut Rng) -> BTreeMap<String, Desired> {
    let last = MACHINES.iter().map(|machine| {
        let desired = decide_one(world, machine, random);
        ((*machine).to_owned(), desired)
    });
    last.collect()
}

fn create(world: &World, machine: &str, state: &Value) {
    let spec = json!({ "className": "small", "imageName": "debian" });
    let mut vm = object("VirtualMachine", machine, spec);
    json_patch::merge(&mut vm["spec"], state);
    if world.includes(Kind::Groups) && machine != MACHINES[2] {
        vm["spec"]["groupName"] = json!(GROUP);
    }
    super::create(world, VMS, vm);
}

/// One of the spellings of a desired state.
fn state(random: &mut Rng) -> Value {
    let all = [
        ("runStrategy", "Always"),
        ("runStrategy", "RerunOnFailure"),
        ("runStrategy", "Once"),
        ("runStrategy", "Manual"),
        ("runStrategy", "Halted"),
        ("powerState", "PoweredOn"),
        ("powerState", "PoweredOff"),
        ("powerState", "Suspended"),
    ];
    let chosen = all[random.usize(..all.len())];
    spelled(chosen.0, chosen.1)
}

fn spelled(field: &str, value: &str) -> Value {
    let mut state = json!({ "runStrategy": null, "powerState": null, "running": null });
    state[field] = json!(value);
    state
}

fn change_one(world: &World, machine: &str, random: &mut Rng) {
    let Some(vm) = world.get(VMS, machine) else {
        return create(world, machine, &state(random));
    };
    match random.u8(..10) {
        0 => delete(world, VMS, machine),
        1 => delete(world, PODS, machine),
        2 => restart(world, &vm, machine),
        _ => set(world, VMS, &vm, &state(random)),
    }
}

fn restart(world: &World, vm: &Value, machine: &str) {
    if let Some(pod) = world.get(PODS, machine) {
        world.note(&format!("{machine} is to restart"));
        let both = json!([{ "action": "Stop", "uid": uid(&pod) }, { "action": "Start" }]);
        let status = json!({ "status": { "stateChangeRequests": both } });
        world.edit(VMS, vm, &status);
    }
}

fn decide_one(world: &World, machine: &str, random: &mut Rng) -> Desired {
    let desired = [Desired::On, Desired::On, Desired::Off, Desired::Gone][random.usize(..4)];
    let present = world.get(VMS, machine);
    if present.as_ref().is_none_or(is_deleting) {
        return Desired::Gone;
    }
    world.note(&format!("{machine} is {desired:?} in the end"));
    let state = match desired {
        Desired::On => spelled("runStrategy", "Always"),
        Desired::Off => spelled("powerState", "PoweredOff"),
        Desired::Gone => {
            delete(world, VMS, machine);
            return desired;
        }
    };
    let requests = json!({ "status": { "stateChangeRequests": null } });
    let vm = present.unwrap_or_default();
    world.edit(VMS, &vm, &requests);
    set(world, VMS, &vm, &state);
    desired
}
