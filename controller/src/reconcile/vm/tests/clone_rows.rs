//! Machines that are clones of a snapshot or of another machine.
//!
//! Invariant: tasks end as a test says; the source is written by the test alone.
//! Failure: none of its own.

use crds::conditions::{CREATED, SNAPSHOT_CREATED, SOURCE_READY};
use crds::names;
use serde_json::{Value, json};

use super::bench::*;
use crate::flow::Flow;

const NEW: [&str; 2] = ["Provision", "CloneDisk"];
const OLD: [&str; 1] = ["Provision"];
const POLICIES: &str = "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2027-01-01T00:00:00Z",
    })
}

/// The agent of the node, and its daemon, run these kinds of task.
fn can_copy(bench: &mut Bench, kinds: &[&str]) {
    let is_new = kinds.contains(&"CloneDisk");
    let features = is_new.then_some(names::DISK_CLONES);
    let features: Vec<_> = features.into_iter().collect();
    let facts = json!({ "daemon": { "taskKinds": kinds }, "features": features });
    bench.agent_reports("n1", &facts);
}

/// The machine `source`, which is off, with its disk on node `n1`; returns its UID.
fn with_source(bench: &mut Bench, kinds: &[&str]) -> String {
    bench.agents(&["n1"]);
    can_copy(bench, kinds);
    let halted = json!({ "spec": { "runStrategy": "Halted" } });
    let uid = bench.machine_named("source", halted);
    let status = json!({
        "nodeName": "n1", "powerState": "PoweredOff", "image": "registry.example/debian:12",
        "storage": { "requested": "2Gi" }, "conditions": [condition(CREATED, "True", "Provisioned")],
    });
    bench.edit(VMS, "source", json!({ "status": status }));
    uid
}

/// A snapshot of that disk which its node has taken; returns its UID.
fn with_snapshot(bench: &mut Bench, disk: &str) -> String {
    let uid = bench.snapshot("snap", json!({ "vmName": "source" }));
    let status = json!({
        "diskUID": disk, "storage": { "requested": "1Gi" },
        "conditions": [condition(SNAPSHOT_CREATED, "True", "Created")],
    });
    bench.edit(SNAPSHOTS, "snap", json!({ "status": status }));
    uid
}

fn of_snapshot() -> Value {
    json!({ "spec": { "imageName": null, "source": { "snapshot": { "name": "snap" } } } })
}

fn of_machine() -> Value {
    json!({ "spec": { "imageName": null, "source": { "virtualMachine": { "name": "source" } } } })
}

fn message(bench: &Bench, kind: &str) -> String {
    bench.condition(kind).map(|c| c.message).unwrap_or_default()
}

#[tokio::test]
async fn a_clone_of_a_snapshot_is_made_on_the_node_of_its_machine() {
    let mut bench = Bench::new();
    let disk = with_source(&mut bench, &NEW);
    let snapshot = with_snapshot(&mut bench, &disk);
    // The machine of the snapshot may run.
    bench.edit(
        VMS,
        "source",
        json!({ "status": { "powerState": "PoweredOn" } }),
    );
    let uid = bench.machine(of_snapshot());
    bench.settle().await.ok();
    let task = bench.task("CloneDisk");
    let spec = &task["spec"];
    assert_eq!(spec["nodeName"], "n1");
    assert_eq!(spec["vmUID"], uid.as_str());
    assert_eq!(
        spec["source"],
        json!({ "diskUID": disk, "snapshotUID": snapshot })
    );
    assert_eq!(spec["image"], "registry.example/debian:12");
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
    assert!(bench.placeholder("vm").is_none() && bench.tasks("Provision").is_empty());
    assert_eq!(bench.condition_text(SOURCE_READY), "True/Copying");
    let name = task["metadata"]["name"].as_str().unwrap();
    let half = json!({ "status": { "state": "Running", "progressPercent": 57 } });
    bench.edit(TASKS, name, half);
    bench.passes().await;
    assert!(message(&bench, SOURCE_READY).ends_with("50 %"));
    bench.writes();
    bench.passes().await;
    assert!(bench.writes().is_empty());

    bench.task_ends("CloneDisk", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CREATED), "True/Provisioned");
    assert_eq!(bench.condition_text(SOURCE_READY), "-");
    let status = bench.status();
    assert_eq!(status.image.as_deref(), Some("registry.example/debian:12"));
    let requested = status.storage.unwrap().requested.unwrap();
    assert_eq!(requested.0, "1Gi");
    assert!(bench.has_pod());
    // Its own UUIDs.
    assert_ne!(status.bios_uuid, None);
    // Nothing depends on the source any more.
    bench.remove(SNAPSHOTS, "snap");
    bench.remove(VMS, "source");
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CREATED), "True/Provisioned");
    bench.writes();
    bench.passes().await;
    assert!(bench.writes().is_empty());
}

