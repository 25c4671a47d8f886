//! Rows T1: a machine reverts to a snapshot.
//!
//! Invariant: one test for each case, named by it; the node is the test.
//! Failure: none of its own.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::reconcile;
use crds::PowerState;

const REVERT: &str = "VirtualMachineSnapshotRevertSucceeded";
const MARK: &str = "vmlet.dev/snapshot-revert-in-progress";

pub(super) fn to(name: Option<&str>) -> Value {
    json!({ "spec": { "currentSnapshotName": name } })
}

/// A machine that runs, with the snapshot `s` and edits since.
pub(super) async fn edited(changes: Value) -> Bench {
    let mut bench = Bench::new();
    bench.snapshotting();
    // Merged into these, so that a field of the changes that is null stays.
    let mut all = changes;
    all["metadata"] = json!({
        "labels": { "app": "old" },
        "annotations": { "note": "old", "vmlet.dev.protected/reconcile-priority": "7" },
    });
    bench.running(all).await;
    bench.taken("s").await;
    let edit = json!({
        "metadata": {
            "labels": { "app": "new", "added": "1" },
            "annotations": { "note": null, "vmlet.dev.protected/reconcile-priority": "9" },
        },
        "spec": { "powerOffTimeout": "7s", "bootDiskCapacity": "9Gi", "nodeSelector": { "a": "b" } },
    });
    bench.edit(VMS, "vm", edit);
    bench.settles().await;
    bench.writes();
    bench.events();
    bench
}

/// Up to the task of the node.
async fn reverting() -> Bench {
    let mut bench = edited(json!({})).await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert!(!bench.has_pod());
    bench.task("Revert");
    bench
}

fn message(bench: &Bench) -> String {
    bench.condition(REVERT).unwrap().message
}

#[tokio::test]
async fn t1c_a_snapshot_that_does_not_exist_is_reported_and_tried_again() {
    let mut bench = edited(json!({})).await;
    bench.edit(VMS, "vm", to(Some("missing")));
    let text = failure(&bench.pass().await);
    assert!(text.contains("missing: it does not exist"), "{text}");
    let failed = "False/VirtualMachineSnapshotRevertFailed";
    assert_eq!(bench.condition_text(REVERT), failed);
    assert!(message(&bench).contains("removing currentSnapshotName"));
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert!(bench.status().snapshot_revert.is_none());
    bench.edit(VMS, "vm", to(None));
    bench.settles().await;
    assert_eq!(bench.condition_text(REVERT), "-");
    assert_eq!(bench.condition_text("Failure"), "-");
}

