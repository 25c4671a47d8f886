//! Users, who change their minds.
//!
//! Invariant: what they desire in the end is known, and can be had.
//! Failure: none of their own.

mod backups;
mod groups;
mod images;
mod machines;
mod replica_sets;
mod snapshots;

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use super::plan::Kind;
use super::world::{World, name, some_time};

pub(super) use self::groups::GROUP;
pub(super) use self::images::IMAGE;
pub(super) use self::machines::{Desired, MACHINES};
pub(super) use self::replica_sets::SET;

/// What there is to be in the end.
pub(super) struct Wanted {
    pub(super) machines: BTreeMap<String, Desired>,
    /// Machines of the set.
    pub(super) replicas: Option<u64>,
}

/// Makes changes, and returns what there is to be.
pub(super) async fn change_their_minds(world: &World) -> Wanted {
    tokio::join!(
        machines::change(world),
        now_and_then(world, Kind::Groups, groups::change),
        now_and_then(world, Kind::ReplicaSets, replica_sets::change),
        now_and_then(world, Kind::Snapshots, snapshots::change),
        now_and_then(world, Kind::Backups, backups::change),
        now_and_then(world, Kind::Images, images::change),
    );
    world.sleep_while_faulty(Duration::from_secs(60)).await;
    let mut random = world.plan.random("decisions");
    if world.includes(Kind::Images) {
        images::decide(world, &mut random);
    }
    if world.includes(Kind::Snapshots) {
        snapshots::end_reverts(world).await;
    }
    if world.includes(Kind::Backups) {
        backups::decide(world);
    }
    let mut machines = machines::decide(world, &mut random);
    if world.includes(Kind::Groups) {
        groups::decide(world, &mut machines, &mut random);
    }
    let has_set = world.includes(Kind::ReplicaSets);
    let replicas = has_set.then(|| replica_sets::decide(world, &mut random));
    Wanted { machines, replicas }
}

/// The changes of what takes part beside machines.
async fn now_and_then(world: &World, kind: Kind, change: fn(&World, &mut Rng)) {
    if !world.includes(kind) {
        return;
    }
    let mut random = world.plan.random(&format!("users of {kind:?}"));
    for _ in 0..2 * world.plan.changes {
        // What was requested last has often been done by then.
        pause(world, &mut random, 2_000).await;
        change(world, &mut random);
    }
}

async fn pause(world: &World, random: &mut Rng, shortest: u64) {
    let pause = some_time(random, shortest, 90_000);
    world.sleep_while_faulty(pause).await;
}

fn create(world: &World, collection: &str, object: Value) {
    world.note(&format!("{} is created: {}", name(&object), object["spec"]));
    world.on_server(|server| server.create(collection.to_owned(), object));
}

fn delete(world: &World, collection: &str, name: &str) {
    world.note(&format!("{collection}/{name} is deleted by a user"));
    let place = (collection.to_owned(), name.to_owned());
    world.on_server(|state| state.delete(&place, &json!({})));
}

/// Changes the specification of an object.
fn set(world: &World, collection: &str, object: &Value, spec: &Value) {
    world.note(&format!("{} is to be {spec}", name(object)));
    world.edit(collection, object, &json!({ "spec": spec }));
}

/// An object of ours.
fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": kind,
        "metadata": { "name": name, "namespace": "ns" }, "spec": spec,
    })
}
