//! Machines that go off: hard, soft, and from saved memory.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

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
