//! The part of `status` about the instance and its run strategy.
//!
//! Invariant: the end of an instance, and what is to follow it, are recorded before the pod is let
//! go.
//! Failure: an instance that vanished without an end counts as lost.

use crds::RunStrategy;
use crds::vm::{Afterwards, InstanceStatus};

use crate::Machine;
use crate::instance::{EndCause, Instance};
use crate::phase::Phase;
use crate::requests::{self, Head};
use crate::rules::{Seen, Step, ended_well};
use crate::start::{has_ended, is_called_off};
use crate::strategy::Strategy;

/// What was recorded before about this very instance.
fn earlier<'a>(m: &Machine<'a>, instance: &Instance) -> Option<&'a InstanceStatus> {
    m.status.instance.as_ref().filter(|i| i.uid == instance.uid)
}

/// Whether the end of this instance was requested, by a caller with that right, before it came.
pub(crate) fn is_end_wanted(m: &Machine<'_>, head: Head) -> bool {
    let earlier = m.instance.and_then(|instance| earlier(m, instance));
    head == Head::Stop || earlier.is_some_and(|e| e.afterwards.is_some())
}

/// What is to follow an instance that ended, under a strategy that replaces failed ones.
pub(crate) fn follows(m: &Machine<'_>, head: Head) -> Afterwards {
    let Some(instance) = m.instance else {
        return Afterwards::StayDown;
    };
    let decided = earlier(m, instance).and_then(|e| e.afterwards);
    match decided {
        _ if head == Head::Stop => Afterwards::StayDown,
        Some(decided) => decided,
        None if ended_well(instance) => Afterwards::StayDown,
        None => Afterwards::StartAgain,
    }
}

/// `status.instance` after this pass.
pub(crate) fn instance(
    m: &Machine<'_>,
    strategy: Strategy,
    step: Step,
    head: Head,
) -> Option<InstanceStatus> {
    let Some(seen) = m.instance else {
        return m
            .status
            .instance
            .clone()
            .map(|last| gone(m, strategy, last));
    };
    let earlier = earlier(m, seen);
    let afterwards = match step {
        Step::End(next) | Step::Remove(next) => Some(next),
        Step::Save => Some(Afterwards::StayDown),
        Step::AwaitGone => Some(of_deletion(m, strategy, head)),
        // A live instance continues; what once was to follow it is no longer meant.
        _ if seen.is_live() => None,
        _ => earlier.and_then(|e| e.afterwards),
    };
    let is_over = seen.deleting || seen.phase.is_final();
    let was_completed = earlier.is_some_and(|e| e.once_completed);
    Some(InstanceStatus {
        uid: seen.uid.clone(),
        phase: Some(seen.phase.to_string()),
        started_at: seen.started_at.clone(),
        finished_at: seen.finished_at.clone(),
        exit_code: seen.exit_code,
        reason: seen.end.as_ref().map(ToString::to_string),
        message: Some(seen.message.clone()).filter(|text| !text.is_empty()),
        once_completed: strategy == Strategy::Once && (is_over || was_completed),
        afterwards,
    })
}

/// What follows an instance that is being deleted. A deletion that the controller did not announce
/// is a failure of the host, whatever the exit code: no owner requested it. A stop that comes late still
/// counts, and so does an end that came before the deletion.
fn of_deletion(m: &Machine<'_>, strategy: Strategy, head: Head) -> Afterwards {
    let earlier = m.instance.and_then(|instance| earlier(m, instance));
    let restarts = requests::then_starts(&m.status.state_change_requests);
    match earlier.and_then(|e| e.afterwards) {
        _ if strategy.is_off() || (head == Head::Stop && !restarts) => Afterwards::StayDown,
        Some(decided) => decided,
        None if strategy == Strategy::Always => Afterwards::StartAgain,
        None if strategy != Strategy::RerunOnFailure && earlier.is_some_and(has_ended) => {
            Afterwards::StayDown
        }
        None => follows(m, head),
    }
}

/// The record of the last instance once its pod no longer exists.
fn gone(m: &Machine<'_>, strategy: Strategy, mut last: InstanceStatus) -> InstanceStatus {
    if !has_ended(&last) {
        last.phase = Some(Phase::Failed.to_string());
        last.reason = Some(EndCause::Lost.to_string());
        last.message = Some("the pod was deleted before its end was observed".into());
        last.afterwards.get_or_insert(Afterwards::StartAgain);
    }
    // What was to follow under another strategy is not what its owner means now.
    let is_new = m.status.run_strategy != Some(strategy.recorded());
    let is_by_request = matches!(strategy, Strategy::Manual | Strategy::Once);
    if is_called_off(m.status) || strategy.is_off() || is_by_request && is_new {
        last.afterwards = Some(Afterwards::StayDown);
    }
    last.once_completed = strategy == Strategy::Once
        && (last.once_completed || m.status.run_strategy == Some(RunStrategy::Once));
    last
}

/// `status.runStrategy` after this pass: the strategy that was last acted upon.
pub(crate) fn run_strategy(
    m: &Machine<'_>,
    strategy: Strategy,
    seen: Seen,
    step: Step,
    head: Head,
) -> Option<RunStrategy> {
    let old = m.status.run_strategy;
    let is_new = |instance: &Instance| earlier(m, instance).is_none();
    let serves = match m.instance {
        // "Never started" stays distinguishable.
        None if old.is_none() => return None,
        // A start that has not succeeded yet must be wanted again in the next pass.
        None => step != Step::Create,
        // To stop an instance is to act upon the strategy, even if the instance was made for
        // another one.
        Some(_) if strategy.is_off() || head == Head::Stop => true,
        Some(i) => !matches!(seen, Seen::Leaving | Seen::Left | Seen::Ended) || is_new(i),
    };
    if serves {
        Some(strategy.recorded())
    } else {
        old.or(Some(strategy.recorded()))
    }
}
