//! Snapshots with the memory of the guest, and reverts to them.
//!
//! Invariant: the node is the test: it says what it has taken and reverted.
//! Failure: none of its own.

use crds::PowerState;
use serde_json::{Value, json};

use super::bench::*;

const MIB: u64 = 1 << 20;

/// A machine that runs, with a snapshot `s` that has its memory.
async fn with_memory(changes: Value) -> Bench {
    let mut bench = Bench::new();
    bench.saving_memory();
    bench.running(changes).await;
    taken(&mut bench).await;
    bench
}

async fn taken(bench: &mut Bench) {
    bench.snapshot("s", json!({ "memory": true }));
    bench.settles().await;
    assert_eq!(bench.task("Snapshot")["spec"]["snapshot"]["memory"], true);
    bench.node_takes_with(true, 64 * MIB);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
}

/// Up to the end of the node's task.
async fn reverted(bench: &mut Bench) {
    bench.edit(VMS, "vm", json!({ "spec": { "currentSnapshotName": "s" } }));
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert_eq!(bench.task("Revert")["spec"]["snapshot"]["memory"], true);
    bench.task_ends("Revert", "Success");
}

fn restores(bench: &Bench) -> bool {
    bench.pod()["metadata"]["annotations"]["vmlet.dev/restore"] == "true"
}

#[tokio::test]
async fn a_snapshot_with_memory_says_so_and_has_its_size_and_devices() {
    let bench = with_memory(json!({})).await;
    let status = &bench.get(SNAPSHOTS, "s")["status"];
    assert_eq!(status["memory"], true);
    assert_eq!(status["storage"]["requested"], "74Mi");
    assert!(status["manifest"]["devices"].is_object(), "{status}");
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("resumes from its memory"), "{message}");
}

#[tokio::test]
async fn a_node_that_leaves_the_memory_out_has_taken_no_snapshot_with_memory() {
    let mut bench = Bench::new();
    bench.saving_memory();
    bench.running(json!({})).await;
    bench.snapshot("s", json!({ "memory": true }));
    bench.settles().await;
    bench.node_takes(true);
    bench.settles().await;
    let failed = "False/CreationFailed";
    assert_eq!(bench.snapshot_condition("s", "Created"), failed);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("without the memory"), "{message}");
    bench.delete_snapshot("s");
    bench.settles().await;
    bench.task("DeleteSnapshot");
}

#[tokio::test]
async fn a_machine_resumes_from_the_memory_of_its_snapshot_once() {
    let mut bench = Bench::new();
    bench.saving_memory();
    bench.running(json!({})).await;
    // The guest does not have this before its next boot.
    let annotations = json!({ "vmlet.dev/guest-agent": "off" });
    let template = json!({ "metadata": { "annotations": annotations } });
    bench.edit(VMS, "vm", json!({ "spec": { "template": template } }));
    bench.settles().await;
    taken(&mut bench).await;
    reverted(&mut bench).await;
    bench.settles().await;
    assert!(bench.has_pod() && restores(&bench), "{:?}", bench.status());
    let agent =
        |bench: &Bench| bench.pod()["metadata"]["annotations"]["vmlet.dev/guest-agent"].clone();
    assert!(agent(&bench).is_null(), "it has the devices of the guest");
    assert!(bench.status().snapshot_revert.is_none());
    bench.run("n1");
    bench.settles().await;
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOn));
    // The next start boots.
    bench.end("vm", 1, "Crashed");
    bench.settles().await;
    bench.forward(600);
    bench.settles().await;
    assert!(bench.has_pod() && !restores(&bench));
    assert_eq!(agent(&bench), "off");
}

/// What to do where QEMU does not take the memory.
#[tokio::test]
async fn a_machine_that_is_powered_off_discards_the_memory_of_its_snapshot() {
    let mut bench =
        with_memory(json!({ "spec": { "powerState": "PoweredOn", "runStrategy": null } })).await;
    reverted(&mut bench).await;
    bench.settles().await;
    assert!(restores(&bench));
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "PoweredOff" } }));
    bench.settles().await;
    assert!(!bench.has_pod());
    let task = bench.task("Restore");
    assert_eq!(task["spec"]["discard"], true);
    bench.task_ends("Restore", "Success");
    bench.settles().await;
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
}

/// No instance is between the two, and the task of the first discard is kept for a while.
#[tokio::test]
async fn the_memory_of_a_second_revert_is_discarded_too() {
    let mut bench =
        with_memory(json!({ "spec": { "powerState": "PoweredOn", "runStrategy": null } })).await;
    reverted(&mut bench).await;
    powered_off_before_it_starts(&mut bench).await;
    bench.task_ends("Restore", "Success");
    bench.settles().await;
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));

    bench.forward(60);
    bench.edit(VMS, "vm", json!({ "spec": { "currentSnapshotName": "s" } }));
    bench.settles().await;
    assert_eq!(bench.tasks("Revert").len(), 2);
    bench.task_ends("Revert", "Success");
    powered_off_before_it_starts(&mut bench).await;
    assert_eq!(bench.status().power_state, Some(PowerState::Suspended));
    bench.task_ends("Restore", "Success");
    bench.settles().await;
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
}

/// Up to the task that discards the memory.
async fn powered_off_before_it_starts(bench: &mut Bench) {
    bench.passes().await;
    assert!(bench.status().snapshot_revert.is_none() && !bench.has_pod());
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "PoweredOff" } }));
    bench.settles().await;
    assert!(!bench.has_pod());
    let task = bench.task("Restore");
    assert_eq!(task["spec"]["discard"], true);
    assert!(task["status"]["state"].is_null(), "{task}");
}

/// The disk has the content of the snapshot by then, and the node its memory.
#[tokio::test]
async fn an_owner_who_ends_a_revert_has_a_machine_that_resumes() {
    let mut bench = with_memory(json!({})).await;
    reverted(&mut bench).await;
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "currentSnapshotName": null } }),
    );
    bench.settles().await;
    assert!(bench.events().contains(&"RevertEnded".to_owned()));
    assert!(bench.has_pod() && restores(&bench));
}

#[tokio::test]
async fn a_node_that_cannot_resume_from_a_snapshot_reverts_to_none_with_memory() {
    let mut bench = with_memory(json!({})).await;
    bench.snapshotting();
    bench.edit(VMS, "vm", json!({ "spec": { "currentSnapshotName": "s" } }));
    bench.pass().await.ok();
    let condition = bench.condition("VirtualMachineSnapshotRevertSucceeded");
    let message = condition.unwrap().message;
    assert!(
        message.contains("cannot resume from that: upgrade"),
        "{message}"
    );
    assert!(bench.status().snapshot_revert.is_none());

    // Without the memory it can.
    let annotations = json!({ "vmlet.dev/revert-without-memory": "" });
    bench.edit(
        VMS,
        "vm",
        json!({ "metadata": { "annotations": annotations } }),
    );
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert!(bench.task("Revert")["spec"]["snapshot"]["memory"].is_null());
    bench.task_ends("Revert", "Success");
    bench.settles().await;
    assert!(bench.has_pod() && !restores(&bench));
}