#[tokio::test]
async fn t1d_a_machine_gets_disk_specification_and_power_state_of_the_snapshot() {
    let mut bench = edited(json!({})).await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.passes().await;
    let started = "False/VirtualMachineSnapshotRevertInProgress";
    assert_eq!(bench.condition_text(REVERT), started);
    assert_eq!(bench.annotation("vm", MARK), "s");
    assert!(
        bench.pod()["metadata"]["deletionTimestamp"].is_null(),
        "on record first"
    );
    bench.settles().await;
    let pod = bench.pod();
    assert!(!pod["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 1);
    assert!(bench.tasks("Revert").is_empty(), "the guest may run");
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert!(!bench.has_pod());
    let uid = bench.get(SNAPSHOTS, "s")["metadata"]["uid"].clone();
    assert_eq!(bench.task("Revert")["spec"]["snapshot"]["uid"], uid);
    bench.forward(60);
    bench.settles().await;
    assert!(!bench.has_pod(), "it stays off");
    bench.taken_later().await;

    bench.task_ends("Revert", "Success");
    bench.settles().await;
    let vm = bench.get(VMS, "vm");
    assert!(vm["spec"]["currentSnapshotName"].is_null());
    assert!(vm["spec"]["nodeSelector"].is_null());
    assert_ne!(vm["spec"]["powerOffTimeout"], "7s");
    assert_eq!(
        vm["spec"]["bootDiskCapacity"], "9Gi",
        "no disk gets smaller"
    );
    let labels = &vm["metadata"]["labels"];
    assert_eq!(
        (&labels["app"], &labels["added"]),
        (&json!("old"), &json!(null))
    );
    assert_eq!(bench.annotation("vm", "note"), "old");
    let priority = "vmlet.dev.protected/reconcile-priority";
    assert_eq!(
        bench.annotation("vm", priority),
        "9",
        "only privileged users set it"
    );
    assert_eq!(bench.annotation("vm", MARK), "-");
    assert_eq!(bench.condition_text(REVERT), "-");
    assert!(bench.status().snapshot_revert.is_none());
    assert_eq!(bench.status().current_snapshot.unwrap().name, "s");
    assert!(bench.events().contains(&"RevertSucceeded".to_owned()));
    assert!(bench.has_pod(), "it ran when the snapshot was taken");
    // The same once more is another task.
    bench.run("n1");
    bench.settles().await;
    bench.forward(1);
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert_eq!(bench.tasks("Revert").len(), 2);
}

impl Bench {
    /// A snapshot waits for the end of the revert.
    async fn taken_later(&mut self) {
        self.snapshot("later", json!({}));
        self.settles().await;
        assert_eq!(self.tasks("Snapshot").len(), 1, "of the one that was taken");
        self.delete_snapshot("later");
        self.settles().await;
    }
}

#[tokio::test]
async fn each_step_is_taken_up_by_another_controller() {
    for (method, part) in [
        (Method::DELETE, "pods/vm"),
        (Method::POST, "virtualmachinetasks"),
        (Method::PATCH, "virtualmachines/vm$"),
        (Method::PATCH, "virtualmachines/vm/status"),
    ] {
        for times in 1..4 {
            let mut bench = edited(json!({})).await;
            bench.edit(VMS, "vm", to(Some("s")));
            bench.refuse(method.clone(), part, 500, times);
            for _ in 0..30 {
                bench.pass().await.ok();
                bench.ctx.shared = crate::shared::Shared::default();
                if bench.has_pod() && !bench.pod()["metadata"]["deletionTimestamp"].is_null() {
                    bench.end("vm", 137, "Killed");
                }
                bench.task_ends("Revert", "Success");
            }
            let vm = bench.get(VMS, "vm");
            assert!(
                vm["spec"]["currentSnapshotName"].is_null(),
                "{part} {times}"
            );
            assert_eq!(vm["metadata"]["labels"]["app"], "old", "{part} {times}");
            assert!(bench.status().snapshot_revert.is_none(), "{part} {times}");
            assert!(bench.has_pod(), "{part} {times}");
        }
    }
}

#[tokio::test]
async fn a_node_that_fails_is_asked_again_and_the_owner_can_end_it() {
    let mut bench = reverting().await;
    let now = bench.time();
    let name = bench.task("Revert")["metadata"]["name"].clone();
    let failed = json!({
        "state": "Error", "transient": true, "message": "said the node", "completionTime": now,
    });
    bench.edit(TASKS, name.as_str().unwrap(), json!({ "status": failed }));
    assert!(failure(&bench.settle().await).contains("said the node"));
    let failed = "False/VirtualMachineSnapshotRevertTaskFailed";
    assert_eq!(bench.condition_text(REVERT), failed);
    assert!(!bench.has_pod());
    bench.forward(11);
    bench.settle().await.ok();
    let again = bench.task("Revert");
    assert!(again["status"].is_null(), "another task: {again}");
    bench.edit(VMS, "vm", to(None));
    bench.settles().await;
    assert_eq!(bench.task("Revert")["spec"]["cancel"], true);
    assert!(!bench.has_pod(), "the node may still be at it");
    bench.task_ends("Revert", "Cancelled");
    bench.settles().await;
    assert!(bench.has_pod());
    assert_eq!(bench.condition_text(REVERT), "-");
    let timeout = &bench.get(VMS, "vm")["spec"]["powerOffTimeout"];
    assert_eq!(timeout, "7s", "the specification is as it was");
}

#[tokio::test]
async fn what_the_api_server_would_refuse_is_refused_before_anything_is_lost() {
    let mut bench = edited(json!({})).await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.refuse(Method::PATCH, "virtualmachines/vm$", 422, 1);
    bench.pass().await.unwrap_err();
    let invalid = "False/VirtualMachineSnapshotRevertFailedInvalidVMManifest";
    assert_eq!(bench.condition_text(REVERT), invalid);
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert!(bench.status().snapshot_revert.is_none());
}

#[tokio::test]
async fn the_snapshot_that_is_reverted_to_is_not_deleted_meanwhile() {
    let mut bench = reverting().await;
    bench.delete_snapshot("s");
    bench.settles().await;
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    bench.task_ends("Revert", "Success");
    bench.settles().await;
    bench.settles().await;
    let vm = bench.get(VMS, "vm");
    assert_eq!(vm["metadata"]["labels"]["app"], "old");
    bench.task("DeleteSnapshot");
}

#[tokio::test]
async fn a_machine_that_starts_on_request_starts_if_it_ran() {
    let manual = json!({ "spec": { "runStrategy": "Always" } });
    let mut bench = edited(manual).await;
    // The manifest has the strategy of the time.
    let record = json!({ "status": { "manifest": { "spec": { "runStrategy": "Manual" } } } });
    bench.edit(SNAPSHOTS, "s", record);
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    bench.task_ends("Revert", "Success");
    bench.settles().await;
    assert_eq!(bench.get(VMS, "vm")["spec"]["runStrategy"], "Manual");
    assert!(bench.has_pod());
}

#[tokio::test]
async fn a_suspended_machine_and_strange_snapshots_are_refused() {
    let mut bench =
        edited(json!({ "spec": { "runStrategy": null, "powerState": "PoweredOn" } })).await;
    let other = json!({ "spec": { "vmName": "other" } });
    bench.edit(SNAPSHOTS, "s", other);
    bench.edit(VMS, "vm", to(Some("s")));
    assert!(failure(&bench.pass().await).contains("machine other"));
    bench.edit(
        SNAPSHOTS,
        "s",
        json!({ "spec": { "vmName": "vm" }, "status": { "diskUID": "x" } }),
    );
    assert!(failure(&bench.pass().await).contains("no longer exists"));
    let uid = bench.get(VMS, "vm")["metadata"]["uid"].clone();
    bench.edit(SNAPSHOTS, "s", json!({ "status": { "diskUID": uid } }));
    bench.edit(VMS, "vm", to(None));
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "Suspended" } }));
    bench.settle().await.ok();
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    assert_eq!(bench.status().power_state, Some(PowerState::Suspended));
    bench.edit(VMS, "vm", to(Some("s")));
    assert!(failure(&bench.pass().await).contains("suspended"));
    bench.snapshot("t", json!({}));
    bench.settle().await.ok();
    let message = bench.snapshot_message("t", "Created");
    assert!(message.contains("suspended"), "{message}");
}

