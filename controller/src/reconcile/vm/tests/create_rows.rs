//! Rows C: finding a machine, and creating one.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;
use crate::config::Config;

async fn provisioning(bench: &mut Bench) {
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.bind("vm-provision", "n1");
    bench.end("vm-provision", 0, "Provisioned");
    bench.settle().await.ok();
}

#[tokio::test]
async fn c1_a_second_call_while_the_disk_is_made_makes_no_second_task() {
    let mut bench = Bench::new();
    provisioning(&mut bench).await;
    bench.writes();
    assert_eq!(seconds(&bench.pass().await), Some(10));
    bench.task_ends("Provision", "Running");
    assert_eq!(seconds(&bench.pass().await), Some(10));
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
    assert_eq!(bench.says("VirtualMachineCreated"), "True/True");
    assert_eq!(bench.status().instance.unwrap().uid, "p1");
    assert!(bench.try_get(PODS, "vm-provision").is_none());
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
    assert_eq!(bench.says("VirtualMachineCreated"), "True/True");
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
    let mut bench = Bench::with(config);
    provisioning(&mut bench).await;
    assert_eq!(bench.tasks("Provision").len(), 1);
    bench.machine_named("two", json!({}));
    bench.key.name = "two".to_owned();
    bench.pass().await.ok();
    bench.events();
    assert_eq!(seconds(&bench.pass().await), Some(10));
    assert_eq!(bench.events(), Vec::<String>::new());
    assert!(bench.try_get(PODS, "two-provision").is_none());
    bench.task_ends("Provision", "Success");
    bench.pass().await.ok();
    assert!(bench.try_get(PODS, "two-provision").is_some());
}

#[tokio::test]
async fn c4_all_that_is_missing_shows_in_one_pass() {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": { "className": "none", "imageName": "none" } }));
    bench.pass().await.ok();
    let text = failure(&bench.pass().await);
    assert!(
        text.contains("VirtualMachineClass none") && text.contains("image none"),
        "{text}"
    );
    assert_eq!(bench.says("VirtualMachineClassReady"), "False/NotFound");
    assert_eq!(bench.says("VirtualMachineImageReady"), "False/NotFound");
    assert_eq!(bench.says("VirtualMachineStorageReady"), "True/True");
}
