//! Snapshots of machines with claims: the storage system takes a part of each.
//!
//! Invariant: the test is node and storage system; what a pass does not see is on its way.
//! Failure: none of its own.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;

mod reverts;

const IN_PROGRESS: &str = "False/CreationInProgress";
const FAILED: &str = "False/CreationFailed";

/// A machine that runs, with a root disk on its node and two claims that it may write.
async fn with_claims() -> Bench {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.put(
        STORAGE_CLASSES,
        json!({
            "metadata": {
                "name": "sc", "annotations": { "vmlet.dev/volume-snapshot-class": "special" },
            },
            "provisioner": "p",
        }),
    );
    let mut volumes = Vec::new();
    for name in ["data", "logs", "iso"] {
        bench.claim(name, "Bound");
        let claim = json!({ "claimName": name, "readOnly": name == "iso" });
        volumes.push(json!({ "name": format!("{name}-disk"), "persistentVolumeClaim": claim }));
    }
    bench.edit(
        CLAIMS,
        "logs",
        json!({ "spec": { "storageClassName": "sc" } }),
    );
    bench
        .running(json!({ "spec": { "volumes": volumes } }))
        .await;
    bench
}

/// The same, and the node has taken its part of the snapshot `s`.
async fn requested() -> Bench {
    let mut bench = with_claims().await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    bench.settles().await;
    bench
}

fn status(bench: &Bench) -> Value {
    bench.get(SNAPSHOTS, "s")["status"].clone()
}

fn part(bench: &Bench, index: usize) -> String {
    let name = &status(bench)["claims"][index]["volumeSnapshotName"];
    name.as_str().unwrap().to_owned()
}

fn parts(bench: &Bench) -> usize {
    let server = bench.server.lock().unwrap();
    let all = server.objects.keys();
    all.filter(|(collection, _)| collection == VOLUME_SNAPSHOTS)
        .count()
}

/// The storage system reports this of a part.
fn reports(bench: &mut Bench, index: usize, status: Value) {
    let name = part(bench, index);
    bench.edit(VOLUME_SNAPSHOTS, &name, json!({ "status": status }));
}

fn taken(ready: bool) -> Value {
    json!({ "creationTime": "2027-01-15T08:00:10Z", "readyToUse": ready, "restoreSize": "1Gi" })
}

fn created(bench: &Bench) -> String {
    bench.snapshot_condition("s", "Created")
}

#[tokio::test]
async fn each_claim_that_the_machine_may_write_has_a_part_after_the_disk_of_the_node() {
    let mut bench = with_claims().await;
    let uid = bench.snapshot("s", json!({}));
    bench.settles().await;
    let records = status(&bench)["claims"].clone();
    assert_eq!(records.as_array().unwrap().len(), 2, "{records}");
    assert_eq!(records[1]["claimName"], "logs");
    assert_eq!(records[1]["volumeName"], "logs-disk");
    assert!(records[0]["requestTime"].is_null());
    assert_eq!(parts(&bench), 0, "the node is first");
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    assert_eq!(status(&bench)["uniqueID"], json!(uid));
    let current = bench.status().current_snapshot.unwrap();
    assert_eq!(current.name, "s", "the disk descends from it already");
    let first = bench.get(VOLUME_SNAPSHOTS, &part(&bench, 0));
    let second = bench.get(VOLUME_SNAPSHOTS, &part(&bench, 1));
    let source = json!({ "persistentVolumeClaimName": "data" });
    assert_eq!(first["spec"], json!({ "source": source }));
    assert_eq!(second["spec"]["volumeSnapshotClassName"], "special");
    assert_eq!(first["metadata"]["labels"]["snapshot.vmlet.dev/uid"], uid);
    let owner = &first["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], uid);
    assert_eq!(owner["controller"], true);

    reports(&mut bench, 0, taken(true));
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.ends_with("claims: logs"), "{message}");
    bench.events();
    reports(&mut bench, 1, taken(false));
    bench.settles().await;
    assert_eq!(created(&bench), "True/Created");
    assert!(bench.events().contains(&"SnapshotCreated".to_owned()));
    for (kind, reason) in [
        ("CSISynced", "CSISyncInProgress"),
        ("Ready", "WaitingForCSISync"),
    ] {
        let found = bench.snapshot_condition("s", kind);
        assert_eq!(found, format!("False/{reason}"));
    }
    reports(&mut bench, 1, taken(true));
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "CSISynced"), "True/Synced");
    assert_eq!(bench.snapshot_condition("s", "Ready"), "True/Ready");
    assert_eq!(status(&bench)["claims"][1]["restoreSize"], "1Gi");
    // A controller that starts again has nothing to write.
    bench.ctx.shared = crate::shared::Shared::default();
    bench.writes();
    bench.passes().await;
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_part_that_was_requested_by_a_pass_that_came_to_no_end_is_the_same_part() {
    let mut bench = with_claims().await;
    let uid = bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    // The watch has not shown it yet.
    let name = part(&bench, 0);
    let made = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": { "name": name, "namespace": "ns", "ownerReferences": [{
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot", "name": "s", "uid": uid,
        }]},
        "spec": { "source": { "persistentVolumeClaimName": "data" } },
    });
    let earlier = bench.put(VOLUME_SNAPSHOTS, made)["metadata"]["uid"].clone();
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    assert_eq!(parts(&bench), 2);
    let now = bench.get(VOLUME_SNAPSHOTS, &name)["metadata"]["uid"].clone();
    assert_eq!(now, earlier);
}

