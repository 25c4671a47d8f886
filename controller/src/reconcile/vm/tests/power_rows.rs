//! Rows W: power.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;
use crds::PowerState;
use crds::vm::PrintableStatus as Word;

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

fn restart(bench: &mut Bench, time: &str) {
    bench.edit(VMS, "vm", json!({ "spec": { "nextRestartTime": time } }));
}

#[tokio::test]
async fn w3a_a_newer_time_restarts_once_and_the_pod_stays() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    let pod = bench.pod()["metadata"]["uid"].clone();
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    assert_eq!(bench.task("GuestReboot")["spec"]["timeoutSeconds"], 300);
    assert_eq!(bench.status().last_restart_time, None);
    bench.task_ends("GuestReboot", "Success");
    bench.settle().await.ok();
    assert!(bench.status().last_restart_time.is_some());
    assert_eq!(bench.tasks("GuestReboot").len(), 1);
    assert_eq!(bench.pod()["metadata"]["uid"], pod);
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
async fn w3b_the_same_time_restarts_nothing() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    let last = json!({ "status": { "lastRestartTime": "2027-01-15T07:59:59Z" } });
    bench.edit(VMS, "vm", last);
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    assert!(bench.tasks("GuestReboot").is_empty());
}

#[tokio::test]
async fn w3c_neither_does_one_to_come_before_it_has_come() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    restart(&mut bench, "2027-01-15T08:30:00Z");
    bench.settle().await.ok();
    assert_eq!(seconds(&bench.pass().await), Some(1800));
    assert!(bench.tasks("GuestReboot").is_empty());
    bench.forward(1800);
    bench.settle().await.ok();
    assert_eq!(bench.tasks("GuestReboot").len(), 1);
}

#[tokio::test]
async fn a_guest_that_does_not_reboot_is_reset_when_that_is_allowed() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    bench.task_ends("GuestReboot", "Error");
    bench.settle().await.ok();
    bench.task_ends("Reset", "Success");
    bench.settle().await.ok();
    assert!(bench.status().last_restart_time.is_some());
}

/// What ends the machine, or changes it otherwise, does not wait until the guest has rebooted.
#[tokio::test]
async fn a_reboot_that_is_waited_for_makes_way() {
    for (power_state, task) in [
        (
            json!({ "spec": { "runStrategy": null, "powerState": "PoweredOff" } }),
            None,
        ),
        (
            json!({ "spec": { "runStrategy": null, "powerState": "Suspended" } }),
            Some("Save"),
        ),
        (json!({ "spec": { "paused": true } }), Some("Pause")),
    ] {
        let mut bench = machine_that_is("PoweredOn", json!({})).await;
        restart(&mut bench, "2027-01-15T07:59:59Z");
        bench.settle().await.ok();
        assert_eq!(bench.tasks("GuestReboot").len(), 1);
        bench.edit(VMS, "vm", power_state);
        bench.settle().await.ok();
        assert_eq!(bench.task("GuestReboot")["spec"]["cancel"], true);
        let Some(task) = task else {
            // Nor for an agent that may be dead.
            assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
            continue;
        };
        assert!(
            bench.tasks(task).is_empty(),
            "the node does one thing at a time"
        );
        bench.task_ends("GuestReboot", "Cancelled");
        bench.settle().await.ok();
        assert_eq!(bench.tasks(task).len(), 1);
    }
}

#[tokio::test]
async fn a_reboot_that_made_way_for_a_pause_follows_it() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "paused": true } }));
    bench.settle().await.ok();
    bench.task_ends("GuestReboot", "Cancelled");
    bench.settle().await.ok();
    bench.task_ends("Pause", "Success");
    bench.edit(PODS, "vm", paused("True"));
    bench.settle().await.ok();
    assert_eq!(bench.status().last_restart_time, None);
    bench.edit(VMS, "vm", json!({ "spec": { "paused": false } }));
    bench.settle().await.ok();
    bench.task_ends("Unpause", "Success");
    bench.edit(PODS, "vm", paused("False"));
    bench.settle().await.ok();
    let again = bench.task("GuestReboot");
    assert!(again["status"].is_null(), "{again}");
    bench.task_ends("GuestReboot", "Success");
    bench.settle().await.ok();
    assert!(bench.status().last_restart_time.is_some());
}

#[tokio::test]
async fn a_reboot_that_made_way_for_a_power_off_is_done_by_it() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    let off = json!({ "spec": { "runStrategy": null, "powerState": "PoweredOff" } });
    bench.edit(VMS, "vm", off);
    bench.settle().await.ok();
    assert!(bench.status().last_restart_time.is_some());
}

