//! Rows T1: snapshots while an agent, a node or the controller is away.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use crds::names;
use serde_json::{Value, json};

use super::bench::*;

async fn with_machine() -> Bench {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.running(json!({})).await;
    bench
}

fn relabel(bench: &mut Bench) {
    let labels = json!({ "metadata": { "labels": { "app": "new" } } });
    bench.edit(VMS, "vm", labels);
}

fn recorded_label(bench: &Bench) -> Value {
    bench.get(SNAPSHOTS, "s")["status"]["manifest"]["labels"]["app"].clone()
}

/// The agents are back, and one has this task.
async fn continues(bench: &mut Bench, kind: &str) {
    bench.snapshotting();
    bench.settles().await;
    bench.task(kind);
}

/// The snapshot is deleted, and an agent has the task.
async fn begins_deletion(bench: &mut Bench) {
    bench.delete_snapshot("s");
    bench.settles().await;
    bench.task("DeleteSnapshot");
}

fn assert_deletion_failed(bench: &Bench) {
    let ready = bench.snapshot_condition("s", "Ready");
    assert_eq!(ready, "False/DeletionFailed");
}

#[tokio::test]
async fn a_result_that_no_pass_records_for_long_is_kept() {
    let mut bench = with_machine().await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    let pause = |value: Option<&str>| json!({ "metadata": { "annotations": { (names::ADMIN_PAUSED): value } } });
    bench.edit(VMS, "vm", pause(Some("")));
    bench.node_takes(true);
    bench.settle().await.ok();
    bench.forward(700);
    bench.settle().await.ok();
    bench.task("Snapshot");
    relabel(&mut bench);
    bench.edit(VMS, "vm", pause(None));
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
    assert_eq!(recorded_label(&bench), Value::Null, "as of the snapshot");
    bench.settles().await;
    assert!(bench.tasks("Snapshot").is_empty(), "swept then");
}

#[tokio::test]
async fn a_request_that_vanished_is_repeated_with_its_record_and_a_failed_one_with_a_new_one() {
    for has_failed in [false, true] {
        let mut bench = with_machine().await;
        bench.snapshot("s", json!({}));
        bench.settles().await;
        let name = bench.task("Snapshot")["metadata"]["name"].clone();
        let name = name.as_str().unwrap();
        relabel(&mut bench);
        if has_failed {
            let now = bench.time();
            let failed = json!({ "state": "Error", "transient": true, "completionTime": now });
            bench.edit(TASKS, name, json!({ "status": failed }));
            bench.settles().await;
            bench.forward(30);
        } else {
            bench.remove(TASKS, name);
        }
        bench.settles().await;
        bench.node_takes(true);
        bench.settles().await;
        assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
        let label = if has_failed {
            json!("new")
        } else {
            Value::Null
        };
        assert_eq!(recorded_label(&bench), label);
    }
}

#[tokio::test]
async fn one_that_was_requested_ends_before_another_of_the_same_second() {
    let mut bench = with_machine().await;
    bench.snapshot("b", json!({}));
    bench.settles().await;
    bench.snapshot("a", json!({}));
    bench.settles().await;
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("b", "Created"), "True/Created");
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(bench.get(SNAPSHOTS, "a")["status"]["parent"]["name"], "b");
}

#[tokio::test]
async fn a_deletion_waits_for_the_agent_without_a_task() {
    let mut bench = with_machine().await;
    bench.taken("s").await;
    bench.agents(&[]);
    bench.delete_snapshot("s");
    bench.settles().await;
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    assert_deletion_failed(&bench);
    let message = bench.snapshot_message("s", "Ready");
    assert!(message.contains("does not renew"), "{message}");
    continues(&mut bench, "DeleteSnapshot").await;
}

#[tokio::test]
async fn a_machine_is_powered_off_while_a_snapshot_is_deleted() {
    let mut bench = with_machine().await;
    bench.taken("s").await;
    begins_deletion(&mut bench).await;
    let off = json!({ "spec": { "runStrategy": "Halted", "powerOffMode": "Hard" } });
    bench.edit(VMS, "vm", off);
    bench.settles().await;
    let deleted = &bench.pod()["metadata"]["deletionTimestamp"];
    assert!(!deleted.is_null());
}

