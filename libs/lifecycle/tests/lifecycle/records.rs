//! What a pass records of the instance, of the strategy that it served, and of the queue.
//!
//! Invariant: each case differs in one fact from one that is recorded otherwise.
//! Failure: the case is in the test's name.

use crds::RunStrategy;
use crds::vm::{Afterwards, InstanceStatus, PrintableStatus as Word};
use lifecycle::{Action, Unstartable, Volumes};
use rstest::rstest;

use crate::build::{Case, requests};

const DOWN: Option<Afterwards> = Some(Afterwards::StayDown);
const AGAIN: Option<Afterwards> = Some(Afterwards::StartAgain);

fn record(case: &Case) -> InstanceStatus {
    case.pass().status.instance.unwrap()
}

/// The record that the case begins with.
fn last(case: &mut Case) -> &mut InstanceStatus {
    case.status.instance.as_mut().unwrap()
}

#[rstest]
#[case::saved("Suspended running -", DOWN)]
#[case::goes_on("Always running - follows=again", None)]
#[case::has_ended_and_stays("Manual succeeded - follows=down", DOWN)]
#[case::decided_before_the_end("RerunOnFailure failed - follows=down", DOWN)]
#[case::not_decided_before("RerunOnFailure failed -", AGAIN)]
#[case::is_deleted_when_off("Halted running,deleting - follows=again", DOWN)]
#[case::is_deleted_by_a_stop("Always running,deleting Stop= follows=again", DOWN)]
#[case::is_deleted_by_a_restart("Manual running,deleting Stop=,Start follows=again", AGAIN)]
#[case::is_deleted_by_another_user("Always running,deleting -", AGAIN)]
#[case::is_deleted_by_another_user_and_replaces_failures(
    "RerunOnFailure running,deleting -",
    AGAIN
)]
#[case::is_lost_under_manual("Manual running,deleting -", AGAIN)]
#[case::is_lost_under_once("Once running,deleting -", AGAIN)]
#[case::is_lost_before_it_ran("Once pending,deleting -", AGAIN)]
#[case::is_stopped_under_manual("Manual running,deleting Stop=", DOWN)]
#[case::powers_off_while_it_is_deleted("Manual succeeded,deleting -", DOWN)]
#[case::fails_while_it_is_deleted("Manual failed,deleting -", AGAIN)]
fn what_follows_an_instance(#[case] words: &str, #[case] want: Option<Afterwards>) {
    assert_eq!(record(&Case::parse(words)).afterwards, want);
}

/// A pod that is left of a guest that ended by itself may be deleted by any program.
#[rstest]
#[case("Manual failed,deleting -", DOWN)]
#[case("Once failed,deleting -", DOWN)]
#[case("RerunOnFailure failed,deleting -", AGAIN)]
fn an_end_before_the_deletion_counts(#[case] words: &str, #[case] want: Option<Afterwards>) {
    let mut case = Case::parse(words);
    last(&mut case).phase = Some("Failed".to_owned());
    assert_eq!(record(&case).afterwards, want);
}

/// Until the owner chose another strategy: then it means what it says.
#[rstest]
#[case("Manual none - follows=again", AGAIN)]
#[case("Once none - follows=again", AGAIN)]
#[case("Manual none - follows=again status=Always", DOWN)]
#[case("Once none - follows=again status=Always", DOWN)]
#[case("RerunOnFailure none - follows=again status=Always", AGAIN)]
fn what_was_to_follow_belongs_to_its_strategy(
    #[case] words: &str,
    #[case] want: Option<Afterwards>,
) {
    assert_eq!(record(&Case::parse(words)).afterwards, want);
}

#[test]
fn what_was_decided_for_another_instance_does_not_count() {
    let mut case = Case::parse("RerunOnFailure failed - follows=down");
    last(&mut case).uid = "before".to_owned();
    assert_eq!(record(&case).afterwards, AGAIN);
}

#[test]
fn an_end_that_was_decided_before_it_came_is_no_failed_start() {
    let case = Case::parse("RerunOnFailure failed/short - follows=again");
    assert_eq!(case.pass().status.start_failure, None);
    let case = Case::parse("RerunOnFailure failed/short -");
    assert!(case.pass().status.start_failure.is_some());
}

#[rstest]
#[case("Always", AGAIN)]
#[case("RerunOnFailure", AGAIN)]
#[case("Manual", AGAIN)]
#[case("Once", AGAIN)]
#[case("Halted", DOWN)]
fn an_instance_that_vanished_is_lost(#[case] strategy: &str, #[case] want: Option<Afterwards>) {
    let mut case = Case::parse(&format!("{strategy} none -"));
    last(&mut case).phase = Some("Running".to_owned());
    last(&mut case).afterwards = None;
    let record = record(&case);
    assert_eq!(record.phase.as_deref(), Some("Failed"));
    assert_eq!(record.reason.as_deref(), Some("Lost"));
    assert_eq!(record.afterwards, want);
}

