//! Rows N: gates and events of a machine that is not being deleted.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use http::Method;
use serde_json::json;

use super::bench::*;
use crate::flow::Flow;

#[tokio::test]
async fn the_pod_of_a_paused_machine_is_released_once_its_end_is_recorded() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let paused = json!({ "metadata": { "annotations": { "vmlet.dev/paused": "" } } });
    bench.edit(VMS, "vm", paused);
    let drained = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    bench.edit(PODS, "vm", drained);
    bench.settle().await.ok();
    assert!(bench.has_pod(), "its guest runs");
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let last = bench.status().instance.unwrap();
    assert_eq!(last.phase.as_deref(), Some("Succeeded"));
}

#[tokio::test]
async fn n1a_a_paused_machine_gets_no_finalizer() {
    let mut bench = Bench::new();
    bench.machine(json!({ "metadata": { "annotations": { "vmlet.dev/paused": "x" } } }));
    assert_eq!(bench.pass().await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn n1b_the_first_pass_adds_the_finalizer_only() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.passes().await;
    assert_eq!(bench.writes(), ["PATCH virtualmachines/vm"]);
    let finalizers = &bench.get(VMS, "vm")["metadata"]["finalizers"];
    assert_eq!(*finalizers, json!(["vmlet.dev/virtualmachine"]));
    bench.settle().await.ok();
    let status = bench.status();
    assert!(status.bios_uuid.is_some() && status.instance_uuid != status.bios_uuid);
}

#[tokio::test]
async fn n2_a_machine_whose_node_lacks_the_image_waits_for_its_cache_alone() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.writes();
    assert_eq!(
        bench.pass().await.unwrap(),
        Flow::Continue,
        "no time wakes it"
    );
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert!(bench.tasks("Provision").is_empty());
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    bench.task("Provision");
}

#[tokio::test]
async fn without_image_caches_the_label_of_one_holds_nothing_up() {
    let mut bench = Bench::new();
    let label = json!({ "vmicache.vmlet.dev/name": "c" });
    bench
        .running(json!({ "metadata": { "labels": label } }))
        .await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn n3a_a_cache_that_is_not_ready_is_a_condition_and_no_event() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.events();
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineConditionImageCacheReady"),
        "False/NotReady"
    );
    assert_eq!(bench.events(), Vec::<String>::new());
    let vm = bench.get(VMS, "vm");
    let label = &vm["metadata"]["labels"]["vmicache.vmlet.dev/name"];
    assert!(label.is_null(), "{vm}");
}

#[tokio::test]
async fn n3b_a_creation_that_fails_is_an_event() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.pass().await.ok();
    bench.refuse(Method::POST, "pods", 403, 1);
    assert!(failure(&bench.pass().await).contains("create pod vm-placeholder-of-virtual-machine-"));
    assert_eq!(bench.events(), ["CreateFailure"]);
    assert_eq!(bench.condition_text("VirtualMachineCreated"), "False/Error");
    assert_eq!(bench.condition_text("Failure"), "True/FailedCreate");
}

#[tokio::test]
async fn n3c_a_creation_that_is_done_is_an_event() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    assert_eq!(bench.events(), ["CreateSuccess"]);
}

#[tokio::test]
async fn n4a_a_pass_without_a_change_is_no_event() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    assert!(bench.settle().await.is_ok());
    assert_eq!(bench.events(), Vec::<String>::new());
}

#[tokio::test]
async fn n4b_a_change_is_an_event() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.pass().await.ok();
    let messages = |bench: &mut Bench| -> Vec<String> {
        let all = bench.reported().into_iter();
        let all = all.filter(|event| event.reason == "UpdateSuccess");
        all.map(|event| event.message).collect()
    };
    let off = "power state: from PoweredOn to PoweredOff";
    assert_eq!(messages(&mut bench), [off]);

    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    messages(&mut bench);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    let on = "power state: from PoweredOff to PoweredOn";
    let said = messages(&mut bench);
    assert!(said.iter().any(|message| message == on), "{said:?}");
}

#[tokio::test]
async fn n4c_a_change_that_fails_is_an_event() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.refuse(Method::DELETE, "pods/vm", 500, 1);
    assert!(failure(&bench.pass().await).contains("delete pod"));
    assert_eq!(bench.events(), ["UpdateFailure"]);
}

#[tokio::test]
async fn n5_only_a_tcp_probe_that_kubelet_does_not_make_is_given_to_the_node() {
    for (probe, is_given) in [
        (
            json!({ "tcpSocket": { "port": 80, "host": "10.9.0.5" } }),
            true,
        ),
        (json!({ "tcpSocket": { "port": 80 } }), false),
        (json!({ "guestHeartbeat": {} }), false),
        (json!({ "guestInfo": [{ "key": "app" }] }), false),
        (json!(null), false),
    ] {
        let mut bench = Bench::new();
        bench.probing();
        let spec = json!({ "spec": { "readinessProbe": probe } });
        bench.running(spec).await;
        assert_eq!(!bench.tasks("SetProbe").is_empty(), is_given, "{probe}");
    }
}