#[tokio::test]
async fn a_paused_machine_is_restarted_when_it_runs_on() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "paused": true } }));
    bench.settle().await.ok();
    bench.task_ends("Pause", "Success");
    bench.edit(PODS, "vm", paused("True"));
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    assert!(bench.tasks("GuestReboot").is_empty());
    bench.edit(VMS, "vm", json!({ "spec": { "paused": false } }));
    bench.settle().await.ok();
    bench.task_ends("Unpause", "Success");
    bench.edit(PODS, "vm", paused("False"));
    bench.settle().await.ok();
    assert_eq!(bench.tasks("GuestReboot").len(), 1);
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

async fn going_off(mode: &str) -> Bench {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "powerOffMode": mode, "powerOffTimeout": "90s" } }),
    );
    bench.edit(VMS, "vm", power_state("PoweredOff"));
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn a_guest_is_not_stopped_for_a_restart_that_could_not_start_it_again() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    bench.forward(700);
    let uid = bench.pod()["metadata"]["uid"].clone();
    let class = bench.get(CLASSES, "small");
    bench.remove(CLASSES, "small");
    let restart = json!([{ "action": "Stop", "uid": uid }, { "action": "Start" }]);
    let request = json!({ "status": { "stateChangeRequests": restart } });
    bench.edit(VMS, "vm", request);
    let text = failure(&bench.settle().await);
    assert!(text.contains("small does not exist"), "{text}");
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(bench.status().printable_status, Some(Word::Running));
    assert_eq!(bench.status().message, Some(text));
    bench.put(CLASSES, class);
    bench.sync();
    bench.pass().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
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
async fn w5a_hard_leaves_one_second_so_that_the_pod_outlives_the_domain() {
    let mut bench = going_off("Hard").await;
    assert_eq!(bench.pod()["metadata"]["deletionGracePeriodSeconds"], 1);
    bench.end("vm", 137, "GraceExceeded");
    bench.settle().await.ok();
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
}

#[tokio::test]
async fn w5b_soft_leaves_an_unresponsive_guest_on_and_reports_it() {
    let mut bench = going_off("Soft").await;
    assert_eq!(bench.task("GuestShutdown")["spec"]["timeoutSeconds"], 90);
    bench.task_ends("GuestShutdown", "Error");
    assert!(failure(&bench.pass().await).contains("said the node"));
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOn));
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    // Asked again after a while.
    bench.forward(301);
    bench.settle().await.ok();
    assert!(bench.task("GuestShutdown")["status"].is_null());
}

#[tokio::test]
async fn a_guest_may_be_given_days_to_go_off_softly() {
    let mut bench = machine_that_is("PoweredOn", json!({})).await;
    let patient = json!({ "powerOffMode": "Soft", "powerOffTimeout": "9999h" });
    bench.edit(VMS, "vm", json!({ "spec": patient }));
    restart(&mut bench, "2027-01-15T07:59:59Z");
    bench.settle().await.ok();
    let seconds = &bench.task("GuestReboot")["spec"]["timeoutSeconds"];
    assert_eq!(*seconds, 7 * 24 * 3600);
    bench.task_ends("GuestReboot", "Success");
    bench.edit(VMS, "vm", power_state("PoweredOff"));
    bench.settle().await.ok();
    let seconds = &bench.task("GuestShutdown")["spec"]["timeoutSeconds"];
    assert_eq!(*seconds, 7 * 24 * 3600);
}

#[tokio::test]
async fn a_guest_that_obeys_a_soft_stop_is_off() {
    let mut bench = going_off("Soft").await;
    bench.task_ends("GuestShutdown", "Success");
    bench.end("vm", 0, "GuestShutdown");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
}

#[tokio::test]
async fn w5c_try_soft_gives_an_unresponsive_guest_its_grace_period() {
    let mut bench = going_off("TrySoft").await;
    assert_eq!(bench.pod()["metadata"]["deletionGracePeriodSeconds"], 90);
    assert!(bench.tasks("GuestShutdown").is_empty());
    bench.end("vm", 137, "GraceExceeded");
    bench.settle().await.ok();
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
}

async fn suspended_then_off(mode: &str) -> Bench {
    let mut bench = machine_that_is("Suspended", json!({ "spec": { "powerOffMode": mode } })).await;
    bench.edit(VMS, "vm", power_state("PoweredOff"));
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn w5d_soft_leaves_a_suspended_machine_as_it_is() {
    let bench = suspended_then_off("Soft").await;
    assert!(bench.tasks("Restore").is_empty());
    assert_eq!(bench.status().power_state, Some(PowerState::Suspended));
}

#[tokio::test]
async fn w5e_hard_drops_its_memory() {
    let mut bench = suspended_then_off("Hard").await;
    assert_eq!(bench.task("Restore")["spec"]["discard"], true);
    bench.task_ends("Restore", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.status().power_state, Some(PowerState::PoweredOff));
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