const STALLED: &str = "False/VirtualMachineSnapshotRevertTaskFailed";

#[tokio::test]
async fn a_node_without_its_agent_is_no_reason_to_power_the_machine_off() {
    let mut bench = edited(json!({})).await;
    bench.agents(&[]);
    bench.edit(VMS, "vm", to(Some("s")));
    assert!(failure(&bench.pass().await).contains("does not renew"));
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert!(bench.status().snapshot_revert.is_none());
}

#[tokio::test]
async fn the_owner_ends_a_revert_that_no_agent_takes() {
    let mut bench = reverting().await;
    bench.agents(&[]);
    bench.settles().await;
    assert_eq!(bench.condition_text(REVERT), STALLED);
    assert!(message(&bench).contains("vmlet-agent on node n1"));
    bench.edit(VMS, "vm", to(None));
    bench.settles().await;
    assert!(bench.tasks("Revert").is_empty());
    assert!(bench.has_pod());
}

#[tokio::test]
async fn the_owner_ends_a_revert_on_a_node_that_does_not_report() {
    let mut bench = reverting().await;
    bench.node("n1", false);
    bench.settles().await;
    assert_eq!(bench.condition_text(REVERT), STALLED);
    assert!(message(&bench).contains("does not report"));
    bench.edit(VMS, "vm", to(None));
    bench.settles().await;
    assert_eq!(bench.task("Revert")["spec"]["cancel"], true);
    bench.task_ends("Revert", "Cancelled");
    bench.settles().await;
    assert!(bench.status().snapshot_revert.is_none());
}

