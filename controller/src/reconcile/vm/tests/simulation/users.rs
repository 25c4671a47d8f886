//! Users, who change their minds.
//!
//! Invariant: what they want in the end is known, and can be had: machines on, off, or gone.
//! Failure: none of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use super::world::{World, is_deleting, some_time, uid};
use crate::reconcile::vm::tests::bench::{PODS, VMS};

const MACHINES: [&str; 3] = ["vm0", "vm1", "vm2"];

/// What a machine is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Desired {
    On,
    Off,
    Gone,
}

/// Creates machines, changes them, and returns what they are to be.
pub(super) async fn change_their_minds(world: &World) -> BTreeMap<String, Desired> {
    let mut random = world.plan.random("users");
    let machines = &MACHINES[..random.usize(1..=MACHINES.len())];
    for machine in machines {
        create(world, machine, &state(&mut random));
    }
    for _ in 0..world.plan.changes {
        world
            .sleep_while_faulty(some_time(&mut random, 10, 90_000))
            .await;
        let machine = machines[random.usize(..machines.len())];
        change(world, machine, &mut random);
    }
    world.sleep_while_faulty(Duration::from_secs(60)).await;
    let last = machines.iter().map(|machine| {
        let desired = decide(world, machine, &mut random);
        ((*machine).to_owned(), desired)
    });
    last.collect()
}

fn create(world: &World, machine: &str, state: &Value) {
    let mut vm = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
        "metadata": { "name": machine, "namespace": "ns" },
        "spec": { "className": "small", "imageName": "debian" },
    });
    json_patch::merge(&mut vm, &json!({ "spec": state }));
    world.note(&format!("{machine} is created: {state}"));
    world.on_server(|server| server.create(VMS.to_owned(), vm));
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

fn change(world: &World, machine: &str, random: &mut Rng) {
    let Some(vm) = world.get(VMS, machine) else {
        return create(world, machine, &state(random));
    };
    match random.u8(..10) {
        0 => delete(world, VMS, machine),
        1 => delete(world, PODS, machine),
        2 => restart(world, &vm, machine),
        _ => set(world, &vm, &state(random)),
    }
}

fn set(world: &World, vm: &Value, state: &Value) {
    world.note(&format!("{} is to be {state}", super::world::name(vm)));
    world.edit(VMS, vm, &json!({ "spec": state }));
}

fn delete(world: &World, collection: &str, name: &str) {
    world.note(&format!("{collection}/{name} is deleted by a user"));
    let place = (collection.to_owned(), name.to_owned());
    world.on_server(|state| state.delete(&place, &json!({})));
}

fn restart(world: &World, vm: &Value, machine: &str) {
    if let Some(pod) = world.get(PODS, machine) {
        world.note(&format!("{machine} is to restart"));
        let both = json!([{ "action": "Stop", "uid": uid(&pod) }, { "action": "Start" }]);
        let status = json!({ "status": { "stateChangeRequests": both } });
        world.edit(VMS, vm, &status);
    }
}

/// The last decision about a machine.
fn decide(world: &World, machine: &str, random: &mut Rng) -> Desired {
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
    set(world, &vm, &state);
    desired
}