#[tokio::test]
async fn an_object_of_another_owner_is_no_part() {
    let mut bench = with_claims().await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    let name = part(&bench, 0);
    let foreign = json!({
        "metadata": { "name": name, "namespace": "ns" },
        "spec": { "source": { "persistentVolumeClaimName": "data" } },
        "status": taken(true),
    });
    bench.put(VOLUME_SNAPSHOTS, foreign);
    bench.settles().await;
    assert_eq!(created(&bench), FAILED);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains(&name), "{message}");
    let left = bench.get(VOLUME_SNAPSHOTS, &name);
    assert!(left["metadata"]["ownerReferences"].is_null());
}

#[tokio::test]
async fn the_words_of_the_storage_system_show_and_end_the_snapshot_after_ten_minutes() {
    let mut bench = requested().await;
    let error = json!({ "error": { "message": "no such class" } });
    reports(&mut bench, 0, error);
    bench.settles().await;
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("data: no such class"), "{message}");
    bench.forward(599);
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    bench.forward(1);
    bench.settles().await;
    assert_eq!(created(&bench), FAILED);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("10 minutes: no such class"), "{message}");
    // The node has its part until the object is deleted.
    bench.delete_snapshot("s");
    bench.settles().await;
    bench.task("DeleteSnapshot");
}

#[tokio::test]
async fn a_part_that_is_deleted_by_others_shows() {
    let mut bench = requested().await;
    for index in [0, 1] {
        reports(&mut bench, index, taken(true));
    }
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Ready"), "True/Ready");
    let name = part(&bench, 1);
    bench.remove(VOLUME_SNAPSHOTS, &name);
    bench.settles().await;
    let waits = "False/WaitingForCSISync";
    assert_eq!(bench.snapshot_condition("s", "Ready"), waits);
    let message = bench.snapshot_message("s", "Ready");
    assert!(message.contains(&name), "{message}");
    assert_eq!(parts(&bench), 1, "a later one would be of another time");
    assert_eq!(created(&bench), "True/Created");
}

#[tokio::test]
async fn a_claim_that_is_not_bound_is_waited_for() {
    let mut bench = with_claims().await;
    bench.edit(CLAIMS, "data", json!({ "status": { "phase": "Lost" } }));
    bench.snapshot("s", json!({}));
    bench.settle().await.ok();
    assert_eq!(created(&bench), IN_PROGRESS);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.ends_with("not bound: data"), "{message}");
    assert!(bench.tasks("Snapshot").is_empty());
    bench.edit(CLAIMS, "data", json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    bench.task("Snapshot");
}

#[tokio::test]
async fn quiesce_is_refused_on_a_node_that_freezes_no_guest_for_claims() {
    let mut bench = with_claims().await;
    bench.snapshot("s", json!({ "quiesce": {} }));
    bench.settles().await;
    assert_eq!(created(&bench), FAILED);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("data, logs; upgrade"), "{message}");
    assert!(bench.tasks("Snapshot").is_empty() && bench.tasks("Freeze").is_empty());
}

#[tokio::test]
async fn a_request_that_the_api_server_does_not_know_yet_is_repeated() {
    let mut bench = with_claims().await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    bench.refuse(Method::POST, "volumesnapshots", 404, 1);
    let text = failure(&bench.pass().await);
    assert!(text.contains("failed to request VolumeSnapshot"), "{text}");
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    assert_eq!(parts(&bench), 2);
}

