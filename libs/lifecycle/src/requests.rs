//! The queue of requests: the meaning of its head, and when it is done.
//!
//! Invariant: only the head is checked, and a pass takes away at most one.
//! Failure: a request that has no meaning (a Stop without UID) is removed.

use crds::vm::{StateChangeAction, StateChangeRequest};

use crate::instance::Instance;
use crate::strategy::Strategy;

/// Key of [`StateChangeRequest::data`]: start with standing vCPUs when `true`.
pub const PAUSED: &str = "paused";
/// Key of [`StateChangeRequest::data`]: seconds that the guest has.
pub const GRACE: &str = "gracePeriodSeconds";

/// What the head of the queue means for the instance that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// There is none, or it is void.
    Nothing,
    /// Let an instance exist.
    Start,
    /// End this instance.
    Stop,
}

impl Head {
    pub(crate) fn from_requests(
        requests: &[StateChangeRequest],
        instance: Option<&Instance>,
    ) -> Self {
        match requests.first() {
            Some(head) if head.action == StateChangeAction::Start => Self::Start,
            Some(head) if is_for(head, instance) => Self::Stop,
            _ => Self::Nothing,
        }
    }
}

fn is_for(stop: &StateChangeRequest, instance: Option<&Instance>) -> bool {
    instance.is_some_and(|i| stop.uid.as_deref() == Some(&i.uid))
}

/// Whether the head requests a start with standing vCPUs.
pub(crate) fn wants_paused(requests: &[StateChangeRequest]) -> bool {
    requests.first().is_some_and(|head| {
        head.action == StateChangeAction::Start
            && head.data.get(PAUSED).is_some_and(|value| value == "true")
    })
}

/// The grace that the head, a Stop, requests.
pub(crate) fn grace(requests: &[StateChangeRequest]) -> Option<u32> {
    requests.first()?.data.get(GRACE)?.parse().ok()
}

/// Whether the request after the head is a Start: a restart.
pub(crate) fn then_starts(requests: &[StateChangeRequest]) -> bool {
    requests
        .get(1)
        .is_some_and(|next| next.action == StateChangeAction::Start)
}

/// Whether the requests end this instance for another one that they start: with `Always` one follows
/// whatever they say. Of what the strategy keeps off, and of a machine whose only run this is, none does.
#[must_use]
pub fn restarts(requests: &[StateChangeRequest], strategy: Strategy, instance: &Instance) -> bool {
    let is_stop = Head::from_requests(requests, Some(instance)) == Head::Stop;
    is_stop
        && match strategy {
            Strategy::Always => true,
            Strategy::RerunOnFailure | Strategy::Manual => then_starts(requests),
            Strategy::Halted | Strategy::Suspended | Strategy::Once => false,
        }
}

/// The queue after a pass that saw `instance` before it did anything. `starts`: without an
/// instance, one is wanted.
pub(crate) fn pop(
    requests: &[StateChangeRequest],
    strategy: Strategy,
    instance: Option<&Instance>,
    starts: bool,
) -> Vec<StateChangeRequest> {
    // Of a machine whose only run is over or in progress, nothing can be started.
    let is_used_up = strategy == Strategy::Once && (instance.is_some() || !starts);
    let has_ended = instance.is_some_and(|i| i.phase.is_final());
    let is_done = requests.first().is_some_and(|head| match head.action {
        StateChangeAction::Stop => !is_for(head, instance) || is_used_up && has_ended,
        // An instance that this strategy ends does not fulfil it: the start follows the end.
        StateChangeAction::Start => {
            is_used_up || instance.is_some_and(Instance::is_live) && !strategy.is_off()
        }
    });
    requests[usize::from(is_done)..].to_vec()
}
