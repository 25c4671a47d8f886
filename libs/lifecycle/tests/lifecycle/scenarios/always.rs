//! `Always`: scenarios 10 to 23.
//!
//! Invariant: a machine that is to run always is never left alone without a time to look again.
//! Failure: the number is in the test's name.

use std::time::Duration;

use crds::PowerState;
use crds::vm::PrintableStatus as Word;
use lifecycle::backoff::{Jitter, delay};
use lifecycle::verbs::{Verb, verb};
use lifecycle::{Action, EndCause, Pending, Waiting, desired};
use rstest::rstest;

use crate::build::{Case, ago, failures, instance, later, now, requests, spec};

#[test]
fn s10_ten_passes_over_a_stale_cache_create_once() {
    let mut case = Case::parse("Always none - status=none");
    let mut creations = 0;
    for _ in 0..10 {
        if matches!(case.step().action, Action::Create { .. }) {
            creations += 1;
            case.preconditions.pending = Pending::Create;
        }
        assert_eq!(case.status.printable_status, Some(Word::Starting));
    }
    assert_eq!(creations, 1);
}

#[test]
fn s11_readiness_is_that_of_the_pod() {
    for (seen, word, ready) in [
        ("pending", Word::Starting, false),
        ("running", Word::Running, true),
    ] {
        let decision = Case::parse(&format!("Always {seen} -")).pass();
        assert_eq!(decision.action, Action::Nothing);
        assert_eq!(decision.status.printable_status, Some(word));
        assert_eq!(decision.status.ready, ready);
    }
}

#[rstest]
#[case::powers_off("succeeded/ran")]
#[case::is_killed("failed/ran")]
fn s12_a_guest_that_ends_after_a_while_is_replaced_at_once(#[case] seen: &str) {
    let mut case = Case::parse(&format!("Always {seen} -"));
    let first = case.step();
    assert!(matches!(first.action, Action::Delete { .. }) && first.release);
    case.instance = None;
    assert_eq!(
        case.step().action,
        Action::Create {
            paused: false,
            restore: false
        }
    );
    assert_eq!(case.status.start_failure, None);
}

#[test]
fn s13_a_start_that_fails_is_tried_again_after_ten_to_fifteen_seconds() {
    let mut case = Case::parse("Always failed/never -");
    case.step();
    assert_eq!(
        case.status
            .start_failure
            .as_ref()
            .unwrap()
            .consecutive_fail_count,
        1
    );
    case.instance = None;
    let waiting = case.step();
    assert_eq!(waiting.action, Action::Wait(Waiting::BackOff));
    assert_eq!(waiting.requeue, Some(Duration::from_secs(10)));
    assert_eq!(case.status.printable_status, Some(Word::CrashLoopBackOff));
    let after = desired(&case.machine(), &later(10), Jitter::default());
    assert!(matches!(after.action, Action::Create { .. }));
    assert_eq!(after.status.printable_status, Some(Word::Starting));
}

#[test]
fn s14_waits_grow_with_the_square_and_end_at_300_seconds() {
    let range = |n| [0.0, 1.0].map(|j| delay(n, Jitter::new(j)).as_secs());
    let ranges = [0, 1, 2, 3, 4, 5, 6, 7, 1000, u32::MAX].map(range);
    assert_eq!(
        ranges,
        [
            [10, 15],
            [10, 15],
            [40, 60],
            [90, 135],
            [160, 240],
            [250, 300],
            [300, 300],
            [300, 300],
            [300, 300],
            [300, 300],
        ]
    );
}

#[test]
fn s14_ten_minutes_of_running_make_up_for_all_failures() {
    let mut case = Case::parse("Always running -");
    case.status.start_failure = Some(failures(6, -400));
    let decision = case.step();
    assert_eq!(
        decision.requeue,
        Some(Duration::from_secs(300)),
        "looks again when the time is over"
    );
    assert!(case.status.start_failure.is_some());
    case.instance.as_mut().unwrap().started_at = Some(ago(600));
    assert_eq!(case.step().status.start_failure, None);
    assert_eq!(case.pass().requeue, None);
}

#[test]
fn s15_a_stop_ends_the_back_off() {
    let mut case = Case::parse("Always none - backoff");
    let stop = Verb::Stop {
        grace_seconds: None,
    };
    let change = verb(&case.spec, &case.status, &case.meta, None, stop).unwrap();
    assert_eq!(
        change.desired_state.unwrap().to_string(),
        "runStrategy=Halted"
    );
    case.spec = spec("Halted");
    case.step();
    assert_eq!(case.status.start_failure, None);
    assert_eq!(case.status.printable_status, Some(Word::Stopped));
}

