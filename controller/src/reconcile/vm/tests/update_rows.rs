//! Rows U: what a failure of one step means for the next.
//!
//! U5 (b) and (c), schema upgrade and backup, are in [`super::backup_rows`].
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use http::Method;
use serde_json::json;

use super::bench::*;

#[tokio::test]
async fn u1_a_failed_status_turns_a_later_quiet_stop_into_a_retry() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let facts = json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "no json" } } });
    bench.edit(PODS, "vm", facts);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    assert!(failure(&bench.pass().await).contains("guest facts"));
    // The step that ends quietly ran all the same.
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn u2_a_quiet_stop_alone_is_no_retry_and_ends_the_pass() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.facts(json!({ "power": "On", "machineType": "pc-q35-7.2" }));
    bench.settle().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.writes();
    // The configuration is changed, and the power step, which would make a pod, does not run.
    let both = json!({ "minMachineType": "pc-q35-9.0", "runStrategy": "Always" });
    bench.edit(VMS, "vm", json!({ "spec": both }));
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(bench.status().machine_type.as_deref(), Some("pc-q35-9.0"));
    assert!(!bench.writes().contains(&"POST pods/vm".to_owned()));
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

const BAD: &str = "no version";

#[tokio::test]
async fn u3a_a_failed_configuration_keeps_a_machine_from_power_changes() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let restart = json!({ "minMachineType": BAD, "nextRestartTime": "2027-01-15T07:59:00Z" });
    bench.edit(VMS, "vm", json!({ "spec": restart }));
    assert!(failure(&bench.pass().await).contains("minMachineType"));
    assert!(bench.tasks("GuestReboot").is_empty());
}

#[tokio::test]
async fn u3b_but_not_from_being_powered_off() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let off = json!({ "minMachineType": BAD, "runStrategy": "Halted" });
    bench.edit(VMS, "vm", json!({ "spec": off }));
    assert!(failure(&bench.pass().await).contains("minMachineType"));
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

const NETWORKS: &str = "apis/k8s.cni.cncf.io/v1/namespaces/ns/network-attachment-definitions";

/// A machine that runs, and whose network was deleted.
async fn without_its_network() -> Bench {
    let mut bench = Bench::new();
    let blue = json!({ "metadata": { "name": "blue", "namespace": "ns" } });
    bench.put(NETWORKS, blue);
    let interfaces = json!([{ "name": "a" }, { "name": "b", "networkRef": "blue" }]);
    let spec = json!({ "spec": { "network": { "interfaces": interfaces } } });
    bench.running(spec).await;
    bench.remove(NETWORKS, "blue");
    bench
}

/// Ours: only a start needs the network.
#[tokio::test]
async fn u4a_a_network_that_is_gone_is_no_matter_for_a_machine_that_runs() {
    let mut bench = without_its_network().await;
    let uid = bench.pod()["metadata"]["uid"].clone();
    bench.settle().await.ok();
    assert_eq!(bench.pod()["metadata"]["uid"], uid);
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(bench.condition_text("Failure"), "-");
}

#[tokio::test]
async fn u4b_nor_for_one_that_is_to_go_off() {
    let mut bench = without_its_network().await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert!(!bench.has_pod(), "a start needs it");
    assert_eq!(
        bench.condition_text("VirtualMachineNetworkReady"),
        "False/NotReady"
    );
}

#[tokio::test]
async fn u5a_a_machine_on_the_wrong_node_is_left_alone() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.node("n2", true);
    bench.edit(PODS, "vm", json!({ "spec": { "nodeName": "n2" } }));
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    assert!(is_wait(&bench.pass().await));
    assert_eq!(
        bench.condition_text("VirtualMachineLocationValid"),
        "False/NodeMismatch"
    );
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
}

#[tokio::test]
async fn u6_a_failed_power_change_and_a_failed_snapshot_are_both_in_the_result() {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.running(json!({})).await;
    bench.snapshot("s", json!({}));
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.refuse(Method::DELETE, "pods/vm", 500, 1);
    bench.refuse(Method::PATCH, "virtualmachinesnapshots/s", 500, 1);
    let text = failure(&bench.pass().await);
    assert!(
        text.contains("delete pod vm") && text.contains("write snapshot s"),
        "{text}"
    );
}

#[tokio::test]
async fn a_failed_step_keeps_its_reason_among_several() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let facts = json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "no json" } } });
    bench.edit(PODS, "vm", facts);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.refuse(Method::DELETE, "pods/vm", 500, 1);
    let text = failure(&bench.pass().await);
    assert!(
        text.contains("guest facts") && text.contains("delete pod"),
        "{text}"
    );
    assert!(bench.condition_text("Failure").starts_with("True/"));
}
