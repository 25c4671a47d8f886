//! Decisions at their edges, which the table and the scenarios pass by.
//!
//! Invariant: each case differs in one fact from one that is decided otherwise.
//! Failure: the case is in the test's name.

use crds::conditions::{FAILURE, PAUSED, READY, find};
use crds::vm::Afterwards;
use crds::{PowerState, RunStrategy};
use lifecycle::conditions::{Guest, update};
use lifecycle::{Action, Deletion, EndCause, Waiting, desired_power_state};
use rstest::rstest;

use crate::build::{Case, UID, ago, failures, instance, now, requests};

/// The conditions after a pass, and the text of one of them.
fn text(case: &Case, kind: &str) -> Option<String> {
    let mut conditions = Vec::new();
    update(&mut conditions, &case.machine(), None, Guest::Pod, &now());
    find(&conditions, kind).map(|c| c.message.clone())
}

#[rstest]
#[case(59, 2)]
#[case(60, 1)]
#[case(599, 1)]
fn only_a_run_of_less_than_a_minute_counts_like_a_failed_start(
    #[case] seconds: i64,
    #[case] count: u32,
) {
    let mut case = Case::parse("Always failed -");
    case.instance.as_mut().unwrap().started_at = Some(ago(seconds));
    case.status.start_failure = Some(failures(1, -30));
    let failure = case.step().status.start_failure.unwrap();
    assert_eq!(failure.consecutive_fail_count, count);
}

#[test]
fn a_short_run_whose_end_was_requested_is_no_failed_start() {
    let case = Case::parse("Always failed/short Stop=");
    assert_eq!(case.pass().status.start_failure, None);
}

#[rstest]
#[case::waits("pending", "no room", Some("the guest does not run yet: no room"))]
#[case::waits_without_a_reason("pending", "", Some("the guest does not run yet"))]
#[case::has_ended("failed", "no room", Some("the instance has ended or is about to"))]
#[case::runs("running", "no room", Some(""))]
fn only_what_keeps_a_pod_from_running_is_in_ready(
    #[case] seen: &str,
    #[case] message: &str,
    #[case] want: Option<&str>,
) {
    let mut case = Case::parse(&format!("Always {seen} -"));
    case.instance.as_mut().unwrap().message = message.to_owned();
    assert_eq!(text(&case, READY).as_deref(), want);
}

#[rstest]
#[case("running", true)]
#[case("pending", false)]
#[case("running,deleting", false)]
fn only_a_guest_that_runs_is_shown_as_paused(#[case] seen: &str, #[case] want: bool) {
    let mut case = Case::parse(&format!("Always {seen} -"));
    case.instance.as_mut().unwrap().paused = Some("PausedByUser".to_owned());
    assert_eq!(text(&case, PAUSED).is_some(), want);
}

#[rstest]
#[case("Once failed/never", true)]
#[case("Once failed/ran", false)]
#[case("Once pending", false)]
#[case("Manual failed/never", false)]
fn only_a_single_run_that_never_began_is_a_failure(#[case] words: &str, #[case] want: bool) {
    let case = Case::parse(&format!("{words} -"));
    assert_eq!(text(&case, FAILURE).is_some(), want);
}

#[rstest]
#[case("unknown", PowerState::PoweredOn, PowerState::PoweredOn)]
#[case("unknown", PowerState::Suspended, PowerState::Suspended)]
#[case("succeeded/ran", PowerState::Suspended, PowerState::PoweredOff)]
#[case("failed/never", PowerState::Suspended, PowerState::Suspended)]
#[case("failed/never", PowerState::PoweredOn, PowerState::PoweredOff)]
fn saved_memory_lasts_until_a_guest_has_run(
    #[case] seen: &str,
    #[case] old: PowerState,
    #[case] new: PowerState,
) {
    let mut case = Case::parse(&format!("Manual {seen} -"));
    case.status.power_state = Some(old);
    assert_eq!(case.pass().status.power_state, Some(new));
}

/// A queue whose Stop has a grace of seven seconds.
fn hasty(queue: &str) -> Vec<crds::vm::StateChangeRequest> {
    let mut all = requests(queue);
    let data = &mut all[0].data;
    data.insert("gracePeriodSeconds".to_owned(), "7".to_owned());
    all
}

