//! The rest of the cluster: scheduler, garbage collector, the clock of the controller, and nodes that do
//! not report.
//!
//! Invariant: a pod with gates is not scheduled; what has no owner any more is deleted, some time.
//! Failure: as scheduled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::nodes::NODE_NAMES;
use super::plan::Fault;
use super::world::{World, is_deleting, name, some_time, uid};
use crate::reconcile::vm::tests::api::{Place, State};
use crate::reconcile::vm::tests::bench::{NODES, PODS};

/// How long a node is silent before the cluster says so.
const GRACE: Duration = Duration::from_secs(40);

/// Nodes, as far as the controller reads them.
pub(super) fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// Binds pods to nodes, without end.
pub(super) async fn schedule(world: Arc<World>) {
    let mut random = world.plan.random("scheduler");
    let mut changes = world.changes();
    loop {
        sleep(some_time(&mut random, 1, 2_000)).await;
        for pod in world.all(PODS) {
            let is_bound = !pod["spec"]["nodeName"].is_null();
            let gates = pod["spec"]["schedulingGates"].as_array();
            let is_gated = gates.is_some_and(|gates| !gates.is_empty());
            if is_bound || is_gated || is_deleting(&pod) {
                continue;
            }
            let any = NODE_NAMES[random.usize(..NODE_NAMES.len())];
            let node = required(&pod).unwrap_or(any).to_owned();
            world.note(&format!("{} is bound to {node}", name(&pod)));
            let change = json!({ "spec": { "nodeName": node }, "status": { "phase": "Pending" } });
            world.edit(PODS, &pod, &change);
        }
        changes.changed().await;
    }
}

/// The node that a pod requires.
fn required(pod: &Value) -> Option<&str> {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let field = format!("{terms}/nodeSelectorTerms/0/matchFields/0/values/0");
    pod.pointer(&field).and_then(Value::as_str)
}

/// Deletes what has lost its owner, without end.
pub(super) async fn collect_garbage(world: Arc<World>) {
    let mut random = world.plan.random("garbage");
    let mut changes = world.changes();
    loop {
        sleep(some_time(&mut random, 100, 60_000)).await;
        for (place, object) in world.on_server(|state| lost(state)) {
            let options = json!({ "preconditions": { "uid": uid(&object) } });
            world.on_server(|state| state.delete(&place, &options));
        }
        changes.changed().await;
    }
}

/// Objects with owners of which none exists.
fn lost(state: &State) -> Vec<(Place, Value)> {
    let known: BTreeSet<_> = state.objects.values().map(uid).collect();
    let is_lost = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        let owners: Vec<_> = owners.into_iter().flatten().collect();
        let exists = |owner: &&Value| known.contains(owner["uid"].as_str().unwrap_or_default());
        !owners.is_empty() && !owners.iter().any(exists) && !is_deleting(object)
    };
    let all = state.objects.iter().filter(|(_, object)| is_lost(object));
    all.map(|(place, object)| (place.clone(), object.clone()))
        .collect()
}

/// The clock of the controller steps, forwards and backwards.
pub(super) async fn step_clock(world: Arc<World>) {
    let mut random = world.plan.random("clock");
    while world.has(Fault::Clock) {
        let pause = some_time(&mut random, 1_000, 120_000);
        world.sleep_while_faulty(pause).await;
        if world.has(Fault::Clock) {
            let seconds = random.i64(-120..=120);
            world.note(&format!("the clock steps to {seconds} s"));
            world.skew.store(seconds, Ordering::Relaxed);
        }
    }
}

/// One node after the other does not report for a while.
pub(super) async fn silence_nodes(world: Arc<World>) {
    let mut random = world.plan.random("nodes");
    while world.has(Fault::Nodes) {
        let pause = some_time(&mut random, 5_000, 200_000);
        world.sleep_while_faulty(pause).await;
        if !world.has(Fault::Nodes) {
            return;
        }
        let node = NODE_NAMES[random.usize(..NODE_NAMES.len())];
        world.note(&format!("{node} does not report"));
        world.on_nodes(|nodes| nodes.silence(node));
        let outage = some_time(&mut random, 1_000, 240_000);
        let unnoticed = outage.min(GRACE);
        world.sleep_while_faulty(unnoticed).await;
        if outage > GRACE {
            set_ready(&world, node, "Unknown");
            world.sleep_while_faulty(outage - unnoticed).await;
            set_ready(&world, node, "True");
        }
        world.note(&format!("{node} reports again"));
        world.on_nodes(|nodes| nodes.reach_again(node));
    }
}

fn set_ready(world: &World, node: &str, status: &str) {
    if let Some(object) = world.get(NODES, node) {
        let conditions = json!([{ "type": "Ready", "status": status }]);
        let change = json!({ "status": { "conditions": conditions } });
        world.edit(NODES, &object, &change);
    }
}