#[tokio::test]
async fn a_snapshot_that_was_taken_is_recorded_before_a_revert_begins() {
    let mut bench = edited(json!({})).await;
    bench.snapshot("t", json!({}));
    bench.settles().await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    assert!(bench.status().snapshot_revert.is_none(), "it waits");
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("t", "Created"), "True/Created");
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    bench.task_ends("Revert", "Success");
    bench.settles().await;
    assert_eq!(bench.status().current_snapshot.unwrap().name, "s");
    bench.taken("u").await;
    assert_eq!(bench.get(SNAPSHOTS, "u")["status"]["parent"]["name"], "s");
}

#[tokio::test]
async fn what_users_requested_during_a_revert_decides_at_its_end() {
    let mut bench = edited(json!({})).await;
    let record = json!({ "status": { "manifest": { "spec": { "runStrategy": "Manual" } } } });
    bench.edit(SNAPSHOTS, "s", record);
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    let request = json!([{ "action": "Start", "data": { "paused": "true" } }]);
    let queued = json!({ "status": { "stateChangeRequests": request } });
    bench.edit(VMS, "vm", queued);
    bench.settles().await;
    bench.task_ends("Revert", "Success");
    bench.passes().await;
    let vm = bench.get(VMS, "vm");
    assert!(vm["spec"]["currentSnapshotName"].is_null());
    assert_eq!(vm["status"]["stateChangeRequests"], request);
}

/// Up to the task of the node, from this run strategy; `ended`: its instance had ended before.
async fn reverting_from(strategy: &str, ended: bool) -> Bench {
    let mut bench = edited(json!({})).await;
    let spec = json!({ "spec": { "runStrategy": strategy } });
    bench.edit(VMS, "vm", spec);
    bench.settles().await;
    if ended {
        bench.end("vm", 0, "GuestShutdown");
        bench.settles().await;
    }
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    if !ended {
        bench.end("vm", 137, "Killed");
        bench.settles().await;
    }
    assert!(!bench.has_pod());
    bench.task("Revert");
    bench
}

#[tokio::test]
async fn a_revert_that_is_given_up_leaves_the_power_state_as_it_was() {
    for (strategy, ended) in [
        ("Manual", false),
        ("RerunOnFailure", true),
        ("RerunOnFailure", false),
        ("Once", true),
    ] {
        let mut bench = reverting_from(strategy, ended).await;
        bench.edit(VMS, "vm", to(None));
        bench.settles().await;
        bench.task_ends("Revert", "Cancelled");
        bench.settles().await;
        assert!(bench.status().snapshot_revert.is_none(), "{strategy}");
        assert_eq!(bench.has_pod(), !ended, "{strategy} {ended}");
    }
}

#[tokio::test]
async fn a_disk_that_was_reverted_before_its_owner_ended_the_revert_descends_from_the_snapshot() {
    let mut bench = edited(json!({})).await;
    bench.taken("t").await;
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert_eq!(bench.status().current_snapshot.unwrap().name, "t");
    bench.task_ends("Revert", "Success");
    bench.edit(VMS, "vm", to(None));
    bench.settles().await;
    assert_eq!(bench.status().current_snapshot.unwrap().name, "s");
}

#[tokio::test]
async fn the_only_instance_of_a_machine_is_repeated_if_it_ran_when_the_snapshot_was_taken() {
    for state in ["PoweredOn", "PoweredOff"] {
        let mut bench = reverting_from("Once", true).await;
        let manifest = json!({ "spec": { "runStrategy": "Once" } });
        let record = json!({ "status": { "powerState": state, "manifest": manifest } });
        bench.edit(SNAPSHOTS, "s", record);
        bench.task_ends("Revert", "Success");
        bench.settles().await;
        assert!(bench.status().snapshot_revert.is_none(), "{state}");
        assert_eq!(bench.has_pod(), state == "PoweredOn", "{state}");
    }
}

