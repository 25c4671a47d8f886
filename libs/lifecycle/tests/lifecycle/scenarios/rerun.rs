//! `RerunOnFailure`: scenarios 24 to 33.
//!
//! Invariant: only a clean end that the guest chose, or a stop that was requested, keeps the
//! machine down.
//! Failure: the number is in the test's name.

use crds::RunStrategy;
use crds::vm::PrintableStatus as Word;
use lifecycle::verbs::{Verb, verb};
use lifecycle::{Action, EndCause, Instance, Phase, Waiting};

use crate::build::{Case, instance, requests, spec};

fn creates(case: &mut Case) -> bool {
    matches!(case.step().action, Action::Create { .. })
}

/// The instance ends as said, is removed, and nothing is left of it.
fn after(case: &mut Case, seen: &str) {
    case.instance = instance(seen);
    case.step();
    case.instance = instance(seen).map(|i| Instance {
        deleting: true,
        ..i
    });
    case.step();
    case.instance = None;
}

#[test]
fn s24_the_first_start_is_recorded_once_the_instance_is_there() {
    let mut case = Case::parse("RerunOnFailure none - status=none");
    assert!(creates(&mut case));
    assert_eq!(case.status.run_strategy, None);
    assert!(creates(&mut case), "a creation that failed is wanted again");
    case.instance = instance("pending");
    case.step();
    assert_eq!(case.status.run_strategy, Some(RunStrategy::RerunOnFailure));
}

#[test]
fn s25_a_guest_that_powers_off_stays_down() {
    let mut case = Case::parse("RerunOnFailure running -");
    after(&mut case, "succeeded/ran");
    for _ in 0..3 {
        assert_eq!(case.step().action, Action::Nothing);
        assert_eq!(case.status.printable_status, Some(Word::Stopped));
    }
}

#[test]
fn s25_a_first_run_that_was_not_observed_is_not_repeated() {
    let mut case = Case::parse("RerunOnFailure none - status=none");
    assert!(creates(&mut case));
    after(&mut case, "succeeded/ran");
    assert!(!creates(&mut case));
}

#[test]
fn s26_failures_are_answered_by_another_instance() {
    let mut case = Case::parse("RerunOnFailure running -");
    after(&mut case, "failed/ran");
    assert!(creates(&mut case));
    let mut case = Case::parse("RerunOnFailure pending -");
    after(&mut case, "failed/never");
    assert_eq!(case.step().action, Action::Wait(Waiting::BackOff));
}

#[test]
fn s27_a_stop_keeps_the_strategy_and_the_machine_down() {
    let mut case = Case::parse("RerunOnFailure running Stop=");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.instance = instance("failed/ran,deleting");
    case.step();
    case.instance = None;
    assert!(!creates(&mut case), "whatever its exit code");
    assert_eq!(case.status.state_change_requests, []);
    let start = Verb::Start { paused: false };
    let change = verb(&case.spec, &case.status, &case.meta, None, start).unwrap();
    case.status.state_change_requests = change.requests.unwrap();
    assert!(creates(&mut case));
}

#[test]
fn s28_start_replaces_a_finished_instance_and_leaves_a_failed_one_alone() {
    let start = |given: &str| {
        let case = Case::parse(given);
        let start = Verb::Start { paused: false };
        verb(
            &case.spec,
            &case.status,
            &case.meta,
            case.instance.as_ref(),
            start,
        )
    };
    let queue = start("RerunOnFailure succeeded/ran -")
        .unwrap()
        .requests
        .unwrap();
    assert_eq!(queue, requests("Stop=,Start"));
    assert!(start("RerunOnFailure failed/ran -").is_err());
}

#[test]
fn s29_coming_from_elsewhere_starts() {
    let mut case = Case::parse("RerunOnFailure none -");
    assert!(!creates(&mut case));
    for detour in ["Halted", "Manual"] {
        case.spec = spec(detour);
        case.step();
        case.spec = spec("RerunOnFailure");
        assert!(creates(&mut case), "from {detour}");
    }
}

