//! Rows C: finding a machine, and creating one.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use std::time::Duration;

use http::Method;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver};

use super::bench::*;
use crate::config::Config;
use crate::flow::Flow;
use crate::reconcile::vm::{follow_agents, reconcile};
use crate::stores::Key;

mod secrets;

/// One machine is created at a time; the next one is woken.
fn one_slot() -> (Bench, Receiver<Key>) {
    let mut config = Config::default();
    config.machines.creates = 1;
    let bench = Bench::with(config);
    let (sender, woken) = mpsc::channel(8);
    bench.ctx.shared.slots.wake_by(sender);
    (bench, woken)
}

#[tokio::test]
async fn c1_a_second_call_while_the_disk_is_made_makes_no_second_task() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.writes();
    assert_eq!(seconds(&bench.pass().await), Some(60));
    bench.task_ends("Provision", "Running");
    assert_eq!(seconds(&bench.pass().await), Some(60));
    assert_eq!(bench.tasks("Provision").len(), 1);
    assert_eq!(bench.writes(), Vec::<String>::new());
}

/// A running pod that the machine owns, with other marks than usual.
fn pod(name: &str, owner: &str, uid: Value, labels: Value, annotations: Value) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "labels": labels, "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "name": "vm",
                "uid": owner, "controller": true,
            }],
        },
        "spec": { "nodeName": "n1", "containers": [] },
        "status": { "phase": "Running" },
    })
}

#[tokio::test]
async fn c2a_the_pod_that_the_status_remembers_is_the_machine() {
    let mut bench = Bench::new();
    let uid = bench.machine(json!({}));
    bench.pass().await.ok();
    let instance = json!({ "uid": "p1", "onceCompleted": false });
    bench.edit(
        VMS,
        "vm",
        json!({ "status": { "instance": instance, "nodeName": "n1" } }),
    );
    let role = json!({ "vmlet.dev/role": "instance" });
    bench.put(PODS, pod("other", &uid, json!("p1"), role, json!({})));
    bench.sync();
    bench.pass().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineCreated"),
        "True/Provisioned"
    );
    assert_eq!(bench.status().instance.unwrap().uid, "p1");
    assert!(bench.placeholder("vm").is_none());
}

#[tokio::test]
async fn c2b_the_pod_with_the_domains_uuid_is_the_machine() {
    let mut bench = Bench::new();
    let uuid = "7b0e4a7e-2a61-4d0e-8a53-0c7a4d1b2e3f";
    let uid = bench.machine(json!({ "spec": { "instanceUUID": uuid } }));
    bench.pass().await.ok();
    let annotations = json!({ "vmlet.dev/instance-uuid": uuid });
    let role = json!({ "vmlet.dev/role": "instance" });
    bench.put(PODS, pod("vm", &uid, json!("p2"), role, annotations));
    bench.sync();
    bench.pass().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineCreated"),
        "True/Provisioned"
    );
    assert_eq!(bench.status().instance.unwrap().uid, "p2");
}

#[tokio::test]
async fn c2c_the_pod_with_the_machines_uid_is_the_machine() {
    let mut bench = Bench::new();
    let uid = bench.machine(json!({}));
    bench.pass().await.ok();
    let labels = json!({ "vmlet.dev/role": "instance", "vmlet.dev/vm-uid": uid });
    bench.put(PODS, pod("another", &uid, json!("p3"), labels, json!({})));
    bench.sync();
    bench.pass().await.ok();
    assert_eq!(bench.status().instance.unwrap().uid, "p3");
}

#[tokio::test]
async fn c2d_two_live_pods_are_an_error() {
    let mut bench = Bench::new();
    let uid = bench.running(json!({})).await;
    let labels = json!({ "vmlet.dev/role": "instance", "vmlet.dev/vm-uid": uid });
    bench.put(PODS, pod("second", &uid, json!("p4"), labels, json!({})));
    bench.sync();
    assert!(failure(&bench.pass().await).contains("more than one live pod"));
    assert_eq!(bench.events(), ["ReconcileNormalFailure"]);
}