#[tokio::test]
async fn a_clone_of_a_machine_waits_while_that_is_suspended() {
    let mut bench = Bench::new();
    let disk = with_source(&mut bench, &NEW);
    let suspended = json!({ "status": { "powerState": "Suspended" } });
    bench.edit(VMS, "source", suspended);
    let uid = bench.machine(of_machine());
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    let text = message(&bench, SOURCE_READY);
    assert!(
        text.contains("is suspended") && text.contains("resume it"),
        "{text}"
    );
    assert_eq!(bench.condition_text(SOURCE_READY), "False/NotReady");
    assert!(bench.tasks("CloneDisk").is_empty() && bench.status().node_name.is_none());
    assert!(bench.try_get(SNAPSHOTS, &format!("clone-{uid}")).is_none());
    bench.remove(VMS, "vm");
    bench.edit(
        VMS,
        "source",
        json!({ "status": { "powerState": "PoweredOff" } }),
    );
    let larger = json!({ "spec": { "bootDiskCapacity": "3Gi" } });
    let mut machine = of_machine();
    json_patch::merge(&mut machine, &larger);
    bench.machine(machine);
    bench.settle().await.ok();
    let spec = bench.task("CloneDisk")["spec"].clone();
    assert_eq!(spec["source"], json!({ "diskUID": disk }));
    assert_eq!(spec["sizeBytes"], 3_u64 << 30);
    let requested = bench.status().storage.unwrap().requested.unwrap();
    assert_eq!(requested.0, "3Gi");
}

/// Between two of its pods a machine is off; the copy would keep the next one from its disk.
#[rstest::rstest]
#[case::to_be_on(json!({ "spec": { "runStrategy": "Always" } }))]
#[case::requested(json!({ "status": { "stateChangeRequests": [{ "action": "Start" }] } }))]
#[tokio::test]
async fn a_machine_that_is_off_for_a_moment_only_is_copied_from_a_snapshot(#[case] change: Value) {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    bench.edit(VMS, "source", change);
    let uid = bench.machine(of_machine());
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("is taken first"), "{text}");
    assert!(bench.tasks("CloneDisk").is_empty());
    assert!(bench.try_get(SNAPSHOTS, &format!("clone-{uid}")).is_some());
}

#[tokio::test]
async fn a_machine_whose_pod_is_still_there_is_not_copied() {
    let mut bench = Bench::new();
    let uid = with_source(&mut bench, &NEW);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "source", "namespace": "ns", "labels": { "vmlet.dev/vm-uid": uid } },
        "spec": { "nodeName": "n1" }, "status": { "phase": "Pending" },
    });
    bench.put(PODS, pod);
    bench.sync();
    bench.machine(of_machine());
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("is being powered off"), "{text}");
    bench.remove(PODS, "source");
    bench.settle().await.ok();
    bench.task("CloneDisk");
}

#[tokio::test]
async fn a_copy_that_was_begun_is_begun_again_whatever_the_policy_is_by_then() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "vmlet-data-volumes" },
        "spec": { "validations": [{ "expression": "variables.mayClone" }] },
    });
    bench.put(POLICIES, policy);
    let before = json!({ "metadata": { "creationTimestamp": "2020-01-01T00:00:00Z" } });
    bench.edit(POLICIES, "vmlet-data-volumes", before);
    bench.machine(of_machine());
    bench.settle().await.ok();
    bench.task("CloneDisk");
    let write = json!({ "time": "2037-01-01T00:00:00Z", "fieldsV1": { "f:spec": {} } });
    let upgrade = json!({ "metadata": { "managedFields": [write] } });
    bench.edit(POLICIES, "vmlet-data-volumes", upgrade);
    for (state, wait) in [("Error", 301), ("Cancelled", 0)] {
        bench.task_ends("CloneDisk", state);
        bench.settle().await.ok();
        bench.forward(wait);
        bench.settle().await.ok();
        let state = bench.task("CloneDisk")["status"]["state"].clone();
        assert!(state.is_null(), "{state}");
        assert_eq!(bench.condition_text(SOURCE_READY), "True/Copying");
    }
}

