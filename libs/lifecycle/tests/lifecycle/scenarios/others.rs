//! `Manual`, `Once` and `Suspended`: scenarios 34 to 43, and power.
//!
//! Invariant: `Manual` never acts by itself, `Once` acts once.
//! Failure: the number is in the test's name.

use crds::vm::{PowerOpMode, PrintableStatus as Word};
use crds::{PowerState, RunStrategy};
use lifecycle::verbs::{Verb, verb};
use lifecycle::{Action, DesiredState, EndCause, Instance, Patch, Volumes};

use crate::build::{Case, UID, failures, instance, now, requests, spec};

const CREATE: Action = Action::Create {
    paused: false,
    restore: false,
};

#[test]
fn s34_a_start_is_kept_until_the_instance_is_seen() {
    let mut case = Case::parse("Manual none Start volumes");
    case.step();
    assert_eq!(case.status.state_change_requests, requests("Start"));
    case.preconditions.volumes = Volumes::Ready;
    assert_eq!(case.step().action, CREATE);
    assert_eq!(case.status.state_change_requests, requests("Start"));
    case.instance = instance("pending");
    case.step();
    assert_eq!(case.status.state_change_requests, []);
}

#[test]
fn s35_an_instance_that_started_paused_stays_paused_until_it_is_unpaused() {
    let mut case = Case::parse("Manual none Start:paused");
    assert_eq!(case.step().action, Action::Patch(Patch::Paused));
    case.spec.paused = true;
    assert_eq!(
        case.step().action,
        Action::Create {
            paused: true,
            restore: false
        }
    );
    case.instance = instance("halting");
    assert_eq!(case.step().action, Action::Nothing);
    assert_eq!(case.status.printable_status, Some(Word::Paused));
    case.spec.paused = false;
    assert_eq!(case.step().action, Action::Unpause { uid: UID.into() });
}

#[test]
fn s35_what_a_full_disk_stopped_is_not_let_run_on() {
    let mut case = Case::parse("Manual halting -");
    case.instance.as_mut().unwrap().paused = Some("PausedIOError".into());
    assert_eq!(case.step().action, Action::Nothing);
}

#[test]
fn s35_its_owner_can_pause_it_so_that_space_does_not_let_it_run_on() {
    let mut case = Case::parse("Manual halting - paused");
    case.instance.as_mut().unwrap().paused = Some("PausedIOError".into());
    assert_eq!(case.step().action, Action::Pause { uid: UID.into() });
}

#[test]
fn s35_a_request_lets_it_run_once() {
    let mut case = Case::parse("Manual halting -");
    case.instance.as_mut().unwrap().paused = Some("PausedIOError".into());
    case.meta.unpause = Some("earlier/7".into());
    assert_eq!(case.step().action, Action::Nothing, "of another instance");
    case.meta.unpause = Some(format!("{UID}/8"));
    assert_eq!(case.step().action, Action::Unpause { uid: UID.into() });
    case.instance = instance("running");
    assert_eq!(case.step().action, Action::Nothing, "it runs");
}

#[test]
fn s36_stop_and_restart_keep_the_strategy() {
    let mut case = Case::parse("Manual running Stop=,Start");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.instance = None;
    case.step();
    assert_eq!(case.status.state_change_requests, requests("Start"));
    assert_eq!(case.step().action, CREATE);
}

#[test]
fn s37_an_ended_instance_is_kept_until_a_start_replaces_it() {
    let mut case = Case::parse("Manual succeeded/ran -");
    assert_eq!(case.step().action, Action::Nothing);
    assert_eq!(case.status.instance.as_ref().unwrap().exit_code, Some(0));
    let start = Verb::Start { paused: false };
    let change = verb(
        &case.spec,
        &case.status,
        &case.meta,
        case.instance.as_ref(),
        start,
    );
    assert_eq!(change.unwrap().requests.unwrap(), requests("Stop=,Start"));
}

#[test]
fn s38_a_bare_start_replaces_an_ended_instance() {
    let mut case = Case::parse("Manual failed/ran Start");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.instance = None;
    assert_eq!(case.step().action, CREATE);
}

#[test]
fn s39_failures_of_an_earlier_strategy_are_forgotten() {
    let mut case = Case::parse("Manual none -");
    case.status.start_failure = Some(failures(4, 100));
    assert_eq!(case.step().status.start_failure, None);
}

#[test]
fn s40_once_is_once() {
    let mut case = Case::parse("Once none - status=none");
    assert_eq!(case.step().action, CREATE);
    for seen in ["pending", "running", "failed/ran", "failed/ran"] {
        case.instance = instance(seen);
        assert_eq!(case.step().action, Action::Nothing, "{seen}");
    }
    assert!(case.status.instance.as_ref().unwrap().once_completed);
}

#[test]
fn s41_an_object_deleted_after_its_end_is_not_a_new_once() {
    for ended in ["succeeded/ran", "failed/never"] {
        let mut case = Case::parse("Once none - status=none");
        case.step();
        case.instance = instance(ended);
        case.step();
        case.instance = None;
        for _ in 0..3 {
            assert_eq!(case.step().action, Action::Nothing, "{ended}");
        }
        assert!(case.status.instance.as_ref().unwrap().once_completed);
    }
}

