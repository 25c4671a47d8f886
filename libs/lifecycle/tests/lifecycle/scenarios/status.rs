//! Requests and status: scenarios 44 to 48.
//!
//! Invariant: what a machine shows follows from its objects alone.
//! Failure: the number is in the test's name.

use crds::conditions::{FAILURE, PAUSED, READY, RESTART_REQUIRED, find, is_true};
use crds::vm::PrintableStatus as Word;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use lifecycle::conditions::{Guest, update};
use lifecycle::verbs::{Verb, verb};
use lifecycle::{Failure, Unstartable, Volumes};
use rstest::rstest;

use crate::build::{Case, later, now, requests};

fn conditions(case: &Case) -> Vec<Condition> {
    let mut conditions = Vec::new();
    update(&mut conditions, &case.machine(), None, Guest::Pod, &now());
    conditions
}

#[test]
fn s44_a_stop_replaces_a_restart_that_waits() {
    let case = Case::parse("Manual running Stop=,Start");
    let stop = Verb::Stop {
        grace_seconds: None,
    };
    let change = verb(
        &case.spec,
        &case.status,
        &case.meta,
        case.instance.as_ref(),
        stop,
    );
    assert_eq!(change.unwrap().requests.unwrap(), requests("Stop="));
}

#[test]
fn s44_writing_requests_tests_the_old_ones() {
    let mut case = Case::parse("Manual running -");
    let restart = Verb::Restart { force: true };
    let instance = case.instance.as_ref();
    let change = verb(&case.spec, &case.status, &case.meta, instance, restart).unwrap();
    let mut vm = crds::VirtualMachine::new("vm", case.spec.clone());
    let first = change.status_patch(&vm).unwrap();
    assert_eq!(first[0]["op"], "test");
    assert_eq!(
        first[0]["value"],
        serde_json::Value::Null,
        "there was no status"
    );
    case.status.start_failure = Some(crate::build::failures(1, 1));
    vm.status = Some(case.status.clone());
    let patch = change.status_patch(&vm).unwrap();
    assert_eq!(patch[0]["path"], "/status/stateChangeRequests");
    assert_eq!(patch[1]["value"][0]["data"]["gracePeriodSeconds"], "0");
    assert_eq!(
        patch[2],
        serde_json::json!({"op": "remove", "path": "/status/startFailure"})
    );
    vm.status.as_mut().unwrap().state_change_requests = requests("Stop=");
    let patch = change.status_patch(&vm).unwrap();
    assert_eq!(patch[0]["value"][0]["uid"], "now");
}

#[rstest]
#[case("Always halting - paused", Word::Paused)]
#[case("Always running -", Word::Running)]
#[case("Always halting - paused deletion", Word::Terminating)]
fn s45_paused_running_and_terminating(#[case] given: &str, #[case] want: Word) {
    assert_eq!(
        Case::parse(given).pass().status.printable_status,
        Some(want)
    );
}

#[test]
fn s45_paused_is_a_condition_while_it_lasts() {
    let case = Case::parse("Always halting - paused");
    let mut conditions = conditions(&case);
    assert_eq!(find(&conditions, PAUSED).unwrap().reason, "PausedByUser");
    let running = Case::parse("Always running -");
    assert!(update(
        &mut conditions,
        &running.machine(),
        None,
        Guest::Pod,
        &now()
    ));
    assert!(find(&conditions, PAUSED).is_none());
}

#[test]
fn s45_a_paused_machine_is_not_ready_and_says_why_it_stands_still() {
    let mut case = Case::parse("Always halting - paused");
    case.instance.as_mut().unwrap().ready = Some(true);
    assert!(!case.pass().status.ready);
    let all = conditions(&case);
    let ready = find(&all, READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "Paused")
    );

    let stalled = case.instance.as_mut().unwrap();
    stalled.paused = Some("PausedIOError".into());
    stalled.pause_message = "disk vdb: no space left".into();
    let all = conditions(&case);
    let message = &find(&all, PAUSED).unwrap().message;
    assert!(message.contains("disk vdb: no space left"), "{message}");
}

#[rstest]
#[case(Unstartable::Unschedulable, Word::ErrorUnschedulable)]
#[case(Unstartable::ErrImagePull, Word::ErrImagePull)]
#[case(Unstartable::ImagePullBackOff, Word::ImagePullBackOff)]
#[case(Unstartable::InvalidImageName, Word::InvalidImageName)]
fn s46_obstacles_have_their_own_status(#[case] obstacle: Unstartable, #[case] want: Word) {
    let mut case = Case::parse("Always scheduled -");
    case.instance.as_mut().unwrap().unstartable = Some(obstacle);
    assert_eq!(case.pass().status.printable_status, Some(want));
    let mut case = Case::parse("Always none - volumes");
    case.preconditions.provisioner = Some(obstacle);
    assert_eq!(
        case.pass().status.printable_status,
        Some(want),
        "of the pod that finds the node"
    );
}