#[tokio::test]
async fn c3_the_second_of_two_machines_waits_for_the_only_slot() {
    let mut config = Config::default();
    config.machines.creates = 1;
    config.runner.recheck = service::settings::Timespan::from_secs(10);
    let mut bench = Bench::with(config);
    let (sender, mut woken) = mpsc::channel(8);
    bench.ctx.shared.slots.wake_by(sender);
    bench.provisioning(json!({})).await;
    assert_eq!(bench.tasks("Provision").len(), 1);
    bench.machine_named("two", json!({}));
    bench.key.name = "two".to_owned();
    bench.pass().await.ok();
    bench.events();
    assert_eq!(seconds(&bench.pass().await), Some(10));
    assert_eq!(bench.events(), Vec::<String>::new());
    assert!(bench.placeholder("two").is_none());
    assert!(woken.try_recv().is_err());
    bench.task_ends("Provision", "Success");
    bench.key.name = "vm".to_owned();
    bench.pass().await.ok();
    bench.key.name = "two".to_owned();
    assert_eq!(woken.try_recv(), Ok(bench.key.clone()), "its turn");
    bench.pass().await.ok();
    assert!(bench.placeholder("two").is_some());
}

#[tokio::test]
async fn machines_that_wait_for_a_slot_of_their_node_keep_their_order() {
    let mut config = Config::default();
    config.machines.creates_per_node = 1;
    let mut bench = Bench::with(config);
    let (sender, mut woken) = mpsc::channel(8);
    bench.ctx.shared.slots.wake_by(sender);
    bench.provisioning(json!({})).await;
    for name in ["two", "three"] {
        bench.key.name = name.to_owned();
        bench.machine_named(name, json!({}));
        bench.settle().await.ok();
        bench.placeholder_is_bound(name, "n1");
        bench.placeholder_runs(name);
        bench.settle().await.ok();
    }
    bench.key.name = "two".to_owned();
    bench.pass().await.ok();
    assert_eq!(bench.tasks("Provision").len(), 1);
    assert!(woken.try_recv().is_err());

    bench.task_ends("Provision", "Success");
    bench.key.name = "vm".to_owned();
    bench.pass().await.ok();
    bench.key.name = "two".to_owned();
    assert_eq!(woken.try_recv(), Ok(bench.key.clone()), "its turn");
    assert!(woken.try_recv().is_err(), "one at a time");
    bench.key.name = "three".to_owned();
    bench.pass().await.ok();
    bench.key.name = "two".to_owned();
    bench.pass().await.ok();
    let tasks = bench.tasks("Provision").into_iter();
    let names: Vec<_> = tasks.map(|task| task["spec"]["vmName"].clone()).collect();
    assert!(names.contains(&json!("two")), "{names:?}");
    assert!(!names.contains(&json!("three")), "{names:?}");
    assert_eq!(bench.get(VMS, "two")["status"]["nodeName"], "n1");
}

#[tokio::test]
async fn a_machine_whose_root_disk_is_a_claim_waits_for_no_slot() {
    let (mut bench, _woken) = one_slot();
    bench.provisioning(json!({})).await;
    bench.claim("data", "Bound");
    let root =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data", "root": true } });
    bench.machine_named("two", json!({ "spec": { "volumes": [root] } }));
    bench.key.name = "two".to_owned();
    bench.settle().await.ok();
    assert!(bench.try_get(PODS, "two").is_some());
    assert_eq!(bench.tasks("Provision").len(), 1);
}

