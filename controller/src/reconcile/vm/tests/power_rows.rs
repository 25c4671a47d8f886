//! Rows W: power.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;
use crds::PowerState;
use crds::vm::PrintableStatus as Word;

mod off;
mod restarts;

const APPLY: &str = "vmlet.dev.protected/apply-power-state-time";

fn power_state(state: &str) -> Value {
    json!({ "spec": { "runStrategy": null, "powerState": state } })
}

/// What kubelet and the agent report of a pod whose guest is paused, or not.
fn paused(status: &str) -> Value {
    json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True" },
        { "type": "vmlet.dev/Paused", "status": status, "reason": "PausedByUser" },
    ]}})
}

pub(super) async fn machine_that_is(state: &str, changes: Value) -> Bench {
    let mut bench = Bench::new();
    let mut all = power_state("PoweredOn");
    json_patch::merge(&mut all, &changes);
    bench.running(all).await;
    if state == "Suspended" {
        bench.edit(VMS, "vm", power_state("Suspended"));
        bench.settle().await.ok();
        bench.task_ends("Save", "Success");
        bench.end("vm", 0, "Saved");
        bench.settle().await.ok();
        assert!(!bench.has_pod());
        assert_eq!(bench.status().power_state, Some(PowerState::Suspended));
    }
    if state == "PoweredOff" {
        bench.edit(VMS, "vm", power_state("PoweredOff"));
        bench.settle().await.ok();
        bench.end("vm", 0, "Stopped");
        bench.settle().await.ok();
        assert!(!bench.has_pod());
    }
    bench.writes();
    bench.events();
    bench
}

fn at(bench: &mut Bench, time: &str, state: &str) {
    let mut change = power_state(state);
    change["metadata"] = json!({ "annotations": { APPLY: time } });
    bench.edit(VMS, "vm", change);
}

fn restart(bench: &mut Bench, time: &str) {
    bench.edit(VMS, "vm", json!({ "spec": { "nextRestartTime": time } }));
}

#[tokio::test]
async fn w1a_a_time_that_is_none_is_a_failure() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    at(&mut bench, "soon", "PoweredOn");
    assert!(failure(&bench.pass().await).contains("is no time"));
    assert!(!bench.has_pod());
}

#[tokio::test]
async fn w1b_a_time_to_come_is_waited_for() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    at(&mut bench, "2027-01-15T08:00:30Z", "PoweredOn");
    assert_eq!(seconds(&bench.pass().await), Some(30));
    assert!(!bench.has_pod());
}

#[tokio::test]
async fn w1c_a_time_that_has_come_is_taken_away_and_the_machine_starts() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    at(&mut bench, "2027-01-15T08:00:30Z", "PoweredOn");
    bench.forward(31);
    bench.pass().await.ok();
    assert!(bench.has_pod());
    assert!(bench.get(VMS, "vm")["metadata"]["annotations"][APPLY].is_null());
}

#[tokio::test]
async fn w1d_going_off_is_delayed_too() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    at(&mut bench, "2027-01-15T08:00:30Z", "PoweredOff");
    assert_eq!(seconds(&bench.pass().await), Some(30));
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn w2a_a_paused_machine_keeps_its_power_state() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.edit(VMS, "vm", power_state("PoweredOff"));
    bench.edit(
        VMS,
        "vm",
        json!({ "metadata": { "labels": { "vmlet.dev/paused": "devops" } } }),
    );
    for _ in 0..2 {
        assert!(is_quiet(&bench.pass().await));
    }
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn w2b_so_does_one_in_the_hands_of_a_task() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    let uid = bench.get(VMS, "vm")["metadata"]["uid"].clone();
    bench.put(
        TASKS,
        json!({
            "metadata": { "name": "s", "namespace": "ns" },
            "spec": { "nodeName": "n1", "vmName": "vm", "vmUID": uid, "kind": "Snapshot" },
        }),
    );
    bench.edit(VMS, "vm", power_state("PoweredOff"));
    let soon = seconds(&bench.pass().await);
    assert_eq!(soon, Some(40), "its agent may become silent");
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    bench.task_ends("Snapshot", "Success");
    bench.pass().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn a_suspended_machine_is_resumed_with_the_hardware_that_its_memory_was_saved_with() {
    let mut bench = machine_that_is("Suspended", json!({})).await;
    bench.put(CLASSES, class("big", 4));
    let changes = json!({ "className": "big", "minMachineType": "pc-q35-99.0" });
    bench.edit(VMS, "vm", json!({ "spec": changes }));
    bench.settle().await.ok();
    bench.edit(VMS, "vm", power_state("PoweredOn"));
    bench.settle().await.ok();
    let annotations = bench.pod()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmlet.dev/restore"], "true");
    assert_eq!(annotations["vmlet.dev/vcpu-count"], "1");
    let synced = bench.condition_text("VirtualMachineClassConfigurationSynced");
    assert_eq!(synced, "False/ClassNameChanged");
    assert_eq!(bench.status().class.as_deref(), Some("small"));
}

#[tokio::test]
async fn w4a_a_machine_that_is_to_be_on_gets_its_pod() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    bench.edit(VMS, "vm", power_state("PoweredOn"));
    bench.settle().await.ok();
    assert!(bench.has_pod());
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOn));
}