#[tokio::test]
async fn parts_that_would_be_of_another_time_than_the_disk_of_the_node_fail() {
    for (late, found) in [(120, IN_PROGRESS), (121, FAILED)] {
        let mut bench = with_claims().await;
        bench.snapshot("s", json!({}));
        bench.settles().await;
        bench.node_takes(true);
        bench.refuse(Method::POST, "volumesnapshots", 500, usize::MAX);
        failure(&bench.pass().await);
        bench.forward(late);
        bench.server.lock().unwrap().refusals.clear();
        bench.settles().await;
        assert_eq!(created(&bench), found, "{late}");
    }
}

/// The part of a claim at the API server, which the storage system has taken, and which no watch has shown.
fn unseen(bench: &mut Bench, index: usize, claim: &str, owner: &str) {
    let name = part(bench, index);
    let made = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": { "name": name, "namespace": "ns", "ownerReferences": [{
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot", "name": "s", "uid": owner,
        }]},
        "spec": { "source": { "persistentVolumeClaimName": claim } },
        "status": taken(true),
    });
    bench.put(VOLUME_SNAPSHOTS, made);
}

#[tokio::test]
async fn parts_that_were_requested_in_time_are_not_late_while_no_watch_shows_them() {
    let mut bench = with_claims().await;
    let uid = bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    bench.refuse(Method::POST, "volumesnapshots", 500, usize::MAX);
    failure(&bench.pass().await);
    bench.server.lock().unwrap().refusals.clear();
    bench.forward(200);
    // An API server that answers for the kind later than others.
    let kind = "volumesnapshots".to_owned();
    bench.server.lock().unwrap().unknown.push(kind);
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("not served at present"), "{message}");
    bench.server.lock().unwrap().unknown.clear();
    unseen(&mut bench, 0, "data", &uid);
    unseen(&mut bench, 1, "logs", &uid);
    bench.passes().await;
    assert_eq!(created(&bench), "True/Created");
}

#[tokio::test]
async fn parts_of_a_kind_that_is_no_longer_served_fail_after_ten_minutes() {
    let mut bench = with_claims().await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    bench.refuse(Method::POST, "volumesnapshots", 500, usize::MAX);
    failure(&bench.pass().await);
    bench.server.lock().unwrap().refusals.clear();
    let kind = "volumesnapshots".to_owned();
    bench.server.lock().unwrap().unknown.push(kind);
    bench.forward(599);
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    bench.forward(1);
    bench.settles().await;
    assert_eq!(created(&bench), FAILED);
}

/// A machine that runs from a claim of a storage class, on a node without an agent.
async fn in_a_claim() -> Bench {
    let mut bench = Bench::new();
    // No agent lives.
    bench.agents(&[]);
    bench.put(
        STORAGE_CLASSES,
        json!({ "metadata": { "name": "sc" }, "provisioner": "p" }),
    );
    let spec = json!({
        "runStrategy": "Always", "storageClass": "sc", "bootDiskCapacity": "945Mi",
    });
    bench.machine(json!({ "spec": spec }));
    bench.settle().await.ok();
    bench.edit(CLAIMS, "vm-root", json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    bench.run("n1");
    bench.facts(alive());
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn the_time_of_the_storage_system_begins_with_the_request() {
    let mut bench = in_a_claim().await;
    bench.snapshot("s", json!({}));
    bench.refuse(Method::POST, "volumesnapshots", 500, usize::MAX);
    failure(&bench.pass().await);
    bench.forward(700);
    bench.server.lock().unwrap().refusals.clear();
    bench.settles().await;
    assert_eq!(created(&bench), IN_PROGRESS);
    assert_eq!(parts(&bench), 1);
}

#[tokio::test]
async fn a_root_disk_in_a_claim_needs_no_node() {
    let mut bench = in_a_claim().await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    assert!(bench.tasks("Snapshot").is_empty());
    assert_eq!(status(&bench)["claims"][0]["volumeName"], "vmlet-root");
    reports(&mut bench, 0, taken(true));
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Ready"), "True/Ready");
    let taken = status(&bench);
    assert_eq!(taken["creationTime"], "2027-01-15T08:00:10Z");
    assert_eq!(taken["powerState"], "PoweredOn");
    assert!(
        taken["uniqueID"].is_null() && taken["parent"].is_null(),
        "{taken}"
    );
    assert!(bench.status().current_snapshot.is_none());
    bench.delete_snapshot("s");
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "s").is_none(), "no node has it");
}
