//! A group of two machines.
//!
//! Invariant: the last change of the group comes after those of its members.
//! Failure: none of its own.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::world::World;
use super::{Desired, MACHINES, create, delete, object, set};
use crate::reconcile::vm::tests::bench::GROUPS;

pub(in super::super) const GROUP: &str = "grp";

pub(super) fn change(world: &World, random: &mut Rng) {
    let Some(group) = world.get(GROUPS, GROUP) else {
        let mut spec = order(random);
        json_patch::merge(&mut spec, &power(random));
        return create(world, GROUPS, object("VirtualMachineGroup", GROUP, spec));
    };
    let change = match random.u8(..8) {
        0 => return delete(world, GROUPS, GROUP),
        1 => order(random),
        2 => json!({ "nextForcePowerStateSyncTime": world.time_in(random.i64(0..60)) }),
        _ => power(random),
    };
    set(world, GROUPS, &group, &change);
}

fn power(random: &mut Rng) -> Value {
    let all = [
        json!("PoweredOn"),
        json!("PoweredOff"),
        json!("Suspended"),
        Value::Null,
    ];
    json!({ "powerState": all[random.usize(..all.len())] })
}

/// The machines one after the other.
fn order(random: &mut Rng) -> Value {
    let tier =
        |machine: &str| json!({ "members": [{ "kind": "VirtualMachine", "name": machine }] });
    let [mut first, mut second] = [tier(MACHINES[0]), tier(MACHINES[1])];
    if random.bool() {
        std::mem::swap(&mut first, &mut second);
    }
    let when = [
        json!({}),
        json!({ "powerOnDelay": "5s", "powerOffDelay": "3s" }),
        json!({ "waitForReady": true, "readyTimeout": "1m" }),
    ];
    json_patch::merge(&mut second, &when[random.usize(..when.len())]);
    json!({ "bootOrder": [first, second] })
}

/// The group decides for its members.
pub(super) fn decide(world: &World, machines: &mut BTreeMap<String, Desired>, random: &mut Rng) {
    let (power_state, desired) = match random.u8(..2) {
        0 => ("PoweredOn", Desired::On),
        _ => ("PoweredOff", Desired::Off),
    };
    let mut spec = order(random);
    spec["powerState"] = json!(power_state);
    spec["nextForcePowerStateSyncTime"] = json!(world.time_in(1));
    match world.get(GROUPS, GROUP) {
        Some(group) => set(world, GROUPS, &group, &spec),
        None => create(world, GROUPS, object("VirtualMachineGroup", GROUP, spec)),
    }
    for machine in &MACHINES[..2] {
        let own = machines.get_mut(*machine);
        if let Some(own) = own.filter(|own| **own != Desired::Gone) {
            *own = desired;
        }
    }
}