/// The disk is reverted, and the specification is still to be restored.
async fn restoring() -> Bench {
    let mut bench = reverting().await;
    bench.refuse(Method::PATCH, "virtualmachines/vm$", 422, 9);
    bench.task_ends("Revert", "Success");
    bench.pass().await.unwrap_err();
    let invalid = "False/VirtualMachineSnapshotRevertFailedInvalidVMManifest";
    assert_eq!(bench.condition_text(REVERT), invalid);
    bench.events();
    bench.server.lock().unwrap().refusals.clear();
    bench
}

#[tokio::test]
async fn a_revert_that_its_owner_ends_before_the_specification_is_restored_is_no_success() {
    let mut replacement = to(None);
    replacement["metadata"] = json!({ "annotations": { (MARK): null } });
    for edit in [to(None), replacement] {
        let mut bench = restoring().await;
        bench.edit(VMS, "vm", edit);
        bench.settles().await;
        let events = bench.events();
        assert!(events.contains(&"RevertEnded".to_owned()), "{events:?}");
        assert!(
            !events.contains(&"RevertSucceeded".to_owned()),
            "{events:?}"
        );
        let vm = bench.get(VMS, "vm");
        assert_eq!(vm["metadata"]["labels"]["app"], "new");
        assert_eq!(bench.annotation("vm", MARK), "-");
        assert_eq!(bench.status().current_snapshot.unwrap().name, "s");
        assert!(bench.has_pod(), "it ran");
    }
}

#[tokio::test]
async fn a_crash_after_the_specification_is_restored_is_made_up_for() {
    let mut bench = restoring().await;
    bench.refuse(Method::PATCH, "virtualmachines/vm/status", 500, 1);
    bench.pass().await.unwrap_err();
    let vm = bench.get(VMS, "vm");
    assert_eq!(vm["metadata"]["labels"]["app"], "old");
    let uid = bench.get(SNAPSHOTS, "s")["metadata"]["uid"].clone();
    let restored = format!("restored/{}", uid.as_str().unwrap());
    assert_eq!(bench.annotation("vm", MARK), restored);
    assert!(bench.status().snapshot_revert.is_some());
    bench.events();
    bench.settles().await;
    let events = bench.events();
    assert!(events.contains(&"RevertSucceeded".to_owned()), "{events:?}");
    assert_eq!(bench.annotation("vm", MARK), "-");
    assert!(bench.status().snapshot_revert.is_none());
    assert!(bench.has_pod(), "it ran when the snapshot was taken");
}

/// One pass on what the stores showed before.
pub(super) async fn blind(bench: &Bench) {
    let result = Box::pin(reconcile(&bench.ctx, &bench.key)).await;
    assert!(result.is_ok(), "{result:?}");
}

#[tokio::test]
async fn a_revert_waits_for_a_snapshot_whose_task_the_store_does_not_show_yet() {
    let mut bench = edited(json!({})).await;
    bench.snapshot("t", json!({}));
    blind(&bench).await;
    assert_eq!(bench.tasks("Snapshot").len(), 2);
    bench.edit_unseen(VMS, "vm", to(Some("s")));
    bench.see("vm");
    blind(&bench).await;
    assert!(bench.status().snapshot_revert.is_none());
    bench.sync();
    bench.settles().await;
    assert!(
        bench.status().snapshot_revert.is_none(),
        "it is taken first"
    );
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("t", "Created"), "True/Created");
    let current = bench.status().current_snapshot.unwrap();
    assert_eq!(current.name, "t");
    assert!(bench.status().snapshot_revert.is_some());
}

#[tokio::test]
async fn a_revert_waits_no_longer_than_a_task_may_be_late() {
    let mut bench = edited(json!({})).await;
    bench.snapshot("t", json!({}));
    bench.refuse(Method::POST, "virtualmachinetasks", 500, 1);
    let failed = bench.pass().await;
    assert!(failed.is_err(), "{failed:?}");
    bench.edit(VMS, "vm", to(Some("s")));
    let after = seconds(&bench.pass().await);
    assert!(after.is_some_and(|after| after <= 30), "{after:?}");
    assert!(bench.status().snapshot_revert.is_none());
    bench.forward(30);
    bench.passes().await;
    assert!(bench.status().snapshot_revert.is_some());
}
