//! The decision table: strategy, instance and head request give one step.
//!
//! Invariant: the match is total and says nothing twice; what an ended instance is followed by is
//! decided here, before it is removed.
//! Failure: none.

use crds::vm::Afterwards;

use crate::instance::{EndCause, Instance};
use crate::phase::Phase;
use crate::requests::Head;
use crate::strategy::Strategy;

/// An instance, in the states that the table distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// There is none.
    Absent,
    /// Before the guest runs.
    Starting,
    /// The guest runs or is paused.
    Running,
    /// Its node is silent.
    Unknown,
    /// It has ended.
    Ended,
    /// It is being deleted, and has not ended.
    Leaving,
    /// It is being deleted, and has ended.
    Left,
}

impl Seen {
    pub(crate) fn from_instance(instance: Option<&Instance>) -> Self {
        let Some(instance) = instance else {
            return Self::Absent;
        };
        match instance.phase {
            Phase::Succeeded | Phase::Failed if instance.deleting => Self::Left,
            Phase::Succeeded | Phase::Failed => Self::Ended,
            _ if instance.deleting => Self::Leaving,
            Phase::Pending | Phase::Scheduling | Phase::Scheduled => Self::Starting,
            Phase::Running => Self::Running,
            Phase::Unknown => Self::Unknown,
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Leave everything as it is.
    Nothing,
    /// Let an instance exist, unless something holds a start back.
    Create,
    /// End a live instance; then what is said.
    End(Afterwards),
    /// Remove an ended instance; then what is said.
    Remove(Afterwards),
    /// Let the specification say "run".
    SwitchOn,
    /// Save the memory of the instance and end it.
    Save,
    /// Drop saved memory.
    Discard,
    /// An instance is going.
    AwaitGone,
    /// Let the machine go.
    Finish,
}

/// What the table looks at besides the strategy and the instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) head: Head,
    /// [`crate::start::starts`]: without an instance, one is wanted.
    pub(crate) starts: bool,
    /// What is to follow an ended instance that is replaced after failures only.
    pub(crate) follows: Afterwards,
    /// Saved memory is there and may be dropped.
    pub(crate) discards: bool,
}

use Afterwards::{StartAgain, StayDown};
use Seen::{Absent, Ended, Leaving, Left, Running, Starting, Unknown};
use Strategy::{Always, Halted, Manual, Once, RerunOnFailure, Suspended};

/// The step of a machine that is not being deleted.
pub(crate) fn step(strategy: Strategy, seen: Seen, facts: Facts) -> Step {
    match (strategy, seen, facts.head) {
        (_, Leaving | Left, _) => Step::AwaitGone,

        (Halted | Suspended, Absent, Head::Start) => Step::SwitchOn,
        (Halted, Absent, _) if facts.discards => Step::Discard,
        (Halted | Suspended, Absent, _) => Step::Nothing,
        (Halted, Starting | Running | Unknown, _) => Step::End(StayDown),
        (Halted | Suspended, Ended, _) => Step::Remove(StayDown),
        (Suspended, Running, _) => Step::Save,
        // What does not run yet has no memory to save; what is silent cannot be queried.
        (Suspended, Starting | Unknown, _) => Step::Nothing,

        (_, Absent, _) if facts.starts => Step::Create,
        (_, Absent, _) => Step::Nothing,

        (Always, Starting | Running | Unknown, Head::Stop) => Step::End(StartAgain),
        (RerunOnFailure | Manual | Once, Starting | Running | Unknown, Head::Stop) => {
            Step::End(StayDown)
        }
        (_, Starting | Running | Unknown, _) => Step::Nothing,

        (Always, Ended, _) => Step::Remove(StartAgain),
        (RerunOnFailure, Ended, _) => Step::Remove(facts.follows),
        (Manual, Ended, Head::Start | Head::Stop) => Step::Remove(StayDown),
        (Manual, Ended, Head::Nothing) | (Once, Ended, _) => Step::Nothing,
    }
}

/// The step of a machine that is being deleted with its instance.
pub(crate) const fn step_of_deletion(seen: Seen) -> Step {
    match seen {
        Absent => Step::Finish,
        Starting | Running | Unknown => Step::End(StayDown),
        Ended => Step::Remove(StayDown),
        Leaving | Left => Step::AwaitGone,
    }
}

/// Whether an end that was not requested was the guest's own and a clean one.
pub(crate) fn ended_well(instance: &Instance) -> bool {
    let is_guests = match &instance.end {
        Some(EndCause::GuestShutdown | EndCause::Saved) => true,
        // A reason that is not the daemon's: the exit code decides, if the pod was not being
        // deleted.
        Some(EndCause::Other(_)) => !instance.deleting,
        _ => false,
    };
    let is_well = instance.phase == Phase::Succeeded && instance.ever_ran();
    is_well && is_guests && !instance.disrupted
}