#[rstest]
#[case::of_this_instance("Stop=", 7)]
#[case::of_another_instance("Stop≠", 300)]
fn the_grace_of_a_request_counts_for_the_instance_that_it_names(
    #[case] queue: &str,
    #[case] want: u32,
) {
    let mut case = Case::parse("Halted running -");
    case.status.state_change_requests = hasty(queue);
    let uid = UID.to_owned();
    let grace_seconds = want;
    assert_eq!(case.pass().action, Action::Delete { uid, grace_seconds });
}

#[rstest]
#[case::is_sooner("running,deleting", "Stop=", true)]
#[case::names_another_instance("running,deleting", "Stop≠", false)]
#[case::has_ended("failed,deleting", "Stop=", false)]
fn a_deletion_is_hurried_by_a_shorter_grace(
    #[case] seen: &str,
    #[case] queue: &str,
    #[case] want: bool,
) {
    let mut case = Case::parse(&format!("Halted {seen} -"));
    case.status.state_change_requests = hasty(queue);
    let uid = UID.to_owned();
    let grace_seconds = 7;
    let action = case.pass().action;
    assert_eq!(action == Action::Delete { uid, grace_seconds }, want);
    assert_eq!(action == Action::Wait(Waiting::Deletion), !want);
}

#[rstest]
#[case("Always running - paused", Action::Pause { uid: UID.into() })]
#[case("Always pending - paused", Action::Nothing)]
#[case("Always halting - paused", Action::Nothing)]
#[case("Always halting -", Action::Unpause { uid: UID.into() })]
#[case("Always running -", Action::Nothing)]
fn a_guest_is_paused_and_unpaused_while_it_runs(#[case] words: &str, #[case] want: Action) {
    assert_eq!(Case::parse(words).pass().action, want);
}

#[test]
fn a_machine_that_contradicts_itself_can_be_deleted() {
    let mut case = Case::parse("both running -");
    case.spec.power_state = Some(PowerState::PoweredOn);
    case.spec.run_strategy = Some(RunStrategy::Manual);
    assert_eq!(case.pass().action, Action::Nothing);
    case.meta.deletion = Deletion::WithInstance;
    assert!(matches!(case.pass().action, Action::Delete { .. }));
    case.instance = instance("none");
    assert_eq!(case.pass().action, Action::RemoveFinalizer);
}

#[test]
fn a_guest_has_a_week_to_power_off_at_most() {
    let mut case = Case::parse("Halted running -");
    case.spec.power_off_timeout = Some("1000h".to_owned());
    let uid = UID.to_owned();
    let grace_seconds = 604_800;
    assert_eq!(case.pass().action, Action::Delete { uid, grace_seconds });
}

#[rstest]
#[case("Once running -", PowerState::PoweredOn)]
#[case("Once failed -", PowerState::PoweredOff)]
#[case("Manual failed -", PowerState::PoweredOff)]
#[case("Manual failed Start", PowerState::PoweredOn)]
#[case("Manual running -", PowerState::PoweredOn)]
#[case("Manual running Stop=", PowerState::PoweredOff)]
#[case("RerunOnFailure running - follows=down", PowerState::PoweredOn)]
#[case("RerunOnFailure failed - follows=down", PowerState::PoweredOff)]
#[case("RerunOnFailure failed -", PowerState::PoweredOn)]
#[case("RerunOnFailure failed Start follows=down", PowerState::PoweredOn)]
#[case("Always failed -", PowerState::PoweredOn)]
#[case("Halted running -", PowerState::PoweredOff)]
#[case("Suspended running -", PowerState::Suspended)]
fn the_power_state_that_a_strategy_asks_for(#[case] words: &str, #[case] want: PowerState) {
    let case = Case::parse(words);
    let found = desired_power_state(&case.spec, &case.status, case.instance.as_ref());
    assert_eq!(found.ok(), Some(want));
}

#[rstest]
#[case("succeeded", Some(Afterwards::StayDown))]
#[case("succeeded,deleting", Some(Afterwards::StartAgain))]
fn an_exit_of_unknown_kind_is_clean_unless_its_pod_was_deleted(
    #[case] seen: &str,
    #[case] want: Option<Afterwards>,
) {
    let mut case = Case::parse(&format!("RerunOnFailure {seen} -"));
    case.instance.as_mut().unwrap().end = Some(EndCause::Other("Completed".to_owned()));
    assert_eq!(case.pass().status.instance.unwrap().afterwards, want);
}
