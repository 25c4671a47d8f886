//! Desired states, generations and `Halted`: scenarios 1 to 9.
//!
//! Invariant: three spellings, one meaning.
//! Failure: the number is in the test's name.

use crds::PowerState;
use lifecycle::verbs::{Verb, verb};
use lifecycle::{Action, DesiredState, Patch, Strategy, desired_power_state};
use rstest::rstest;

use crate::build::{Case, UID, instance, requests, spec};

#[test]
fn s01_more_than_one_spelling_is_refused_by_name() {
    let error = Strategy::from_spec(&spec("both")).unwrap_err().to_string();
    assert!(error.contains("runStrategy and running"), "{error}");
    let decision = Case::parse("both running -").pass();
    assert_eq!(decision.action, Action::Nothing);
    let failure = decision.failure.unwrap();
    assert_eq!(failure.reason, "FailedCreate");
    assert!(failure.message.contains("set only one of"), "{failure:?}");
}

#[rstest]
#[case("PoweredOn", Strategy::Always)]
#[case("PoweredOff", Strategy::Halted)]
#[case("Suspended", Strategy::Suspended)]
#[case("true", Strategy::Always)]
#[case("false", Strategy::Halted)]
#[case("RerunOnFailure", Strategy::RerunOnFailure)]
#[case("Manual", Strategy::Manual)]
#[case("Once", Strategy::Once)]
fn s01_each_spelling_stands_for_a_strategy(#[case] spelled: &str, #[case] strategy: Strategy) {
    assert_eq!(Strategy::from_spec(&spec(spelled)), Ok(strategy));
}

#[test]
fn s01_a_contradictory_machine_can_still_be_deleted() {
    let mut case = Case::parse("both running - deletion");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.instance = None;
    assert_eq!(case.step().action, Action::RemoveFinalizer);
}

#[test]
fn s02_a_second_pass_has_nothing_to_write() {
    for given in [
        "Halted none -",
        "Always running -",
        "Once failed/ran -",
        "RerunOnFailure none -",
    ] {
        let mut case = Case::parse(given);
        case.step();
        let before = case.status.clone();
        assert_eq!(case.pass().status, before, "{given}");
    }
}

#[test]
fn s03_the_generation_of_the_pod_is_observed() {
    let mut case = Case::parse("Always running -");
    case.meta.generation = 7;
    case.instance.as_mut().unwrap().generation = Some(4);
    let status = case.pass().status;
    assert_eq!(
        (status.observed_generation, status.desired_generation),
        (Some(4), Some(7))
    );
    case.instance.as_mut().unwrap().revision = Some(lifecycle::revision::for_spec(&case.spec));
    assert_eq!(
        case.pass().status.observed_generation,
        Some(7),
        "nothing that matters has changed"
    );
}

#[test]
fn s04_a_halted_machine_without_instance_is_left_alone() {
    let decision = Case::parse("Halted none -").pass();
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(decision.status.power_state, Some(PowerState::PoweredOff));
}

#[test]
fn s05_a_halted_machine_is_stopped_once_and_then_released() {
    let mut case = Case::parse("Halted running -");
    let deletion = Action::Delete {
        uid: UID.into(),
        grace_seconds: 300,
    };
    assert_eq!(case.step().action, deletion);
    case.instance = instance("running,deleting");
    assert!(matches!(case.step().action, Action::Wait(_)));
    case.instance = instance("succeeded/ran,deleting");
    assert!(case.step().release, "its end is recorded, so it may go");
    assert_eq!(
        case.status.instance.as_ref().unwrap().reason.as_deref(),
        Some("GuestShutdown")
    );
    case.instance = None;
    assert_eq!(case.step().action, Action::Nothing);
}

#[rstest]
#[case("Halted", "runStrategy=Always")]
#[case("false", "running=true")]
#[case("PoweredOff", "powerState=PoweredOn")]
fn s06_start_keeps_the_spelling(#[case] spelled: &str, #[case] want: &str) {
    let case = Case::parse(&format!("{spelled} none -"));
    let change = verb(
        &case.spec,
        &case.status,
        &case.meta,
        None,
        Verb::Start { paused: false },
    );
    assert_eq!(change.unwrap().desired_state.unwrap().to_string(), want);
}

#[test]
fn s07_a_paused_start_of_a_halted_machine_needs_three_passes_and_no_failure() {
    let mut case = Case::parse("Halted none Start:paused");
    let first = case.step();
    assert_eq!(
        first.action,
        Action::Patch(Patch::DesiredState(
            DesiredState::from_spec(&spec("Always")).unwrap().unwrap()
        ))
    );
    case.spec = spec("Always");
    let second = case.step();
    assert_eq!(second.action, Action::Patch(Patch::Paused));
    case.spec.paused = true;
    let third = case.step();
    assert_eq!(
        third.action,
        Action::Create {
            paused: true,
            restore: false
        }
    );
    case.instance = instance("pending");
    let last = case.step();
    assert_eq!(last.status.state_change_requests, []);
    assert!(
        [first, second, third, last]
            .iter()
            .all(|d| d.failure.is_none())
    );
}

#[test]
fn s08_a_start_while_the_instance_stops_is_not_lost() {
    let mut case = Case::parse("Halted running Start");
    assert!(matches!(case.step().action, Action::Delete { .. }));
    case.instance = instance("running,deleting");
    case.step();
    assert_eq!(case.status.state_change_requests, requests("Start"));
    case.instance = None;
    assert!(matches!(
        case.step().action,
        Action::Patch(Patch::DesiredState(_))
    ));
}

#[test]
fn s09_a_halted_machine_can_only_be_stopped_faster() {
    let stop = |given: &str, grace| {
        let case = Case::parse(given);
        let instance = case.instance.as_ref();
        let verb_ = Verb::Stop {
            grace_seconds: grace,
        };
        verb(&case.spec, &case.status, &case.meta, instance, verb_).map(|c| c.requests.unwrap())
    };
    assert!(stop("Halted none -", None).is_err());
    assert!(stop("Halted running,deleting -", Some(300)).is_err());
    assert!(stop("Halted running,deleting -", Some(400)).is_err());
    assert!(stop("Halted running,deleting -", None).is_err());
    let faster = stop("Halted running,deleting -", Some(5)).unwrap();
    let mut case = Case::parse("Halted running,deleting -");
    case.status.state_change_requests = faster;
    let again = Action::Delete {
        uid: UID.into(),
        grace_seconds: 5,
    };
    assert_eq!(case.step().action, again);
    case.instance.as_mut().unwrap().grace_seconds = Some(5);
    assert!(
        matches!(case.step().action, Action::Wait(_)),
        "once is enough"
    );
}

#[rstest]
#[case("Always none -", PowerState::PoweredOn)]
#[case("Halted running -", PowerState::PoweredOff)]
#[case("Manual none -", PowerState::PoweredOff)]
#[case("Manual none Start", PowerState::PoweredOn)]
#[case("Manual running Stop=", PowerState::PoweredOff)]
#[case("RerunOnFailure none -", PowerState::PoweredOff)]
#[case("RerunOnFailure none - follows=again", PowerState::PoweredOn)]
#[case("RerunOnFailure running -", PowerState::PoweredOn)]
#[case("Once none -", PowerState::PoweredOff)]
#[case("Once running -", PowerState::PoweredOn)]
#[case("Suspended running -", PowerState::Suspended)]
fn the_desired_state_comes_to_a_power_state(#[case] given: &str, #[case] want: PowerState) {
    let case = Case::parse(given);
    let got = desired_power_state(&case.spec, &case.status, case.instance.as_ref());
    assert_eq!(got, Ok(want));
}
