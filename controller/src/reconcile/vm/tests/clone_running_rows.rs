//! Clones of machines that run: a snapshot is taken for the copy, and goes after it.
//!
//! Invariant: the node does what its tasks say; the source is never powered off.
//! Failure: none of its own.

use crds::conditions::{CREATED, SOURCE_READY};
use crds::names;
use http::Method;
use serde_json::{Value, json};

use super::bench::*;
use crate::context::Key;
use crate::flow::Flow;
use crate::shared::Shared;

const KINDS: [&str; 5] = [
    "Provision",
    "CloneDisk",
    "Snapshot",
    "Revert",
    "DeleteSnapshot",
];
const POLICIES: &str = "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// The machine `vm`, which runs on node `n1`; returns the UID of its disk.
async fn with_running(bench: &mut Bench) -> String {
    bench.agents(&["n1"]);
    let facts = json!({ "daemon": { "taskKinds": KINDS }, "features": [names::DISK_CLONES] });
    bench.agent_reports("n1", &facts);
    bench.running(json!({})).await
}

/// The machine `copy`, of which all passes are from now on; returns the name of its snapshot.
fn with_clone(bench: &mut Bench) -> String {
    let source = json!({ "virtualMachine": { "name": "vm" } });
    let changes = json!({ "spec": { "imageName": null, "source": source } });
    let uid = bench.machine_named("copy", changes);
    bench.key = Key::new("ns", "copy");
    format!("clone-{uid}")
}

/// Passes over the source.
async fn source_settles(bench: &mut Bench) {
    bench.key = Key::new("ns", "vm");
    bench.settle().await.ok();
    bench.key = Key::new("ns", "copy");
}

fn is_open(task: &Value) -> bool {
    task["status"]["state"].is_null()
}

/// The node ends its open tasks of that kind.
fn node_ends(bench: &mut Bench, kind: &str) {
    let now = bench.time();
    for task in bench.tasks(kind).into_iter().filter(is_open) {
        let name = task["metadata"]["name"].as_str().unwrap();
        let end = json!({ "state": "Success", "completionTime": now });
        bench.edit(TASKS, name, json!({ "status": end }));
    }
}

/// A condition of the clone.
fn condition(bench: &Bench, kind: &str) -> Value {
    let all = bench.get(VMS, "copy")["status"]["conditions"].take();
    let all = all.as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|one| one["type"] == kind);
    found.unwrap_or_default()
}

fn condition_text(bench: &Bench, kind: &str) -> String {
    let found = condition(bench, kind);
    let text = |field: &str| found[field].as_str().map(str::to_owned);
    let text = text("status").zip(text("reason"));
    text.map_or("-".to_owned(), |(status, reason)| {
        format!("{status}/{reason}")
    })
}

fn message(bench: &Bench, kind: &str) -> String {
    let found = condition(bench, kind);
    found["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_machine_that_runs_is_copied_from_a_snapshot_that_goes_when_the_disk_is_made() {
    let mut bench = Bench::new();
    let disk = with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    assert_eq!(condition_text(&bench, SOURCE_READY), "False/NotReady");
    let text = message(&bench, SOURCE_READY);
    assert!(
        text.contains(&snapshot) && text.contains("is taken first"),
        "{text}"
    );
    assert_eq!(condition_text(&bench, CREATED), "-", "nothing has failed");
    let made = bench.get(SNAPSHOTS, &snapshot);
    assert_eq!(made["spec"]["vmName"], "vm");
    assert_eq!(made["spec"]["memory"], false);
    assert!(made["spec"]["quiesce"].is_null());
    let labels = &made["metadata"]["labels"];
    assert_eq!(labels[names::EXCLUDE_FROM_BACKUP], "true");
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["name"], &owner["controller"]),
        (&json!("copy"), &Value::Null)
    );
    assert!(bench.tasks("CloneDisk").is_empty());

    source_settles(&mut bench).await;
    bench.settle().await.ok();
    assert!(message(&bench, SOURCE_READY).contains("node n1 takes the snapshot"));
    bench.node_takes(true);
    source_settles(&mut bench).await;
    bench.settle().await.ok();
    let task = bench.task("CloneDisk");
    let uid = bench.get(SNAPSHOTS, &snapshot)["metadata"]["uid"].take();
    let expected = json!({ "diskUID": disk, "snapshotUID": uid });
    assert_eq!(task["spec"]["source"], expected);
    let there = bench.get(SNAPSHOTS, &snapshot)["metadata"]["deletionTimestamp"].take();
    assert!(there.is_null(), "it is being copied");

    node_ends(&mut bench, "CloneDisk");
    bench.settle().await.ok();
    assert_eq!(condition_text(&bench, CREATED), "True/Provisioned");
    let gone = bench.get(SNAPSHOTS, &snapshot)["metadata"]["deletionTimestamp"].take();
    assert!(gone.is_string());
    source_settles(&mut bench).await;
    node_ends(&mut bench, "DeleteSnapshot");
    source_settles(&mut bench).await;
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_none());
    let pod = bench.get(PODS, "vm");
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "it runs on");
    bench.writes();
    bench.passes().await;
    source_settles(&mut bench).await;
    assert!(bench.writes().is_empty());
}