#[tokio::test]
async fn a_machine_whose_author_was_not_judged_gets_no_disk() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "vmlet-data-volumes" },
        "spec": { "validations": [{ "expression": "true" }] },
    });
    bench.put(POLICIES, policy);
    bench.machine(of_machine());
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    assert_eq!(bench.condition_text(SOURCE_READY), "False/Forbidden");
    let text = message(&bench, CREATED);
    assert!(text.contains("apply deploy/admission"), "{text}");
    bench.writes();
    bench.forward(91);
    bench.settle().await.ok();
    assert!(bench.writes().is_empty(), "it is refused as before");
    assert!(bench.tasks("CloneDisk").is_empty() && bench.status().node_name.is_none());
    let rule = json!([{ "expression": "variables.mayClone" }]);
    let now = json!({
        "metadata": { "creationTimestamp": "2037-01-01T00:00:00Z" },
        "spec": { "validations": rule },
    });
    bench.edit(POLICIES, "vmlet-data-volumes", now);
    bench.settle().await.ok();
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("create the machine again"), "{text}");
    let before = json!({ "metadata": { "creationTimestamp": "2020-01-01T00:00:00Z" } });
    bench.edit(POLICIES, "vmlet-data-volumes", before);
    bench.settle().await.ok();
    bench.task("CloneDisk");
}

#[tokio::test]
async fn a_source_that_cannot_be_copied_is_refused_in_words() {
    let status = |change: Value| json!({ "status": change });
    let deleted = json!({ "metadata": {
        "deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": ["a.example/b"],
    } });
    let root = json!({ "spec": { "volumes": [
        { "name": "r", "persistentVolumeClaim": { "claimName": "r", "root": true } },
    ] } });
    let itself = json!({ "spec": {
        "imageName": null, "source": { "virtualMachine": { "name": "vm" } },
    } });
    let nothing = json!({ "spec": {
        "imageName": null, "source": { "virtualMachine": { "name": "nothing" } },
    } });
    let failed = [condition(
        SNAPSHOT_CREATED,
        "False",
        "VirtualMachineSnapshotCreationFailed",
    )];
    for (edited, change, clone, words) in [
        ("", json!({}), itself, "names itself"),
        ("", json!({}), nothing, "machine nothing does not exist"),
        ("source", deleted.clone(), of_machine(), "is being deleted"),
        ("source", root.clone(), of_machine(), "is a claim"),
        ("source", root, of_snapshot(), "is a claim"),
        (
            "source",
            status(json!({ "nodeName": "n2" })),
            of_machine(),
            "node n2",
        ),
        (
            "source",
            status(json!({ "diskUID": "other" })),
            of_snapshot(),
            "does not have",
        ),
        ("snap", deleted, of_snapshot(), "is being deleted"),
        (
            "snap",
            status(json!({ "conditions": failed })),
            of_snapshot(),
            "failed",
        ),
        (
            "snap",
            json!({ "metadata": { "annotations": { "vmlet.dev/snapshot-uid": "u" } } }),
            of_snapshot(),
            "was restored",
        ),
    ] {
        let mut bench = Bench::new();
        let disk = with_source(&mut bench, &NEW);
        with_snapshot(&mut bench, &disk);
        match edited {
            "" => {}
            "snap" => bench.edit(SNAPSHOTS, edited, change),
            _ => bench.edit(VMS, edited, change),
        }
        bench.machine(clone);
        let result = bench.settle().await;
        assert!(result.is_err(), "{words}: {result:?}");
        assert_eq!(bench.condition_text(CREATED), "False/Error", "{words}");
        let text = message(&bench, SOURCE_READY);
        assert!(text.contains(words), "{words}: {text}");
        assert!(bench.tasks("CloneDisk").is_empty() && bench.status().node_name.is_none());
        assert!(bench.placeholder("vm").is_none());
    }
}

