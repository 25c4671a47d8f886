//! A set of machines.
//!
//! Invariant: a set is never to have more than [`MOST`] machines.
//! Failure: none of its own.

use crds::names::PAUSED;
use fastrand::Rng;
use serde_json::{Value, json};

use super::super::world::World;
use super::{create, delete, object, set};
use crate::reconcile::vm::tests::bench::{SETS, VMS};

pub(in super::super) const SET: &str = "web";

const MOST: u64 = 3;

pub(super) fn change(world: &World, random: &mut Rng) {
    let Some(found) = world.get(SETS, SET) else {
        return create_set(world, random.u64(..=MOST));
    };
    match random.u8(..8) {
        0 => delete(world, SETS, SET),
        1 => {
            let machine = format!("{SET}-{}", random.u64(..MOST));
            delete(world, VMS, &machine);
        }
        2 => {
            let version = random.u8(..4).to_string();
            let labels = json!({ "app": SET, "version": version });
            let template = json!({ "template": { "metadata": { "labels": labels } } });
            set(world, SETS, &found, &template);
        }
        3 => pause(world, &found, &json!("")),
        4 => pause(world, &found, &Value::Null),
        _ => set(
            world,
            SETS,
            &found,
            &json!({ "replicas": random.u64(..=MOST) }),
        ),
    }
}

fn create_set(world: &World, replicas: u64) {
    let spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": SET } },
        "template": {
            "metadata": { "labels": { "app": SET } },
            "spec": { "className": "small", "imageName": "debian", "runStrategy": "Always" },
        },
    });
    create(world, SETS, object("VirtualMachineReplicaSet", SET, spec));
}

fn pause(world: &World, found: &Value, mark: &Value) {
    let change = json!({ "metadata": { "annotations": { PAUSED: mark } } });
    world.edit(SETS, found, &change);
}

/// How many machines there are to be.
pub(super) fn decide(world: &World, random: &mut Rng) -> u64 {
    let replicas = random.u64(..=MOST);
    match world.get(SETS, SET) {
        Some(found) => {
            pause(world, &found, &Value::Null);
            set(world, SETS, &found, &json!({ "replicas": replicas }));
        }
        None => create_set(world, replicas),
    }
    replicas
}
