//! Restarts by a time, and reboots that make way for other changes of power.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

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