#[tokio::test]
async fn a_controller_that_is_killed_after_any_write_leaves_a_clone_and_no_snapshot() {
    let mut killed = 0;
    for writes in 0..60 {
        let mut bench = Bench::new();
        with_running(&mut bench).await;
        let snapshot = with_clone(&mut bench);
        bench.server.lock().unwrap().writes_left = Some(writes);
        for _ in 0..40 {
            for name in ["copy", "vm"] {
                bench.key = Key::new("ns", name);
                bench.pass().await.ok();
                let is_killed = bench.server.lock().unwrap().writes_left == Some(0);
                if is_killed {
                    // Another process.
                    bench.server.lock().unwrap().writes_left = None;
                    bench.ctx.shared = Shared::default();
                    killed += 1;
                }
            }
            if bench.tasks("Snapshot").iter().any(is_open) {
                bench.node_takes(true);
            }
            node_ends(&mut bench, "CloneDisk");
            node_ends(&mut bench, "DeleteSnapshot");
        }
        bench.key = Key::new("ns", "copy");
        assert_eq!(
            condition_text(&bench, CREATED),
            "True/Provisioned",
            "{writes}"
        );
        assert!(bench.try_get(SNAPSHOTS, &snapshot).is_none(), "{writes}");
        let all = bench.writes();
        let made = format!("POST virtualmachinesnapshots/{snapshot}");
        let made = all.iter().filter(|one| **one == made).count();
        assert_eq!(made, 1, "{writes}: {all:?}");
        if bench.server.lock().unwrap().writes_left.is_some() {
            assert!(killed > 8, "{killed}");
            return;
        }
    }
    panic!("it never ends");
}

#[tokio::test]
async fn a_clone_that_is_deleted_takes_its_snapshot_along_also_one_that_no_watch_shows() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.settle().await.ok();
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_some());
    let deleted = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit(VMS, "copy", deleted);
    bench.hide_snapshot(&snapshot);
    bench.settle().await.ok();
    assert!(bench.try_get(VMS, "copy").is_none());
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_none());
}

/// A deletion in the foreground, and one that leaves what the clone owns.
#[tokio::test]
async fn a_clone_that_the_garbage_collector_took_off_the_owners_takes_its_snapshot_along() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.settle().await.ok();
    source_settles(&mut bench).await;
    let owners = bench.get(SNAPSHOTS, &snapshot)["metadata"]["ownerReferences"].take();
    let mut owners = owners.as_array().cloned().unwrap();
    assert_eq!(owners.len(), 2);
    owners.retain(|owner| owner["name"] == "vm");
    let deleted = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit(VMS, "copy", deleted);
    let left = json!({ "metadata": { "ownerReferences": owners } });
    bench.edit(SNAPSHOTS, &snapshot, left);
    bench.settle().await.ok();
    assert!(bench.try_get(VMS, "copy").is_none());
    let gone = bench.get(SNAPSHOTS, &snapshot)["metadata"]["deletionTimestamp"].take();
    assert!(gone.is_string());
}

#[tokio::test]
async fn a_clone_that_lacks_something_else_has_no_snapshot_taken() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.edit(VMS, "copy", json!({ "spec": { "className": "none" } }));
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("runs: a snapshot"), "all shows: {text}");
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_none());
    bench.edit(VMS, "copy", json!({ "spec": { "className": "small" } }));
    bench.settle().await.ok();
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_some());
}

#[tokio::test]
async fn no_snapshot_is_taken_for_a_copy_that_was_begun_on_another_node() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    bench.node("n2", true);
    let snapshot = with_clone(&mut bench);
    bench.edit(VMS, "copy", json!({ "status": { "nodeName": "n2" } }));
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    let text = message(&bench, CREATED);
    assert!(text.contains("was begun on node n2"), "{text}");
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_none());
}

#[tokio::test]
async fn a_source_that_is_paused_after_the_request_is_named_with_what_pauses_it() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.settle().await.ok();
    assert!(bench.try_get(SNAPSHOTS, &snapshot).is_some());
    let paused = json!({ "metadata": { "labels": { (names::PAUSED_LABEL): "devops" } } });
    bench.edit(VMS, "vm", paused);
    bench.settle().await.ok();
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("label vmlet.dev/paused"), "{text}");
}

