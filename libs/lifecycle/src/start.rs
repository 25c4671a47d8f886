//! Whether a machine is to have an instance.
//!
//! Invariant: `Once` starts once for each time it is chosen, and `Manual` once for each request, unless
//! an instance was lost that no owner ended: another one continues in its place. A clean end under
//! `RerunOnFailure` stays one.
//! Failure: none.

use crds::vm::{Afterwards, InstanceStatus, StateChangeAction};
use crds::{PowerState, RunStrategy, VirtualMachineSpec, VirtualMachineStatus};

use crate::instance::Instance;
use crate::phase::Phase;
use crate::requests::Head;
use crate::strategy::{DesiredStateError, Strategy};

/// The power state that follows from the desired state at this moment; the input of the queue's
/// priority.
pub fn desired_power_state(
    spec: &VirtualMachineSpec,
    status: &VirtualMachineStatus,
    instance: Option<&Instance>,
) -> Result<PowerState, DesiredStateError> {
    Ok(match Strategy::from_spec(spec)? {
        Strategy::Suspended => PowerState::Suspended,
        strategy if set_to_start(strategy, status, instance) => PowerState::PoweredOn,
        _ => PowerState::PoweredOff,
    })
}

/// Whether an instance is wanted: there is one that may continue, or there is to be another.
#[must_use]
pub fn set_to_start(
    strategy: Strategy,
    status: &VirtualMachineStatus,
    instance: Option<&Instance>,
) -> bool {
    let head = Head::from_requests(&status.state_change_requests, instance);
    let Some(instance) = instance else {
        return starts(strategy, status);
    };
    match strategy {
        Strategy::Always => true,
        Strategy::Halted | Strategy::Suspended => false,
        Strategy::Once if instance.phase.is_final() => false,
        Strategy::Manual if instance.phase.is_final() => head == Head::Start,
        Strategy::RerunOnFailure if instance.phase.is_final() => {
            head == Head::Start || afterwards(status) == Some(Afterwards::StartAgain)
        }
        Strategy::Manual | Strategy::Once | Strategy::RerunOnFailure => head != Head::Stop,
    }
}

/// Whether a machine without an instance is to have one.
pub(crate) fn starts(strategy: Strategy, status: &VirtualMachineStatus) -> bool {
    let is_asked = status
        .state_change_requests
        .first()
        .is_some_and(|head| head.action == StateChangeAction::Start);
    match strategy {
        Strategy::Always => true,
        Strategy::Halted | Strategy::Suspended => false,
        Strategy::Manual => is_asked || was_lost(status, RunStrategy::Manual),
        Strategy::RerunOnFailure => {
            let is_new = status.run_strategy != Some(RunStrategy::RerunOnFailure);
            let is_due = is_new || afterwards(status) == Some(Afterwards::StartAgain);
            is_asked || is_due && !is_called_off(status)
        }
        Strategy::Once => {
            let is_used_up = status.instance.as_ref().is_some_and(|i| i.once_completed);
            let is_new = status.run_strategy != Some(RunStrategy::Once);
            is_new && !is_used_up || was_lost(status, RunStrategy::Once)
        }
    }
}

/// Whether the last instance, which this strategy started, went without a request or an end of its
/// own.
fn was_lost(status: &VirtualMachineStatus, strategy: RunStrategy) -> bool {
    let is_its = status.run_strategy == Some(strategy);
    is_its && afterwards(status) == Some(Afterwards::StartAgain) && !is_called_off(status)
}

/// Whether a stop names the last instance, which no longer exists: what was to follow it is not
/// wanted any more.
pub(crate) fn is_called_off(status: &VirtualMachineStatus) -> bool {
    let last = status.instance.as_ref();
    let head = status.state_change_requests.first();
    head.zip(last).is_some_and(|(head, last)| {
        head.action == StateChangeAction::Stop && head.uid.as_ref() == Some(&last.uid)
    })
}

/// What follows the last instance; one whose end was neither requested nor observed is to be
/// replaced.
fn afterwards(status: &VirtualMachineStatus) -> Option<Afterwards> {
    let last = status.instance.as_ref()?;
    if last.afterwards.is_none() && !has_ended(last) {
        return Some(Afterwards::StartAgain);
    }
    last.afterwards
}

/// Whether the record of an instance states that it ended.
pub(crate) fn has_ended(last: &InstanceStatus) -> bool {
    last.phase.as_deref().is_some_and(Phase::is_final_name)
}