#[tokio::test]
async fn w4b_a_check_holds_it_back() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    let check = json!({ "metadata": { "annotations": { "poweron.check.vmlet.dev/app": "" } } });
    bench.edit(VMS, "vm", check);
    bench.edit(VMS, "vm", power_state("PoweredOn"));
    let result = bench.pass().await;
    assert_eq!(seconds(&result), None);
    assert!(!bench.has_pod());
    let gone = json!({ "metadata": { "annotations": { "poweron.check.vmlet.dev/app": null } } });
    bench.edit(VMS, "vm", gone);
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

#[tokio::test]
async fn w4c_a_suspended_machine_goes_on_from_its_memory() {
    let mut bench = machine_that_is("Suspended", json!({})).await;
    bench.edit(VMS, "vm", power_state("PoweredOn"));
    bench.settle().await.ok();
    assert_eq!(
        bench.pod()["metadata"]["annotations"]["vmlet.dev/restore"],
        "true"
    );
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOn));
}

#[tokio::test]
async fn a_suspension_that_failed_leaves_the_machine_running() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.edit(VMS, "vm", power_state("Suspended"));
    bench.settle().await.ok();
    assert_eq!(bench.status().printable_status, Some(Word::Stopping));
    bench.task_ends("Save", "Error");
    assert!(failure(&bench.settle().await).contains("said the node"));
    assert_eq!(bench.status().printable_status, Some(Word::Running));
    bench.forward(301);
    bench.settle().await.ok();
    assert_eq!(bench.status().printable_status, Some(Word::Stopping));
}

#[tokio::test]
async fn a_machine_that_cannot_be_suspended_gets_no_task() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.claim("data", "Bound");
    // As an API server with the rules of an older version let it through.
    let claim = json!({ "claimName": "data", "mountPath": "/srv" });
    let mut change = power_state("Suspended");
    change["spec"]["volumes"] = json!([{ "name": "d", "persistentVolumeClaim": claim }]);
    bench.edit(VMS, "vm", change);
    assert!(failure(&bench.settle().await).contains("stop it instead"));
    assert!(bench.tasks("Save").is_empty());
    assert_eq!(bench.status().printable_status, Some(Word::Running));
}

#[tokio::test]
async fn w6a_a_running_machine_is_suspended_by_its_node() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.edit(VMS, "vm", power_state("Suspended"));
    bench.settle().await.ok();
    assert!(
        bench.pod()["metadata"]["deletionTimestamp"].is_null(),
        "before its memory is safe"
    );
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let status = bench.status();
    assert_eq!(status.power_state, Some(PowerState::Suspended));
    assert_eq!(
        status.printable_status,
        Some(crds::vm::PrintableStatus::Suspended)
    );
}

/// Admission refuses this desired state; an object that has it anyway causes no change.
#[tokio::test]
async fn w6b_a_machine_that_is_off_has_no_memory_to_save() {
    let mut bench = machine_that_is("PoweredOff", json!({})).await;
    bench.edit(VMS, "vm", power_state("Suspended"));
    bench.settle().await.ok();
    assert!(bench.tasks("Save").is_empty() && !bench.has_pod());
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
}

#[tokio::test]
async fn vcpus_stand_still_and_run_on_by_tasks() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "paused": true } }));
    bench.settle().await.ok();
    bench.task_ends("Pause", "Success");
    bench.edit(PODS, "vm", paused("True"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Paused"), "True/PausedByUser");
    bench.edit(VMS, "vm", json!({ "spec": { "paused": false } }));
    bench.settle().await.ok();
    bench.task_ends("Unpause", "Success");
    bench.edit(PODS, "vm", paused("False"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Paused"), "-");
}

/// What a full disk has stopped is left to its node, until its owner requests otherwise.
#[tokio::test]
async fn a_guest_whose_disk_failed_is_resumed_once_for_each_request() {
    for (end, events) in [("Success", 0), ("Error", 1)] {
        let mut bench = machine_that_is("PoweredOn", json!({})).await;
        let mut stalled = paused("True");
        stalled["status"]["conditions"][1]["reason"] = json!("PausedIOError");
        bench.edit(PODS, "vm", stalled);
        bench.settle().await.ok();
        assert_eq!(bench.condition_text("Paused"), "True/PausedIOError");
        assert_eq!(bench.condition_text("Ready"), "False/Paused");
        assert!(bench.tasks("Unpause").is_empty());
        let uid = bench.pod()["metadata"]["uid"].as_str().unwrap().to_owned();
        let request = |version: u32| {
            let value = format!("{uid}/{version}");
            json!({ "metadata": { "annotations": { "vmlet.dev/unpause-request": value } } })
        };
        bench.edit(VMS, "vm", request(1));
        bench.settle().await.ok();
        assert_eq!(bench.tasks("Unpause").len(), 1);
        bench.events();
        bench.task_ends("Unpause", end);
        bench.settle().await.ok();
        let failures = bench.events().into_iter().filter(|e| e == "FailedUnpause");
        assert_eq!(failures.count(), events, "{end}");
        let left = bench.vm().metadata.annotations.unwrap_or_default();
        assert!(!left.contains_key("vmlet.dev/unpause-request"), "{left:?}");
        assert_eq!(bench.tasks("Unpause").len(), 1, "once");
        bench.edit(VMS, "vm", request(2));
        bench.settle().await.ok();
        assert_eq!(bench.tasks("Unpause").len(), 2);
    }
}