#[tokio::test]
async fn a_snapshot_that_fails_is_taken_again_after_some_minutes() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.settle().await.ok();
    source_settles(&mut bench).await;
    let now = bench.time();
    let task = bench.task("Snapshot")["metadata"]["name"].take();
    let failed = json!({ "state": "Error", "message": "said the node", "completionTime": now });
    bench.edit(TASKS, task.as_str().unwrap(), json!({ "status": failed }));
    source_settles(&mut bench).await;
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    assert_eq!(condition_text(&bench, SOURCE_READY), "False/SnapshotFailed");
    let text = message(&bench, SOURCE_READY);
    assert!(text.contains("failed: said the node"), "{text}");
    assert!(text.contains("power the machine off"), "{text}");
    let first = bench.get(SNAPSHOTS, &snapshot)["metadata"]["uid"].take();
    bench.forward(301);
    bench.settle().await.ok();
    source_settles(&mut bench).await;
    node_ends(&mut bench, "DeleteSnapshot");
    source_settles(&mut bench).await;
    bench.settle().await.ok();
    let second = bench.get(SNAPSHOTS, &snapshot)["metadata"]["uid"].take();
    assert_ne!(first, second);
}

/// Who may create snapshots knows the name, and could have another machine copied that way.
#[rstest::rstest]
#[case::without_an_owner("vm", false)]
#[case::of_another_machine("other", true)]
#[tokio::test]
async fn a_snapshot_of_that_name_that_is_none_of_the_clone_is_not_copied_and_stays(
    #[case] vm_name: &str,
    #[case] is_owned: bool,
) {
    let mut bench = Bench::new();
    let disk = with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.snapshot(&snapshot, json!({ "vmName": vm_name }));
    if is_owned {
        let owner = json!([{
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "name": "copy",
            "uid": bench.get(VMS, "copy")["metadata"]["uid"],
        }]);
        let created = json!([{
            "type": "VirtualMachineSnapshotCreated", "status": "True", "reason": "Created",
            "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z",
        }]);
        let change = json!({
            "metadata": { "ownerReferences": owner },
            "status": { "diskUID": disk, "conditions": created },
        });
        bench.edit(SNAPSHOTS, &snapshot, change);
    }
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    assert_eq!(condition_text(&bench, SOURCE_READY), "False/NotOwned");
    assert!(bench.tasks("CloneDisk").is_empty());
    let deleted = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit(VMS, "copy", deleted);
    bench.settle().await.ok();
    assert!(bench.try_get(VMS, "copy").is_none());
    let there = bench.get(SNAPSHOTS, &snapshot)["metadata"]["deletionTimestamp"].take();
    assert!(there.is_null());
}

#[tokio::test]
async fn no_snapshot_is_taken_for_an_author_who_was_not_judged_or_of_what_cannot_be_copied() {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "vmlet-data-volumes" },
        "spec": { "validations": [{ "expression": "true" }] },
    });
    let of_claim = json!({ "claimName": "r", "root": true });
    let root = json!([{ "name": "r", "persistentVolumeClaim": of_claim }]);
    let root = json!({ "spec": { "volumes": root } });
    let paused = json!({ "metadata": { "annotations": { (names::PAUSED): "" } } });
    let stopped = json!({ "metadata": { "annotations": { (names::ADMIN_PAUSED): "" } } });
    let labelled = json!({ "metadata": { "labels": { (names::PAUSED_LABEL): "devops" } } });
    let suspended = json!({ "spec": { "runStrategy": null, "powerState": "Suspended" } });
    for (change, words) in [
        (json!({}), "apply deploy/admission"),
        (root, "is a claim"),
        (paused, "annotation vmlet.dev/paused"),
        (stopped, "annotation vmlet.dev.protected/admin-paused"),
        (labelled, "label vmlet.dev/paused"),
        (suspended, "resume it, or power it off"),
    ] {
        let mut bench = Bench::new();
        with_running(&mut bench).await;
        if change == json!({}) {
            bench.put(POLICIES, policy.clone());
        }
        bench.edit(VMS, "vm", change);
        let snapshot = with_clone(&mut bench);
        bench.settle().await.ok();
        let text = message(&bench, SOURCE_READY);
        assert!(text.contains(words), "{words}: {text}");
        assert!(bench.try_get(SNAPSHOTS, &snapshot).is_none(), "{words}");
    }
}

#[tokio::test]
async fn what_the_api_server_refuses_of_the_snapshot_is_said() {
    let mut bench = Bench::new();
    with_running(&mut bench).await;
    let snapshot = with_clone(&mut bench);
    bench.refuse(Method::POST, "virtualmachinesnapshots", 403, 100);
    let result = bench.settle().await;
    assert!(result.is_err(), "{result:?}");
    let text = message(&bench, CREATED);
    assert!(
        text.contains(&format!("failed to write snapshot {snapshot}")),
        "{text}"
    );
}
