//! The place of a machine, from the placeholder to its pod.
//!
//! Invariant: while a machine is to be on, the scheduler counts it on the node of its disk.
//! Failure: the writes are listed.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;

fn strategy(name: &str) -> Value {
    json!({ "spec": { "runStrategy": name } })
}

/// What was written to pods, in order; the placeholder's name without its UID.
fn steps(bench: &mut Bench) -> Vec<String> {
    let all = bench.writes().into_iter();
    let pods = all.filter(|write| write.contains(" pods/"));
    pods.map(|write| {
        let (short, _) = write
            .split_once("-of-virtual-machine-")
            .unwrap_or((&write, ""));
        short.to_owned()
    })
    .collect()
}

fn gates(bench: &Bench) -> Value {
    bench.pod()["spec"]["schedulingGates"].clone()
}

fn nominated(bench: &Bench) -> Value {
    bench.pod()["status"]["nominatedNodeName"].clone()
}

#[tokio::test]
async fn the_place_is_held_by_the_placeholder_then_by_the_nomination() {
    let mut bench = Bench::new();
    let labels = json!({ "spec": { "template": { "metadata": { "labels": { "app": "web" } } } } });
    bench.created(labels).await;
    let placeholder = bench.placeholder("vm").unwrap();
    assert_eq!(placeholder["metadata"]["labels"]["app"], "web");
    bench.writes();
    bench.settle().await.ok();
    let all = [
        "POST pods/vm",
        "PATCH pods/vm/status",
        "DELETE pods/vm-placeholder",
        "PATCH pods/vm",
    ];
    assert_eq!(steps(&mut bench), all);
    assert_eq!((nominated(&bench), gates(&bench)), (json!("n1"), json!([])));
}

#[tokio::test]
async fn each_step_of_the_handover_can_be_repeated() {
    for (method, what) in [
        (Method::PATCH, "pods/vm/status"),
        (Method::DELETE, "pods/vm-placeholder"),
        (Method::PATCH, "pods/vm$"),
    ] {
        let mut bench = Bench::new();
        bench.created(json!({})).await;
        bench.refuse(method.clone(), what, 500, 1);
        bench.pass().await.unwrap_err();
        assert_ne!(gates(&bench), json!([]), "{method} {what}");
        bench.settle().await.ok();
        assert_eq!((nominated(&bench), gates(&bench)), (json!("n1"), json!([])));
        assert!(bench.placeholder("vm").is_none(), "{method} {what}");
    }
}

/// The watch of pods may be behind that of machines.
#[tokio::test]
async fn what_the_store_does_not_show_yet_is_not_done_again() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    let placeholder = bench.placeholder("vm").unwrap();
    bench.settle().await.ok();
    bench.writes();
    let gate = json!([{ "name": "vmlet.dev/placeholder" }]);
    let before =
        json!({ "spec": { "schedulingGates": gate }, "status": { "nominatedNodeName": null } });
    bench.edit(PODS, "vm", before);
    bench.put(PODS, placeholder);
    bench.sync();
    bench.settle().await.ok();
    assert_eq!(steps(&mut bench), Vec::<String>::new());
    // A process that died in between has left it so.
    bench.forward(30);
    bench.settle().await.ok();
    assert_eq!((nominated(&bench), gates(&bench)), (json!("n1"), json!([])));
    assert!(bench.placeholder("vm").is_none());
}

#[tokio::test]
async fn a_machine_that_is_to_be_off_holds_no_place() {
    let mut bench = Bench::new();
    bench.created(strategy("Halted")).await;
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let deleted = bench.placeholder("vm").unwrap();
    assert!(!deleted["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn a_machine_that_a_check_holds_back_keeps_its_place() {
    let mut bench = Bench::new();
    let check = json!({ "metadata": { "annotations": { "poweron.check.vmlet.dev/app": "" } } });
    bench.created(check).await;
    bench.settle().await.ok();
    let held = bench.placeholder("vm").unwrap();
    assert!(!bench.has_pod() && held["metadata"]["deletionTimestamp"].is_null());
    bench.edit(VMS, "vm", strategy("Halted"));
    bench.settle().await.ok();
    let deleted = bench.placeholder("vm").unwrap();
    assert!(!deleted["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn a_machine_that_is_switched_off_before_it_has_a_place_leaves_nothing() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.refuse(Method::PATCH, "pods/vm/status", 500, 1);
    bench.pass().await.unwrap_err();
    bench.edit(VMS, "vm", strategy("Halted"));
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let deleted = bench.placeholder("vm").unwrap();
    assert!(!deleted["metadata"]["deletionTimestamp"].is_null());
}

/// A quota may have room for one pod of the machine's size.
#[tokio::test]
async fn a_placeholder_makes_way_when_a_quota_has_room_for_one_pod() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.most_pods(1);
    let refused = failure(&bench.pass().await);
    assert!(refused.contains("exceeded quota"), "{refused}");
    assert!(bench.placeholder("vm").is_none() && !bench.has_pod());
    bench.settle().await.ok();
    assert!(gates(&bench).is_null(), "it waits for nothing");
}

#[tokio::test]
async fn a_placeholder_that_was_evicted_is_not_waited_for() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    let name = bench.placeholder("vm").unwrap()["metadata"]["name"].clone();
    bench.end(name.as_str().unwrap(), 137, "Error");
    bench.settle().await.ok();
    assert!(gates(&bench).is_null(), "it waits for nothing");
    assert!(bench.placeholder("vm").is_none());
}

#[tokio::test]
async fn an_unschedulable_machine_reports_what_its_node_lacks() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.settle().await.ok();
    let allocatable = json!({ "status": { "allocatable": { "memory": "64Mi", "cpu": "2" } } });
    bench.edit(NODES, "n1", allocatable);
    let why = "0/1 nodes are available: 1 Insufficient memory.";
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why });
    bench.edit(
        PODS,
        "vm",
        json!({ "status": { "phase": "Pending", "conditions": [condition] } }),
    );
    bench.settle().await.ok();
    let kind = "VirtualMachineConditionPlacementReady";
    let found = bench.condition(kind).unwrap();
    assert_eq!((&*found.status, &*found.reason), ("False", "Unschedulable"));
    for part in ["on node n1", "the node has 64Mi in all", why] {
        assert!(found.message.contains(part), "{}", found.message);
    }
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(kind), "True/Scheduled");
}

#[tokio::test]
async fn a_deletion_that_leaves_dependents_alone_leaves_no_placeholder() {
    for change in [
        json!({ "finalizers": ["vmlet.dev/virtualmachine", "orphan"] }),
        json!({ "annotations": { "vmlet.dev.protected/skip-delete-platform-resource": "" } }),
    ] {
        let mut bench = Bench::new();
        bench.created(json!({})).await;
        let now = bench.time();
        bench.edit(VMS, "vm", json!({ "metadata": change }));
        let deleted = json!({ "metadata": { "deletionTimestamp": now } });
        bench.edit(VMS, "vm", deleted);
        bench.writes();
        bench.pass().await.ok();
        let steps = steps(&mut bench);
        assert!(
            steps.contains(&"DELETE pods/vm-placeholder".to_owned()),
            "{steps:?}"
        );
    }
}