/// No owner requested that: another instance takes its place, and its end is the end.
#[test]
fn s41_a_run_that_another_program_cut_short_is_begun_again() {
    for cut in [
        "running,deleting",
        "pending,deleting",
        "failed/ran,deleting",
    ] {
        let mut case = Case::parse("Once none - status=none");
        case.step();
        case.instance = instance("running");
        case.step();
        case.instance = instance(cut);
        case.step();
        case.instance = None;
        assert_eq!(case.step().action, CREATE, "{cut}");
        let mut another = instance("succeeded/ran");
        another.as_mut().unwrap().uid = "another".to_owned();
        case.instance = another;
        case.step();
        case.instance = None;
        for _ in 0..3 {
            assert_eq!(case.step().action, Action::Nothing, "{cut}");
        }
    }
}

#[test]
fn s41_choosing_once_again_is_a_new_once() {
    let mut case = Case::parse("Once none -");
    case.step();
    case.spec = spec("Halted");
    case.step();
    case.spec = spec("Once");
    assert_eq!(case.step().action, CREATE);
}

#[test]
fn s42_verbs_of_a_machine_that_runs_once() {
    let case = Case::parse("Once running -");
    let verb = |v| {
        verb(
            &case.spec,
            &case.status,
            &case.meta,
            case.instance.as_ref(),
            v,
        )
    };
    assert!(verb(Verb::Start { paused: false }).is_err());
    assert!(verb(Verb::Restart { force: false }).is_err());
    let stopped = verb(Verb::Stop {
        grace_seconds: None,
    })
    .unwrap();
    assert_eq!(
        stopped.desired_state,
        Some(DesiredState::RunStrategy(RunStrategy::Halted))
    );
}

#[test]
fn s43_an_only_run_that_failed_is_stopped_with_a_reason() {
    let mut case = Case::parse("Once failed/never -");
    case.instance.as_mut().unwrap().end = Some(EndCause::StartError);
    case.instance.as_mut().unwrap().message = "no such disk".into();
    case.step();
    assert_eq!(case.status.printable_status, Some(Word::Stopped));
    let mut conditions = Vec::new();
    lifecycle::conditions::update(
        &mut conditions,
        &case.machine(),
        None,
        lifecycle::conditions::Guest::Pod,
        &now(),
    );
    let failure = crds::conditions::find(&conditions, "Failure").unwrap();
    assert_eq!(failure.reason, "FailedStart");
    assert!(failure.message.contains("StartError") && failure.message.contains("no such disk"));
}

#[test]
fn a_machine_is_suspended_and_resumed() {
    let mut case = Case::parse("Suspended running -");
    assert_eq!(case.step().action, Action::Save { uid: UID.into() });
    case.instance = instance("succeeded/ran").map(|i| Instance {
        end: Some(EndCause::Saved),
        ..i
    });
    assert!(matches!(case.step().action, Action::Delete { .. }));
    assert_eq!(case.status.power_state, Some(PowerState::Suspended));
    case.instance = None;
    assert_eq!(case.step().action, Action::Nothing);
    assert_eq!(case.status.printable_status, Some(Word::Suspended));
    case.spec = spec("PoweredOn");
    assert_eq!(
        case.step().action,
        Action::Create {
            paused: false,
            restore: true
        }
    );
    case.instance = instance("pending").map(|i| Instance {
        uid: "next".into(),
        ..i
    });
    case.step();
    assert_eq!(
        case.status.power_state,
        Some(PowerState::Suspended),
        "until its guest runs"
    );
    case.instance = instance("running").map(|i| Instance {
        uid: "next".into(),
        ..i
    });
    case.step();
    assert_eq!(case.status.power_state, Some(PowerState::PoweredOn));
}

#[test]
fn powering_off_a_suspended_machine_drops_its_memory_unless_only_the_guest_may() {
    let mut case = Case::parse("PoweredOff none - saved");
    assert_eq!(case.step().action, Action::DiscardSaved);
    case.spec.power_off_mode = Some(PowerOpMode::Soft);
    assert_eq!(case.step().action, Action::Nothing);
    assert_eq!(case.status.printable_status, Some(Word::Suspended));
}

#[test]
fn the_power_off_mode_selects_how_an_instance_ends() {
    let mut case = Case::parse("PoweredOff running -");
    case.spec.power_off_timeout = Some("1m30s".into());
    let uid = || UID.to_owned();
    let mut with = |mode| {
        case.spec.power_off_mode = mode;
        case.pass().action
    };
    assert_eq!(
        with(None),
        Action::Delete {
            uid: uid(),
            grace_seconds: 90
        }
    );
    assert_eq!(
        with(Some(PowerOpMode::Hard)),
        Action::Delete {
            uid: uid(),
            grace_seconds: 0
        }
    );
    let requested = Action::Shutdown {
        uid: uid(),
        timeout_seconds: 90,
    };
    assert_eq!(with(Some(PowerOpMode::Soft)), requested);
    case.instance = instance("pending");
    assert!(
        matches!(case.pass().action, Action::Delete { .. }),
        "there is no guest to ask"
    );
}
