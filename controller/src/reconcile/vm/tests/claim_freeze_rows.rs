//! Snapshots of machines with claims whose guests are frozen until all disks are taken.
//!
//! Invariant: the test is node, guest and storage system.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

/// A machine that runs, with a claim, and a snapshot `s` that is to be quiesced.
async fn requested() -> Bench {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.freezing();
    bench.claim("data", "Bound");
    let claim = json!({ "claimName": "data" });
    let volumes = json!([{ "name": "data-disk", "persistentVolumeClaim": claim }]);
    bench
        .running(json!({ "spec": { "volumes": volumes } }))
        .await;
    bench.snapshot("s", json!({ "quiesce": { "timeout": "30s" } }));
    bench.settles().await;
    bench
}

/// The same, with its guest frozen.
async fn frozen() -> Bench {
    let mut bench = requested().await;
    let now = bench.time();
    let snapshot = json!({ "running": true, "createdTime": now });
    reports(
        &mut bench,
        json!({ "state": "Running", "snapshot": snapshot }),
    );
    bench.settles().await;
    bench
}

/// The same, and both disks are taken.
async fn taken() -> Bench {
    let mut bench = frozen().await;
    bench.node_takes(true);
    bench.settles().await;
    assert!(!is_cancelled(&bench), "a claim is not taken");
    storage_takes(&mut bench);
    bench.settles().await;
    bench
}

fn status(bench: &Bench) -> Value {
    bench.get(SNAPSHOTS, "s")["status"].clone()
}

/// The node reports this of the freeze.
fn reports(bench: &mut Bench, status: Value) {
    let task = bench.task("Freeze");
    let name = task["metadata"]["name"].as_str().unwrap();
    bench.edit(TASKS, name, json!({ "status": status }));
}

fn ends(bench: &mut Bench, quiesced: bool) {
    let now = bench.time();
    let snapshot = json!({ "running": true, "createdTime": now, "quiesced": quiesced });
    let ended = json!({ "state": "Success", "completionTime": now, "snapshot": snapshot });
    reports(bench, ended);
}

fn storage_takes(bench: &mut Bench) {
    let name = status(bench)["claims"][0]["volumeSnapshotName"].clone();
    let taken = json!({ "creationTime": "2027-01-15T08:00:10Z", "readyToUse": true });
    bench.edit(
        VOLUME_SNAPSHOTS,
        name.as_str().unwrap(),
        json!({ "status": taken }),
    );
}

fn is_cancelled(bench: &Bench) -> bool {
    bench.task("Freeze")["spec"]["cancel"] == true
}

#[tokio::test]
async fn the_guest_is_frozen_before_a_disk_is_taken_and_thaws_after_the_last_one() {
    let early = requested().await;
    let request = &early.task("Freeze")["spec"]["snapshot"];
    assert_eq!(request["quiesceSeconds"], 30);
    assert!(early.tasks("Snapshot").is_empty(), "it is not frozen");

    let mut bench = taken().await;
    let request = &bench.task("Snapshot")["spec"]["snapshot"];
    assert!(request["quiesceSeconds"].is_null(), "{request}");
    assert!(is_cancelled(&bench));
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    ends(&mut bench, true);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
    assert_eq!(status(&bench)["quiesced"], true);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("until all disks"), "{message}");
    // A controller that starts again has nothing to write.
    bench.ctx.shared = crate::shared::Shared::default();
    bench.writes();
    bench.passes().await;
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_snapshot_whose_guest_thawed_too_early_is_taken_and_says_so() {
    let mut bench = frozen().await;
    bench.node_takes(true);
    bench.settles().await;
    // It was, until its time was over.
    ends(&mut bench, true);
    bench.settles().await;
    storage_takes(&mut bench);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
    assert_ne!(status(&bench)["quiesced"], true);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("although quiesce"), "{message}");
}

#[tokio::test]
async fn a_node_that_does_not_report_the_thaw_is_not_waited_for() {
    let mut bench = taken().await;
    bench.forward(119);
    bench.settles().await;
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    bench.forward(1);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
    assert_ne!(status(&bench)["quiesced"], true);
}

#[tokio::test]
async fn a_guest_that_does_not_freeze_fails_the_snapshot_before_anything_is_taken() {
    let mut bench = requested().await;
    bench.task_ends("Freeze", "Error");
    bench.settles().await;
    let failed = "False/CreationFailed";
    assert_eq!(bench.snapshot_condition("s", "Created"), failed);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("said the node"), "{message}");
    assert!(bench.tasks("Snapshot").is_empty());
}

#[tokio::test]
async fn a_guest_that_thawed_before_a_disk_was_taken_is_frozen_again() {
    let mut bench = requested().await;
    ends(&mut bench, false);
    bench.settle().await.ok();
    bench.forward(300);
    bench.settle().await.ok();
    bench.settle().await.ok();
    let again = bench.task("Freeze");
    assert!(again["status"]["state"].is_null(), "{again}");
    assert!(bench.tasks("Snapshot").is_empty());
}

#[tokio::test]
async fn the_guest_thaws_when_its_snapshot_is_deleted() {
    let mut bench = frozen().await;
    bench.delete_snapshot("s");
    bench.settles().await;
    assert!(is_cancelled(&bench));
}

#[tokio::test]
async fn a_disk_that_the_node_took_before_the_freeze_does_not_fit_the_claims() {
    let mut bench = requested().await;
    let before = bench.time();
    bench.forward(5);
    let now = bench.time();
    let snapshot = json!({ "running": true, "createdTime": now });
    reports(
        &mut bench,
        json!({ "state": "Running", "snapshot": snapshot }),
    );
    bench.settles().await;
    let task = bench.task("Snapshot");
    let name = task["metadata"]["name"].as_str().unwrap();
    let taken = json!({ "running": true, "createdTime": before });
    let status = json!({ "state": "Success", "completionTime": now, "snapshot": taken });
    bench.edit(TASKS, name, json!({ "status": status }));
    bench.settles().await;
    storage_takes(&mut bench);
    bench.settles().await;
    let snapshot = json!({ "running": true, "createdTime": now, "quiesced": true });
    let ended = json!({ "state": "Success", "completionTime": now, "snapshot": snapshot });
    reports(&mut bench, ended);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
    assert_ne!(status_of(&bench), true);
}

fn status_of(bench: &Bench) -> Value {
    status(bench)["quiesced"].clone()
}

#[tokio::test]
async fn a_node_that_is_away_does_not_keep_a_snapshot_waiting_for_its_freeze() {
    let mut bench = requested().await;
    reports(&mut bench, json!({ "state": "Running" }));
    bench.settles().await;
    bench.agents(&[]);
    bench.forward(121);
    bench.settle().await.ok();
    assert!(bench.tasks("Freeze").is_empty());
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("vmlet-agent on node n1"), "{message}");
}

#[tokio::test]
async fn a_guest_thaws_when_its_node_fails_to_take_the_disk() {
    let mut bench = frozen().await;
    let now = bench.time();
    let task = bench.task("Snapshot");
    let name = task["metadata"]["name"].as_str().unwrap();
    let failed = json!({ "state": "Error", "transient": true, "completionTime": now });
    bench.edit(TASKS, name, json!({ "status": failed }));
    bench.settles().await;
    assert!(is_cancelled(&bench));
}