#[tokio::test]
async fn a_snapshot_that_no_agent_takes_keeps_no_machine_on() {
    let off = json!({ "spec": { "runStrategy": "Halted", "powerOffMode": "Hard" } });
    for is_requested_before in [false, true] {
        let mut bench = with_machine().await;
        bench.snapshot("s", json!({}));
        bench.settles().await;
        bench.task("Snapshot");
        if is_requested_before {
            bench.edit(VMS, "vm", off.clone());
            let soon = seconds(&bench.settle().await);
            assert_eq!(soon, Some(40), "no event shows the end of the lease");
            let deleted = &bench.pod()["metadata"]["deletionTimestamp"];
            assert!(deleted.is_null());
        }
        bench.agents(&[]);
        bench.settles().await;
        assert!(bench.tasks("Snapshot").is_empty());
        if !is_requested_before {
            bench.edit(VMS, "vm", off.clone());
            bench.settles().await;
        }
        let deleted = &bench.pod()["metadata"]["deletionTimestamp"];
        assert!(!deleted.is_null());
        bench.end("vm", 137, "Killed");
        bench.settles().await;
        assert!(!bench.has_pod());
        let message = bench.snapshot_message("s", "Created");
        assert!(message.contains("does not renew"), "{message}");
        continues(&mut bench, "Snapshot").await;
    }
}

#[tokio::test]
async fn a_deletion_that_no_agent_takes_keeps_no_machine_off() {
    let mut bench = with_machine().await;
    bench.forward(700);
    bench.taken("s").await;
    begins_deletion(&mut bench).await;
    let ended = bench.pod()["metadata"]["uid"].clone();
    bench.agents(&[]);
    bench.end("vm", 0, "GuestShutdown");
    bench.settles().await;
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    assert_ne!(bench.pod()["metadata"]["uid"], ended, "another instance");
    assert_deletion_failed(&bench);
    continues(&mut bench, "DeleteSnapshot").await;
}

#[tokio::test]
async fn a_snapshot_that_is_deleted_before_any_agent_takes_it_ends_without_one() {
    for is_taken in [false, true] {
        let mut bench = with_machine().await;
        bench.snapshot("s", json!({}));
        bench.settles().await;
        if is_taken {
            let name = bench.task("Snapshot")["metadata"]["name"].clone();
            let running = json!({ "status": { "state": "Running" } });
            bench.edit(TASKS, name.as_str().unwrap(), running);
        }
        bench.delete_snapshot("s");
        bench.settles().await;
        bench.agents(&[]);
        bench.settles().await;
        assert_eq!(bench.tasks("Snapshot").len(), usize::from(is_taken));
        if is_taken {
            // The node may still be at it.
            continue;
        }
        assert_deletion_failed(&bench);
        continues(&mut bench, "DeleteSnapshot").await;
    }
}

#[tokio::test]
async fn a_snapshot_of_a_node_that_no_longer_exists_is_let_go() {
    let mut bench = with_machine().await;
    bench.taken("a").await;
    bench.taken("b").await;
    bench.remove(NODES, "n1");
    bench.delete_snapshot("b");
    bench.settle().await.ok();
    assert!(bench.try_get(SNAPSHOTS, "b").is_none());
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    assert_eq!(bench.status().current_snapshot.unwrap().name, "a");
}

#[tokio::test]
async fn a_machine_that_could_not_start_is_snapshotted() {
    let mut bench = with_machine().await;
    let strategy = |strategy: &str| json!({ "spec": { "runStrategy": strategy } });
    bench.edit(VMS, "vm", strategy("Halted"));
    bench.settles().await;
    bench.end("vm", 0, "Stopped");
    bench.settles().await;
    bench.remove(CLASSES, "small");
    bench.edit(VMS, "vm", strategy("Always"));
    assert!(failure(&bench.settle().await).contains("small"));
    bench.snapshot("s", json!({}));
    bench.settle().await.ok();
    bench.task("Snapshot");
    bench.node_takes(false);
    bench.settle().await.ok();
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
}

#[tokio::test]
async fn a_pass_writes_a_bounded_number_of_conditions() {
    let mut bench = with_machine().await;
    for index in 0..40 {
        bench.snapshot(&format!("s{index:02}"), json!({}));
    }
    bench.settles().await;
    let waiting = |bench: &Bench, name: &str| bench.snapshot_condition(name, "Created");
    assert_eq!(waiting(&bench, "s32"), "False/CreationInProgress");
    assert_eq!(waiting(&bench, "s33"), "-/-");
}