#[tokio::test]
async fn a_source_that_is_not_ready_yet_is_waited_for() {
    let mut bench = Bench::new();
    let disk = with_source(&mut bench, &NEW);
    with_snapshot(&mut bench, &disk);
    let open = json!({ "status": { "conditions": null } });
    bench.edit(SNAPSHOTS, "snap", open);
    bench.machine(of_snapshot());
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    assert!(message(&bench, SOURCE_READY).contains("is not ready yet"));
    assert_eq!(bench.condition_text(CREATED), "-");
    let taken = [condition(SNAPSHOT_CREATED, "True", "Created")];
    let taken = json!({ "status": { "conditions": taken } });
    bench.edit(SNAPSHOTS, "snap", taken);
    bench.settle().await.ok();
    bench.task("CloneDisk");
}

#[tokio::test]
async fn a_node_of_an_earlier_version_gets_no_task_that_it_does_not_know() {
    let mut bench = Bench::new();
    with_source(&mut bench, &OLD);
    bench.machine(of_machine());
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("upgrade vmlet"), "{text}");
    assert!(bench.tasks("CloneDisk").is_empty());
    // The daemon alone is not enough: an earlier agent cannot read its kinds.
    bench.agent("n1", &json!({ "taskKinds": NEW }));
    bench.settle().await.ok();
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("upgrade it there"), "{text}");
    assert!(bench.tasks("CloneDisk").is_empty());
    can_copy(&mut bench, &NEW);
    bench.settle().await.ok();
    bench.task("CloneDisk");
}

#[tokio::test]
async fn what_the_node_refuses_is_shown_and_tried_again_later() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    bench.machine(of_machine());
    bench.settle().await.ok();
    bench.task_ends("CloneDisk", "Error");
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    let text = message(&bench, CREATED);
    assert!(
        text.contains("CloneDisk on node n1: said the node"),
        "{text}"
    );
    bench.forward(301);
    bench.settle().await.ok();
    assert!(bench.task("CloneDisk")["status"]["state"].is_null());
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_with_a_growing_delay() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    bench.machine(of_machine());
    bench.settle().await.ok();
    for (too_soon, due) in [(29, 2), (29, 2), (60, 120)] {
        bench.task_ends("CloneDisk", "Error");
        let task = bench.task("CloneDisk");
        let name = task["metadata"]["name"].as_str().unwrap();
        let transient = json!({ "status": { "transient": true } });
        bench.edit(TASKS, name, transient);
        bench.forward(too_soon);
        let result = bench.settle().await;
        assert!(result.is_err(), "{result:?}");
        assert_eq!(bench.task("CloneDisk")["status"]["state"], "Error");
        bench.forward(due);
        bench.settle().await.ok();
        let state = bench.task("CloneDisk")["status"]["state"].clone();
        assert!(state.is_null(), "{state}");
    }
}

#[tokio::test]
async fn another_attempt_records_the_size_that_the_source_has_by_then() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    bench.machine(of_machine());
    bench.settle().await.ok();
    bench.task_ends("CloneDisk", "Error");
    let larger = json!({ "status": { "storage": { "requested": "4Gi" } } });
    bench.edit(VMS, "source", larger);
    bench.forward(301);
    bench.settle().await.ok();
    assert!(bench.task("CloneDisk")["status"]["state"].is_null());
    let requested = bench.status().storage.unwrap().requested.unwrap();
    assert_eq!(requested.0, "4Gi", "before the copy is there");
}

#[tokio::test]
async fn a_clone_that_is_deleted_ends_its_copy_and_leaves_nothing() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    let uid = bench.machine(of_machine());
    bench.settle().await.ok();
    let change = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit(VMS, "vm", change);
    bench.settle().await.ok();
    assert_eq!(bench.task("CloneDisk")["spec"]["cancel"], true);
    assert!(bench.try_get(VMS, "vm").is_some());
    bench.task_ends("CloneDisk", "Cancelled");
    bench.settle().await.ok();
    assert_eq!(bench.task("DeleteDisk")["spec"]["vmUID"], uid.as_str());
    bench.task_ends("DeleteDisk", "Success");
    bench.settle().await.ok();
    assert!(bench.try_get(VMS, "vm").is_none());
}

#[tokio::test]
async fn a_copy_that_was_begun_elsewhere_is_not_begun_again() {
    let mut bench = Bench::new();
    with_source(&mut bench, &NEW);
    bench.node("n2", true);
    bench.machine(of_machine());
    bench.edit(VMS, "vm", json!({ "status": { "nodeName": "n2" } }));
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    let text = message(&bench, CREATED);
    assert!(text.contains("was begun on node n2"), "{text}");
    assert!(bench.tasks("CloneDisk").is_empty());
}