#[rstest]
#[case("Once running -", false)]
#[case("Once succeeded -", true)]
#[case("Once running,deleting -", true)]
#[case("Manual succeeded -", false)]
fn a_single_run_is_completed_by_its_end(#[case] words: &str, #[case] want: bool) {
    assert_eq!(record(&Case::parse(words)).once_completed, want);
}

#[test]
fn a_single_run_that_is_completed_stays_so() {
    let mut case = Case::parse("Once running -");
    last(&mut case).once_completed = true;
    assert!(record(&case).once_completed);
}

#[rstest]
#[case::it_was_completed(RunStrategy::Always, true, true)]
#[case::it_was_under_way(RunStrategy::Once, false, true)]
#[case::it_never_began(RunStrategy::Always, false, false)]
fn a_single_run_whose_pod_is_gone(
    #[case] served: RunStrategy,
    #[case] was_completed: bool,
    #[case] want: bool,
) {
    let mut case = Case::parse("Once none -");
    case.status.run_strategy = Some(served);
    last(&mut case).once_completed = was_completed;
    assert_eq!(record(&case).once_completed, want);
}

#[test]
fn an_end_is_recorded_with_its_message() {
    let mut case = Case::parse("Manual failed -");
    assert_eq!(record(&case).message, None);
    case.instance.as_mut().unwrap().message = "out of memory".to_owned();
    assert_eq!(record(&case).message.as_deref(), Some("out of memory"));
}

#[rstest]
#[case::runs("Manual running - status=Always", RunStrategy::Manual)]
#[case::is_leaving("Manual running,deleting - status=Always", RunStrategy::Always)]
#[case::is_stopped("Manual running,deleting Stop= status=Always", RunStrategy::Manual)]
#[case::is_off("Halted running,deleting - status=Always", RunStrategy::Halted)]
#[case::has_ended("Manual failed - status=Always", RunStrategy::Always)]
fn the_strategy_that_was_served(#[case] words: &str, #[case] want: RunStrategy) {
    assert_eq!(Case::parse(words).pass().status.run_strategy, Some(want));
}

#[test]
fn an_instance_that_ended_before_any_pass_saw_it_served_the_strategy_of_now() {
    let mut case = Case::parse("Manual failed - status=Always");
    last(&mut case).uid = "before".to_owned();
    let served = case.pass().status.run_strategy;
    assert_eq!(served, Some(RunStrategy::Manual));
}

#[rstest]
#[case("Once running Start", "-")]
#[case("Once none Start", "-")]
#[case("Always failed Start", "Start")]
#[case("Always running Start", "-")]
#[case("Halted running Start", "Start")]
fn a_start_is_done_when_nothing_is_left_to_start(#[case] words: &str, #[case] left: &str) {
    let queue = Case::parse(words).pass().status.state_change_requests;
    assert_eq!(queue, requests(left));
}

fn shown(case: &Case) -> Word {
    case.pass().status.printable_status.unwrap()
}

#[rstest]
#[case("Always", Word::ErrorPvcNotFound)]
#[case("Halted", Word::Stopped)]
fn a_missing_claim_shows_when_the_machine_is_to_run(#[case] strategy: &str, #[case] want: Word) {
    let mut case = Case::parse(&format!("{strategy} none -"));
    case.preconditions.volumes = Volumes::ClaimNotFound;
    assert_eq!(shown(&case), want);
}

#[test]
fn a_pod_that_fits_nowhere_shows_before_its_claim_that_waits_for_it() {
    let mut case = Case::parse("Always pending - unbound");
    assert_eq!(shown(&case), Word::WaitingForVolumeBinding);
    case.instance.as_mut().unwrap().unstartable = Some(Unstartable::Unschedulable);
    assert_eq!(shown(&case), Word::ErrorUnschedulable);
}

#[test]
fn what_kept_a_pod_from_starting_is_over_with_its_end() {
    let mut case = Case::parse("Manual failed -");
    case.instance.as_mut().unwrap().unstartable = Some(Unstartable::ErrImagePull);
    assert_eq!(shown(&case), Word::Stopped);
}

#[test]
fn a_machine_with_saved_memory_that_is_held_back_is_not_shown_as_suspended() {
    let mut case = Case::parse("Always none - saved held");
    // The record of the last instance requests another start.
    last(&mut case).afterwards = AGAIN;
    assert!(matches!(case.pass().action, Action::Wait(_)));
    assert_eq!(shown(&case), Word::Stopped);
    assert_eq!(shown(&Case::parse("Halted none - saved")), Word::Suspended);
}

#[rstest]
#[case("Succeeded")]
#[case("Failed")]
fn an_instance_whose_end_is_on_record_is_not_lost(#[case] phase: &str) {
    let mut case = Case::parse("Always none -");
    last(&mut case).phase = Some(phase.to_owned());
    last(&mut case).afterwards = None;
    let record = record(&case);
    assert_eq!(
        (record.phase.as_deref(), record.reason),
        (Some(phase), None)
    );
}