#[test]
fn s29_a_detour_while_the_instance_goes_starts_too() {
    let mut case = Case::parse("RerunOnFailure running -");
    case.spec = spec("Halted");
    case.step();
    case.instance = instance("running,deleting");
    case.step();
    case.spec = spec("RerunOnFailure");
    case.step();
    case.instance = None;
    assert!(creates(&mut case));
}

#[test]
fn s30_the_restart_is_recorded_before_the_failed_instance_is_deleted() {
    let case = Case::parse("RerunOnFailure failed/ran -");
    // The write fails: the pass ends before it deletes anything, and the next one decides the same.
    assert_eq!(case.pass(), case.pass());
    let mut case = case;
    assert!(matches!(case.step().action, Action::Delete { .. }));
    // The controller ends after the deletion; its successor finds the intent in the object.
    case.instance = None;
    assert!(creates(&mut case));
}

#[test]
fn s31_a_drained_or_deleted_pod_is_replaced_whatever_its_exit_code() {
    let mut case = Case::parse("RerunOnFailure running,deleting -");
    case.step();
    case.instance = instance("succeeded/ran,deleting").map(|i| Instance {
        end: Some(EndCause::Stopped),
        ..i
    });
    case.step();
    case.instance = None;
    assert!(creates(&mut case), "it was deleted");

    let mut case = Case::parse("RerunOnFailure succeeded/ran -");
    case.instance.as_mut().unwrap().disrupted = true;
    case.step();
    case.instance = None;
    assert!(creates(&mut case), "it was evicted");
}

#[test]
fn s31_a_guest_that_powered_off_before_its_pod_was_deleted_stays_down() {
    let mut case = Case::parse("RerunOnFailure succeeded/ran,deleting -");
    case.step();
    case.instance = None;
    assert!(!creates(&mut case));
}

#[test]
fn s32_a_stop_of_a_failed_instance_is_honoured() {
    let mut case = Case::parse("RerunOnFailure failed/ran Stop=");
    case.step();
    case.instance = None;
    assert!(!creates(&mut case));
}

#[test]
fn s32_a_stop_calls_off_a_restart_that_waits() {
    let mut case = Case::parse("RerunOnFailure none - follows=again backoff");
    assert_eq!(case.step().action, Action::Wait(Waiting::BackOff));
    let stop = Verb::Stop {
        grace_seconds: None,
    };
    let change = verb(&case.spec, &case.status, &case.meta, None, stop).unwrap();
    case.status.state_change_requests = change.requests.unwrap();
    case.status.start_failure = None;
    case.step();
    case.step();
    assert_eq!(case.step().action, Action::Nothing);
    assert_eq!(case.status.printable_status, Some(Word::Stopped));
    assert_eq!(case.status.state_change_requests, []);
}

#[test]
fn s33_an_unbound_claim_of_a_machine_that_is_down_is_no_obstacle() {
    let down = Case::parse("RerunOnFailure none - unbound").pass();
    assert_eq!(down.status.printable_status, Some(Word::Stopped));
    let up = Case::parse("RerunOnFailure none Start unbound").pass();
    assert_eq!(
        up.status.printable_status,
        Some(Word::WaitingForVolumeBinding)
    );
    assert_eq!(up.action, Action::Wait(Waiting::Volumes));
}

#[test]
fn a_stop_that_comes_after_the_failure_was_recorded_still_counts() {
    let mut case = Case::parse("RerunOnFailure failed/ran -");
    case.step();
    case.instance.as_mut().unwrap().deleting = true;
    case.status.state_change_requests = requests("Stop=");
    case.step();
    assert_eq!(case.instance.as_ref().unwrap().phase, Phase::Failed);
    case.instance = None;
    assert!(!creates(&mut case));
}