#[test]
fn s16_what_is_left_of_a_wait_is_in_the_object() {
    let mut case = Case::parse("Always none -");
    case.status.start_failure = Some(failures(3, 70));
    assert_eq!(case.step().requeue, Some(Duration::from_secs(70)));
    assert_eq!(case.status.start_failure, Some(failures(3, 70)));
}

#[test]
fn s17_short_runs_count_like_failed_starts() {
    let mut case = Case::parse("Always failed/short -");
    case.status.start_failure = Some(failures(1, -30));
    case.step();
    let failure = case.status.start_failure.clone().unwrap();
    assert_eq!(failure.consecutive_fail_count, 2);
    assert_eq!(failure.retry_after_timestamp, Some(later(40)));
    case.step();
    assert_eq!(
        case.status.start_failure,
        Some(failure),
        "a pod counts once"
    );
}

#[test]
fn s18_a_restart_replaces_the_instance_and_empties_the_queue() {
    let mut case = Case::parse("Always running -");
    let restart = Verb::Restart { force: false };
    let change = verb(
        &case.spec,
        &case.status,
        &case.meta,
        case.instance.as_ref(),
        restart,
    );
    case.status.state_change_requests = change.unwrap().requests.unwrap();
    assert_eq!(case.status.state_change_requests, requests("Stop=,Start"));
    let again = verb(
        &case.spec,
        &case.status,
        &case.meta,
        case.instance.as_ref(),
        restart,
    );
    assert!(again.is_err(), "one restart at a time");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.instance = instance("failed/short,deleting");
    case.step();
    assert_eq!(
        case.status.start_failure, None,
        "an end that was asked for is no failure"
    );
    case.instance = None;
    assert!(matches!(case.step().action, Action::Create { .. }));
    case.instance = instance("pending").map(|i| lifecycle::Instance {
        uid: "next".into(),
        ..i
    });
    case.step();
    assert_eq!(case.status.state_change_requests, []);
}

#[rstest]
#[case("Stop≠")]
#[case("Stop∅")]
fn s19_a_stop_without_an_instance_is_removed(#[case] queue: &str) {
    let decision = Case::parse(&format!("Always running {queue}")).pass();
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(decision.status.state_change_requests, []);
}

#[test]
fn s20_start_is_refused_and_stop_halts() {
    for given in ["Always none -", "Always running -"] {
        let case = Case::parse(given);
        let start = Verb::Start { paused: false };
        assert!(
            verb(
                &case.spec,
                &case.status,
                &case.meta,
                case.instance.as_ref(),
                start
            )
            .is_err()
        );
    }
}

#[test]
fn s21_an_instance_that_a_user_deletes_is_replaced() {
    let mut case = Case::parse("Always running,deleting -");
    case.step();
    assert_eq!(case.status.printable_status, Some(Word::Stopping));
    case.instance = None;
    assert!(matches!(case.step().action, Action::Create { .. }));
}

#[test]
fn s22_a_silent_node_is_waited_for() {
    for strategy in ["Always", "RerunOnFailure", "Manual", "Once", "Suspended"] {
        let decision = Case::parse(&format!("{strategy} unknown -")).pass();
        assert_eq!(decision.action, Action::Nothing, "{strategy}");
        assert_eq!(
            decision.status.printable_status,
            Some(Word::Unknown),
            "{strategy}"
        );
    }
}

#[test]
fn s23_there_and_back_ends_with_one_instance_and_one_deletion() {
    let mut case = Case::parse("Always running -");
    case.spec = spec("Halted");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.spec = spec("Always");
    case.preconditions.pending = Pending::Delete;
    assert_eq!(case.step().action, Action::Wait(Waiting::Pending));
    case.preconditions.pending = Pending::Nothing;
    case.instance = instance("running,deleting");
    assert_eq!(case.step().action, Action::Wait(Waiting::Deletion));
    case.instance = None;
    assert!(matches!(case.step().action, Action::Create { .. }));
}

#[test]
fn a_pod_that_vanished_counts_as_lost_and_is_replaced() {
    let mut case = Case::parse("Always running -");
    case.step();
    case.instance = None;
    assert!(matches!(case.step().action, Action::Create { .. }));
    let last = case.status.instance.unwrap();
    assert_eq!(
        (last.phase.as_deref(), last.reason.as_deref()),
        (Some("Failed"), Some("Lost"))
    );
}

#[test]
fn memory_that_was_saved_too_late_is_resumed() {
    let mut case = Case::parse("Always succeeded/ran -");
    case.instance.as_mut().unwrap().end = Some(EndCause::Saved);
    case.step();
    assert_eq!(case.status.power_state, Some(PowerState::Suspended));
    case.instance = None;
    assert_eq!(
        case.step().action,
        Action::Create {
            paused: false,
            restore: true
        }
    );
    let _ = now();
}