#[rstest]
#[case(Volumes::ClaimNotFound, Word::ErrorPvcNotFound)]
#[case(Volumes::DataVolumeFailed, Word::DataVolumeError)]
#[case(Volumes::Provisioning, Word::Provisioning)]
#[case(Volumes::Unbound, Word::WaitingForVolumeBinding)]
fn s46_disks_hold_back_a_start_only(#[case] volumes: Volumes, #[case] want: Word) {
    let mut case = Case::parse("Always none -");
    case.preconditions.volumes = volumes;
    assert_eq!(case.pass().status.printable_status, Some(want));
    let mut case = Case::parse("Halted running -");
    case.preconditions.volumes = volumes;
    assert!(
        matches!(case.pass().action, lifecycle::Action::Delete { .. }),
        "a stop never waits"
    );
}

#[test]
fn s47_a_failure_is_shown_as_long_as_it_lasts() {
    let case = Case::parse("Always none -");
    let mut conditions = Vec::new();
    let quota = Failure {
        reason: "FailedCreate",
        message: "exceeded quota".into(),
    };
    assert!(update(
        &mut conditions,
        &case.machine(),
        Some(&quota),
        Guest::Pod,
        &now()
    ));
    assert!(is_true(&conditions, FAILURE));
    assert!(!update(
        &mut conditions,
        &case.machine(),
        Some(&quota),
        Guest::Pod,
        &later(60)
    ));
    assert!(update(
        &mut conditions,
        &case.machine(),
        None,
        Guest::Pod,
        &later(61)
    ));
    assert!(find(&conditions, FAILURE).is_none());
}

#[test]
fn s48_a_stopped_machine_has_no_conditions_of_the_past() {
    let mut case = Case::parse("Always halting - paused");
    case.instance.as_mut().unwrap().revision = Some("old".into());
    let mut conditions = conditions(&case);
    assert!(is_true(&conditions, RESTART_REQUIRED));
    case.instance = None;
    update(&mut conditions, &case.machine(), None, Guest::Pod, &now());
    let kinds: Vec<_> = conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(kinds, [READY]);
    assert_eq!(find(&conditions, READY).unwrap().reason, "NoPod");
}

#[rstest]
#[case("Always none -", Guest::Pod, "NoPod")]
#[case("Always pending -", Guest::Pod, "GuestNotRunning")]
#[case("Always running,deleting -", Guest::Pod, "PodTerminating")]
#[case("Manual failed/ran -", Guest::Pod, "PodTerminating")]
#[case("Always running -", Guest::Pod, "PodReady")]
#[case("Always running -", Guest::Probed(true), "ProbeSucceeded")]
#[case("Always running -", Guest::Probed(false), "NotReady")]
#[case(
    "Always running -",
    Guest::Unreachable("the readiness probe fails: blocked"),
    "NotReady"
)]
#[case("Always running -", Guest::Silent("no address"), "NoSignOfLife")]
#[case("Always pending -", Guest::Silent("no address"), "GuestNotRunning")]
fn readiness_has_a_reason(#[case] given: &str, #[case] guest: Guest, #[case] want: &str) {
    let case = Case::parse(given);
    let mut conditions = Vec::new();
    update(&mut conditions, &case.machine(), None, guest, &now());
    assert_eq!(find(&conditions, READY).unwrap().reason, want);
}

#[rstest]
#[case("Halted none -", "the machine is powered off, as specified")]
#[case("PoweredOff none -", "the machine is powered off, as specified")]
#[case("Manual none -", "the machine is powered off, as specified")]
#[case("Manual none Start", "there is no instance")]
#[case("Always none -", "there is no instance")]
#[case("PoweredOn none - saved", "there is no instance")]
#[case("PoweredOff none - saved", "there is no instance")]
#[case("Suspended none - saved", "the machine is suspended, as specified")]
#[case("Suspended none -", "there is no instance")]
fn a_machine_that_is_as_specified_says_so(#[case] given: &str, #[case] want: &str) {
    let case = Case::parse(given);
    let mut conditions = Vec::new();
    update(&mut conditions, &case.machine(), None, Guest::Pod, &now());
    assert_eq!(find(&conditions, READY).unwrap().message, want);
}
