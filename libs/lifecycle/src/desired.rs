//! The decision about one machine.
//!
//! Invariant: everything that the step relies on later is in the status that is written before it.
//! Failure: two fields with a desired state: nothing is done, and the failure names both.

use std::time::Duration;

use crds::names::PAUSED_IO_ERROR;
use crds::vm::StateChangeRequest;
use crds::{PowerState, VirtualMachineStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::backoff::{self, Jitter};
use crate::decision::{Action, Decision, Ending, Failure, Patch, Waiting};
use crate::instance::{EndCause, Instance};
use crate::phase::Phase;
use crate::printable::{View, printable};
use crate::requests::{self, Head};
use crate::rules::{Facts, Seen, Step, step, step_of_deletion};
use crate::strategy::{DesiredState, DesiredStateError, Strategy};
use crate::{Deletion, Machine, Pending, Volumes, power, record, revision, start};

/// What to do with a machine. `jitter` spreads the back-off of machines that failed together.
#[must_use]
pub fn desired(m: &Machine<'_>, now: &Time, jitter: Jitter) -> Decision {
    let desired_state = match DesiredState::from_spec(m.spec) {
        Ok(desired_state) => {
            desired_state.unwrap_or(DesiredState::RunStrategy(crds::RunStrategy::Halted))
        }
        Err(error) => return contradictory(m, now, &error),
    };
    let strategy = desired_state.strategy();
    let seen = Seen::from_instance(m.instance);
    let head = Head::from_requests(&m.status.state_change_requests, m.instance);
    let step = choose(m, strategy, seen, head);

    let mut status = m.status.clone();
    status.start_failure = start_failure(m, strategy, head, now, jitter);
    status.instance = record::instance(m, strategy, step, head);
    status.run_strategy = record::run_strategy(m, strategy, seen, step, head);
    status.state_change_requests = pop(m, strategy);
    (status.observed_generation, status.desired_generation) = revision::generations(m);
    status.created = m.instance.is_some();
    status.ready = m
        .instance
        .is_some_and(|i| i.ready == Some(true) && i.is_live() && i.paused.is_none());
    status.power_state = power_state(m);

    let (action, wait) = act(m, desired_state, step, head, &status, now);
    let reset = backoff::until_reset(status.start_failure.as_ref(), m.instance, now);
    let view = View {
        strategy,
        deletion: m.meta.deletion,
        status: &status,
        instance: m.instance,
        preconditions: m.preconditions,
        action: &action,
        now,
    };
    status.printable_status = Some(printable(&view));
    Decision {
        release: seen == Seen::Left || (seen == Seen::Ended && matches!(step, Step::Remove(_))),
        requeue: wait.or(reset),
        failure: None,
        action,
        status,
    }
}

fn choose(m: &Machine<'_>, strategy: Strategy, seen: Seen, head: Head) -> Step {
    match m.meta.deletion {
        Deletion::Orphan => return Step::Finish,
        Deletion::WithInstance => return step_of_deletion(seen),
        Deletion::No => {}
    }
    let is_saved = m.status.power_state == Some(PowerState::Suspended);
    let facts = Facts {
        head,
        starts: start::starts(strategy, m.status),
        follows: record::follows(m, head),
        discards: is_saved && power::discards_saved(m.spec),
    };
    step(strategy, seen, facts)
}

fn start_failure(
    m: &Machine<'_>,
    strategy: Strategy,
    head: Head,
    now: &Time,
    jitter: Jitter,
) -> Option<crds::vm::StartFailure> {
    match strategy {
        Strategy::Always | Strategy::RerunOnFailure => {
            let is_wanted = record::is_end_wanted(m, head);
            let old = m.status.start_failure.as_ref();
            backoff::account(old, m.instance, is_wanted, now, jitter)
        }
        // These never start by themselves again.
        Strategy::Manual | Strategy::Halted | Strategy::Once | Strategy::Suspended => None,
    }
}

fn pop(m: &Machine<'_>, strategy: Strategy) -> Vec<StateChangeRequest> {
    let starts = start::starts(strategy, m.status);
    requests::pop(
        &m.status.state_change_requests,
        strategy,
        m.instance,
        starts,
    )
}

/// Saved memory lasts until a guest runs again or it is dropped.
fn power_state(m: &Machine<'_>) -> Option<PowerState> {
    let old = m.status.power_state;
    let Some(instance) = m.instance else {
        return old
            .filter(|o| *o == PowerState::Suspended)
            .or(Some(PowerState::PoweredOff));
    };
    match instance.phase {
        Phase::Running => Some(PowerState::PoweredOn),
        Phase::Unknown => old,
        _ if instance.end == Some(EndCause::Saved) => Some(PowerState::Suspended),
        // Its guest ran, so the saved memory was used up even if the guest was never observed
        // running.
        _ if instance.ever_ran() => Some(PowerState::PoweredOff),
        _ => old
            .filter(|o| *o == PowerState::Suspended)
            .or(Some(PowerState::PoweredOff)),
    }
}

type Acted = (Action, Option<Duration>);

fn act(
    m: &Machine<'_>,
    desired_state: DesiredState,
    step: Step,
    head: Head,
    next: &VirtualMachineStatus,
    now: &Time,
) -> Acted {
    if m.preconditions.pending != Pending::Nothing && step != Step::Finish {
        return (Action::Wait(Waiting::Pending), None);
    }
    let action = match (step, m.instance) {
        (Step::Create, _) => return create(m, desired_state.strategy(), next, now),
        (Step::Finish, _) => Action::RemoveFinalizer,
        (Step::Discard, _) => Action::DiscardSaved,
        (Step::SwitchOn, _) => Action::Patch(Patch::DesiredState(match desired_state.strategy() {
            Strategy::Suspended => m.meta.resume.unwrap_or_else(|| desired_state.on()),
            _ => desired_state.on(),
        })),
        (Step::End(_) | Step::Remove(_), Some(instance)) => end(m, instance, head),
        (Step::Save, Some(instance)) => Action::Save {
            uid: instance.uid.clone(),
        },
        (Step::AwaitGone, Some(instance)) => shorten_grace(m, instance, head),
        (Step::Nothing, Some(instance)) => stand(m, instance),
        (Step::Nothing | Step::End(_) | Step::Remove(_) | Step::Save | Step::AwaitGone, None) => {
            Action::Nothing
        }
    };
    (action, None)
}

/// Everything that may hold a start back, the longest wait first.
fn create(m: &Machine<'_>, strategy: Strategy, next: &VirtualMachineStatus, now: &Time) -> Acted {
    let waits_out = matches!(strategy, Strategy::Always | Strategy::RerunOnFailure);
    if let Some(left) = backoff::left(next.start_failure.as_ref(), now).filter(|_| waits_out) {
        return (Action::Wait(Waiting::BackOff), Some(left));
    }
    let action = if m.preconditions.held.is_some() {
        Action::Wait(Waiting::Held)
    } else if m.preconditions.volumes != Volumes::Ready {
        Action::Wait(Waiting::Volumes)
    } else if requests::wants_paused(&m.status.state_change_requests) && !m.spec.paused {
        Action::Patch(Patch::Paused)
    } else {
        Action::Create {
            paused: m.spec.paused,
            restore: m.status.power_state == Some(PowerState::Suspended),
        }
    };
    (action, None)
}

fn end(m: &Machine<'_>, instance: &Instance, head: Head) -> Action {
    let uid = instance.uid.clone();
    let requested = requests::grace(&m.status.state_change_requests).filter(|_| head == Head::Stop);
    let has_guest = instance.phase == Phase::Running && m.meta.deletion == Deletion::No;
    match requested.map_or_else(|| power::ending(m.spec, has_guest), Ending::Delete) {
        Ending::Delete(grace_seconds) => Action::Delete { uid, grace_seconds },
        Ending::Guest(timeout_seconds) => Action::Shutdown {
            uid,
            timeout_seconds,
        },
    }
}

/// A stop that leaves less time than the deletion that is in progress.
fn shorten_grace(m: &Machine<'_>, instance: &Instance, head: Head) -> Action {
    let requested = requests::grace(&m.status.state_change_requests);
    let given = instance.grace_seconds.unwrap_or(i64::MAX);
    match requested.filter(|_| head == Head::Stop && !instance.phase.is_final()) {
        Some(grace_seconds) if i64::from(grace_seconds) < given => Action::Delete {
            uid: instance.uid.clone(),
            grace_seconds,
        },
        _ => Action::Wait(Waiting::Deletion),
    }
}

/// An instance that is to continue is paused or not, as its owner wants. What is paused for
/// another reason, such as a full disk, is left to its node, which resumes it once there is space,
/// unless a request says otherwise; one that its owner pauses as well then waits for the owner.
fn stand(m: &Machine<'_>, instance: &Instance) -> Action {
    let uid = instance.uid.clone();
    match instance.paused.as_deref() {
        _ if instance.phase != Phase::Running => Action::Nothing,
        None if m.spec.paused => Action::Pause { uid },
        Some("PausedByUser") if !m.spec.paused => Action::Unpause { uid },
        Some(PAUSED_IO_ERROR) if m.meta.unpauses(&uid) => Action::Unpause { uid },
        Some(PAUSED_IO_ERROR) if m.spec.paused => Action::Pause { uid },
        _ => Action::Nothing,
    }
}

/// The desired state of such a machine is ambiguous; an instance that it has keeps running.
fn contradictory(m: &Machine<'_>, now: &Time, error: &DesiredStateError) -> Decision {
    let is_deleted = m.meta.deletion != Deletion::No;
    if is_deleted {
        let plain = crds::VirtualMachineSpec {
            power_state: None,
            running: None,
            ..m.spec.clone()
        };
        return desired(&Machine { spec: &plain, ..*m }, now, Jitter::default());
    }
    Decision {
        status: m.status.clone(),
        action: Action::Nothing,
        release: false,
        requeue: None,
        failure: Some(Failure {
            reason: "FailedCreate",
            message: error.to_string(),
        }),
    }
}