#[tokio::test]
async fn a_root_claim_keeps_the_image_that_it_was_filled_from() {
    let mut bench = Bench::new();
    bench.claim("data", "Bound");
    let root =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data", "root": true } });
    bench.machine(json!({ "spec": { "volumes": [root], "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert_eq!(bench.status().image, None, "nothing has filled the claim");
    bench.run("n1");
    bench.settle().await.ok();
    let image = bench.pod()["spec"]["containers"][0]["image"].clone();
    assert_eq!(json!(bench.status().image), image);
    bench.remove(IMAGES, "debian");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert_eq!(bench.pod()["spec"]["containers"][0]["image"], image);
}

#[tokio::test]
async fn a_node_that_leaves_after_a_disk_could_not_be_made_there_is_given_up() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.task_ends("Provision", "Error");
    bench.node("n2", true);
    bench.remove(NODES, "n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().node_name, None);
    assert!(bench.tasks("Provision").is_empty());
    bench.placeholder_is_bound("vm", "n2");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n2");
}

/// A task that no agent works on would keep its slot indefinitely.
#[tokio::test]
async fn a_node_that_is_away_holds_no_slot_that_another_machine_waits_for() {
    for is_gone in [false, true] {
        let (mut bench, mut woken) = one_slot();
        bench.provisioning(json!({})).await;
        bench.machine_named("two", json!({}));
        bench.key.name = "two".to_owned();
        bench.pass().await.ok();
        bench.pass().await.ok();
        assert!(bench.placeholder("two").is_none());
        bench.node("n2", true);
        if is_gone {
            bench.remove(NODES, "n1");
        } else {
            bench.node("n1", false);
        }
        bench.key.name = "vm".to_owned();
        bench.pass().await.ok();
        bench.key.name = "two".to_owned();
        assert_eq!(woken.try_recv(), Ok(bench.key.clone()), "its turn");
        bench.pass().await.ok();
        assert!(bench.placeholder("two").is_some());
    }
}

/// The lease of a node's agent, at its `n`th renewal.
fn renewed(bench: &Bench, node: &str, n: u32) {
    let lease = json!({
        "metadata": { "name": format!("vmlet-node-{node}") },
        "spec": { "renewTime": format!("2026-01-01T00:00:00.{n:06}Z") },
    });
    let lease = serde_json::from_value(lease).unwrap();
    bench.ctx.stores.agents.apply(&Event::Apply(lease));
}

#[tokio::test(start_paused = true)]
async fn a_dead_agent_on_a_ready_node_holds_no_slot_that_another_machine_waits_for() {
    let (mut bench, mut woken) = one_slot();
    bench.ctx.stores.agents.apply(&Event::Init);
    bench.ctx.stores.agents.apply(&Event::InitDone);
    renewed(&bench, "n1", 0);
    bench.node("n2", true);
    bench.provisioning(json!({})).await;
    bench.machine_named("two", json!({}));
    bench.key.name = "two".to_owned();
    bench.pass().await.ok();
    bench.pass().await.ok();
    assert!(bench.placeholder("two").is_none());
    let ctx = bench.ctx.clone();
    let (wake, mut concerned) = mpsc::channel(4);
    let telling = tokio::spawn(async move { follow_agents(&ctx, &wake).await });
    for n in 0..45 {
        assert!(n > 39 || woken.try_recv().is_err(), "after {n} seconds");
        renewed(&bench, "n2", n);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    telling.abort();
    // The status of the machine whose disk was to be made there shows what it waits for.
    bench.key.name = "vm".to_owned();
    assert_eq!(concerned.try_recv(), Ok(bench.key.clone()));
    bench.pass().await.ok();
    let failure = bench.condition("Failure").expect("a condition");
    assert_eq!(
        (&*failure.status, &*failure.reason),
        ("True", "AgentSilent")
    );
    assert!(failure.message.contains("on node n1"), "{failure:?}");
    bench.key.name = "two".to_owned();
    assert_eq!(woken.try_recv(), Ok(bench.key.clone()), "its turn");
    bench.pass().await.ok();
    assert!(bench.placeholder("two").is_some());
    // It is back, and so is its task.
    renewed(&bench, "n1", 1);
    bench.key.name = "vm".to_owned();
    bench.pass().await.ok();
    assert_eq!(bench.condition_text("Failure"), "-");
    bench.machine_named("three", json!({}));
    bench.key.name = "three".to_owned();
    bench.pass().await.ok();
    bench.pass().await.ok();
    assert!(bench.placeholder("three").is_none());
}

/// A pass takes the record of the node back when it fails after it; the store may show the record for longer than
/// the next pass waits for it.
#[tokio::test]
async fn no_disk_is_made_on_a_node_that_only_the_store_has_on_record() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.refuse(Method::POST, "virtualmachinetasks", 500, 1);
    bench.placeholder_runs("vm");
    failure(&bench.pass().await);
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
    bench.edit_unseen(VMS, "vm", json!({ "status": { "nodeName": null } }));
    bench.forward(60);
    let result = reconcile(&bench.ctx, &bench.key).await;
    assert!(is_conflict(&result), "{result:?}");
    assert!(bench.tasks("Provision").is_empty());
    bench.sync();
    bench.settle().await.ok();
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
    bench.task("Provision");
}
