//! The writes of each verb of a user.
//!
//! Invariant: a stop may replace whatever waits in the queue; nothing else may replace anything but
//! a stop, or a restart by one with a shorter grace period. Every patch tests what it replaces, so
//! that of two writers one gets a conflict.
//! Failure: [`Conflict`] with a sentence for the user; nothing is written then.

use std::collections::BTreeMap;

use crds::PowerState;
use crds::names::PAUSED_IO_ERROR;
use crds::vm::{Afterwards, InstanceStatus, StateChangeAction, StateChangeRequest};

use crate::instance::Instance;
use crate::phase::Phase;
use crate::requests::{self, GRACE, PAUSED};
use crate::start::has_ended;
use crate::strategy::{DesiredState, Strategy};
use crate::{Deletion, Meta, power};

mod change;

pub use change::Change;

/// What a user may ask of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Let it run.
    Start {
        /// With standing vCPUs.
        paused: bool,
    },
    /// Let it end.
    Stop {
        /// Seconds that the guest has; `None`: the value of the specification; 0: none.
        grace_seconds: Option<u32>,
    },
    /// Replace the instance by a new one.
    Restart {
        /// Without asking the guest.
        force: bool,
    },
    /// Save its memory and let it end.
    Suspend,
    /// Let it continue from saved memory.
    Resume,
    /// Stop its vCPUs.
    Pause,
    /// Let its vCPUs run on.
    Unpause,
}

/// The state of the machine does not allow the verb; the text states why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Conflict(String);

fn refuse<T>(sentence: impl Into<String>) -> Result<T, Conflict> {
    Err(Conflict(sentence.into()))
}

/// What the verb writes.
///
/// A machine whose desired state is in `runStrategy` or `running` is suspended by `powerState:
/// Suspended` and an annotation that stores the former desired state; resuming restores it.
pub fn verb(
    spec: &crds::VirtualMachineSpec,
    status: &crds::VirtualMachineStatus,
    meta: &Meta,
    instance: Option<&Instance>,
    verb: Verb,
) -> Result<Change, Conflict> {
    let desired_state = DesiredState::from_spec(spec).map_err(|e| Conflict(e.to_string()))?;
    let desired_state =
        desired_state.unwrap_or(DesiredState::RunStrategy(crds::RunStrategy::Halted));
    let subject = Subject {
        spec,
        status,
        meta,
        instance,
        desired_state,
    };
    if meta.deletion != Deletion::No {
        return subject.shorten_grace(verb);
    }
    match verb {
        Verb::Start { paused } => subject.start(paused),
        Verb::Stop { grace_seconds } => subject.stop(grace_seconds),
        Verb::Restart { force } => subject.restart(force),
        Verb::Suspend => subject.suspend(),
        Verb::Resume => subject.resume(),
        Verb::Pause => subject.pause(),
        Verb::Unpause => subject.unpause(),
    }
}

struct Subject<'a> {
    spec: &'a crds::VirtualMachineSpec,
    status: &'a crds::VirtualMachineStatus,
    meta: &'a Meta,
    instance: Option<&'a Instance>,
    desired_state: DesiredState,
}

type Verdict = Result<Change, Conflict>;

impl Subject<'_> {
    fn start(&self, paused: bool) -> Verdict {
        let is_live = self
            .instance
            .is_some_and(|i| i.is_live() && i.phase != Phase::Unknown);
        let ended = self.instance.filter(|i| i.phase.is_final() && !i.deleting);
        match self.desired_state.strategy() {
            Strategy::Halted => Ok(Change {
                desired_state: Some(self.desired_state.on()),
                paused: paused.then_some(true),
                ..Change::default()
            }),
            Strategy::Suspended => self.resume(),
            _ if is_live => refuse("it is running or about to run already"),
            Strategy::Always => refuse("it is to run always, and is started by itself"),
            Strategy::Once => refuse("it runs once only; change spec.runStrategy to run it again"),
            Strategy::RerunOnFailure if ended.is_some_and(|i| i.phase == Phase::Failed) => {
                refuse("it has failed, and is started again by itself")
            }
            Strategy::Manual | Strategy::RerunOnFailure => {
                let mut wanted: Vec<_> = ended.map(|i| stop(&i.uid, None)).into_iter().collect();
                wanted.push(start(paused));
                self.enqueue(wanted)
            }
        }
    }

    fn stop(&self, grace: Option<u32>) -> Verdict {
        let live = self.instance.filter(|i| !i.phase.is_final());
        let by_request = |i: &Instance| vec![stop(&i.uid, grace)];
        match self.desired_state.strategy() {
            Strategy::Halted => match live.filter(|i| self.is_shorter(i, grace)) {
                Some(instance) => Ok(Change::requests(by_request(instance))),
                None if live.is_some() => {
                    refuse("it is being stopped already; only a shorter grace period helps")
                }
                None => refuse("it is stopped already"),
            },
            Strategy::Always | Strategy::Once | Strategy::Suspended => {
                let hurried = live.filter(|_| grace.is_some()).map(by_request);
                // A start that waits would switch the machine on again.
                let is_waiting = !self.status.state_change_requests.is_empty();
                Ok(Change {
                    desired_state: Some(
                        self.meta
                            .resume
                            .filter(|_| self.is_suspended())
                            .unwrap_or(self.desired_state)
                            .off(),
                    ),
                    forget: self.is_suspended(),
                    requests: hurried.or_else(|| is_waiting.then(Vec::new)),
                    ..Change::default()
                })
            }
            Strategy::Manual | Strategy::RerunOnFailure => match live {
                Some(instance)
                    if self.is_stopping(instance) && !self.is_shorter(instance, grace) =>
                {
                    refuse("it is being stopped already; only a shorter grace period helps")
                }
                Some(instance) => Ok(Change::requests(by_request(instance))),
                None => self.call_off(),
            },
        }
    }

    /// A machine that is being deleted: the only possible request is a shorter grace period.
    fn shorten_grace(&self, verb: Verb) -> Verdict {
        let live = self.instance.filter(|i| !i.phase.is_final());
        match (verb, live) {
            (Verb::Stop { grace_seconds }, Some(live)) if self.is_shorter(live, grace_seconds) => {
                Ok(Change::requests(vec![stop(&live.uid, grace_seconds)]))
            }
            (Verb::Stop { .. }, Some(_)) => {
                refuse("it is being deleted; only a shorter grace period helps")
            }
            _ => refuse("it is being deleted"),
        }
    }

    fn is_suspended(&self) -> bool {
        self.desired_state.strategy() == Strategy::Suspended
    }

    /// Whether so much grace is less than the instance has now.
    fn is_shorter(&self, instance: &Instance, grace: Option<u32>) -> bool {
        let usual = i64::from(power::power_off_seconds(self.spec));
        let requested = requests::grace(&self.status.state_change_requests).map(i64::from);
        let given = instance.grace_seconds.or(requested).unwrap_or(usual);
        grace.is_some_and(|grace| i64::from(grace) < given)
    }

    /// Whether a stop, and nothing after it, is in progress.
    fn is_stopping(&self, instance: &Instance) -> bool {
        let queue = &self.status.state_change_requests;
        let last = self
            .status
            .instance
            .as_ref()
            .filter(|i| i.uid == instance.uid);
        let is_asked = queue
            .first()
            .is_some_and(|r| r.uid.as_deref() == Some(&instance.uid));
        // Another strategy than the one that was acted upon last starts by itself.
        let is_same = self.status.run_strategy == Some(self.desired_state.strategy().recorded());
        let stays_down =
            last.is_some_and(|i| i.afterwards == Some(Afterwards::StayDown)) && is_same;
        let starts_again = queue.iter().any(|r| r.action == StateChangeAction::Start);
        (is_asked || instance.deleting && stays_down) && !starts_again
    }

    /// Nothing runs, but something may be about to.
    fn call_off(&self) -> Verdict {
        let strategy = self.desired_state.strategy();
        let is_rerun = strategy == Strategy::RerunOnFailure;
        let is_first = self.status.run_strategy != Some(strategy.recorded());
        let recorded = self.status.instance.as_ref();
        // One that was lost comes back, under this strategy, too.
        let comes_back = strategy == Strategy::Manual && !is_first && recorded.is_some_and(is_lost);
        if let Some(ended) = self.instance.filter(|_| is_rerun || comes_back) {
            return Ok(Change::requests(vec![stop(&ended.uid, None)]));
        }
        if is_rerun && is_first {
            return refuse(
                "its first start is under way; set spec.runStrategy to Halted to prevent it",
            );
        }
        let last =
            recorded.filter(|last| is_lost(last) || last.afterwards.is_none() && !has_ended(last));
        let queue = &self.status.state_change_requests;
        let is_gone = self.instance.is_none();
        let is_manual = strategy == Strategy::Manual && !is_first && is_gone;
        match last.filter(|_| is_rerun || is_manual) {
            Some(last) => Ok(Change::requests(vec![stop(&last.uid, None)])),
            None if queue.iter().any(|r| r.action == StateChangeAction::Start) => {
                Ok(Change::requests(Vec::new()))
            }
            None => refuse("it is stopped already"),
        }
    }

    fn restart(&self, force: bool) -> Verdict {
        let Some(instance) = self.instance else {
            return refuse("there is no instance to replace");
        };
        match self.desired_state.strategy() {
            Strategy::Halted => refuse("it is to be stopped; start it instead"),
            Strategy::Suspended => refuse("it is suspended; resume it instead"),
            Strategy::Once => refuse("it runs once only"),
            Strategy::Always | Strategy::Manual | Strategy::RerunOnFailure => {
                let grace = force.then_some(0);
                let wanted = vec![stop(&instance.uid, grace), start(false)];
                if self.is_restarting(instance) && self.is_shorter(instance, grace) {
                    return Ok(Change::requests(wanted));
                }
                self.enqueue(wanted)
            }
        }
    }

    /// The queue is a restart of this very instance, and nothing else.
    fn is_restarting(&self, instance: &Instance) -> bool {
        match self.status.state_change_requests.as_slice() {
            [first, second] => {
                first.uid.as_deref() == Some(&instance.uid)
                    && first.action == StateChangeAction::Stop
                    && second.action == StateChangeAction::Start
            }
            _ => false,
        }
    }

    fn suspend(&self) -> Verdict {
        match self.desired_state.strategy() {
            Strategy::Suspended => return refuse("it is suspended already"),
            Strategy::Halted => return refuse("it is not running"),
            _ => {}
        }
        if !self
            .instance
            .is_some_and(|i| i.is_live() && i.phase == Phase::Running)
        {
            return refuse("it is not running");
        }
        if let Some(why) = power::unsuspendable(self.spec) {
            return refuse(why);
        }
        if !self.status.state_change_requests.is_empty() {
            return refuse("another request is under way; try again when it is done");
        }
        let is_remembered = !matches!(self.desired_state, DesiredState::PowerState(_));
        Ok(Change {
            desired_state: Some(DesiredState::PowerState(PowerState::Suspended)),
            remember: is_remembered.then_some(self.desired_state),
            ..Change::default()
        })
    }

    fn resume(&self) -> Verdict {
        if !self.is_suspended() {
            return refuse(if self.spec.paused {
                "it is paused, not suspended; unpause it instead"
            } else {
                "it is not suspended"
            });
        }
        let back = self.meta.resume.unwrap_or_else(|| self.desired_state.on());
        if back.strategy() == Strategy::Manual {
            // The request outlives the change of the desired state, which the controller makes with
            // it.
            return self.enqueue(vec![start(false)]);
        }
        Ok(Change {
            desired_state: Some(back),
            forget: true,
            ..Change::default()
        })
    }

    fn pause(&self) -> Verdict {
        match self
            .instance
            .filter(|i| i.is_live() && i.phase == Phase::Running)
        {
            None => refuse("it is not running"),
            Some(_) if self.is_suspended() => refuse("it is being suspended"),
            Some(_) if self.spec.paused => refuse("it is paused already"),
            Some(_) => Ok(Change {
                paused: Some(true),
                ..Change::default()
            }),
        }
    }

    fn unpause(&self) -> Verdict {
        if self.is_suspended() && self.instance.is_some() {
            return refuse("it is being suspended; resume it once it is");
        }
        let live = self.instance.filter(|i| i.is_live());
        let fails = live.filter(|i| i.paused.as_deref() == Some(PAUSED_IO_ERROR));
        if !self.spec.paused && fails.is_none() {
            return refuse("it is not paused");
        }
        Ok(Change {
            paused: self.spec.paused.then_some(false),
            unpause: fails.map(|i| i.uid.clone()),
            ..Change::default()
        })
    }

    fn enqueue(&self, wanted: Vec<StateChangeRequest>) -> Verdict {
        match self.status.state_change_requests.as_slice() {
            [] => Ok(Change::requests(wanted)),
            [only] if only.action == StateChangeAction::Stop => Ok(Change::requests(wanted)),
            _ => refuse("another request is under way; try again when it is done"),
        }
    }
}

fn start(paused: bool) -> StateChangeRequest {
    let paused = paused.then(|| (PAUSED.to_owned(), "true".to_owned()));
    StateChangeRequest {
        action: StateChangeAction::Start,
        uid: None,
        data: paused.into_iter().collect(),
    }
}

/// Another instance is to take the place of this one.
fn is_lost(last: &InstanceStatus) -> bool {
    last.afterwards == Some(Afterwards::StartAgain)
}

fn stop(uid: &str, grace: Option<u32>) -> StateChangeRequest {
    let grace = grace.map(|seconds| (GRACE.to_owned(), seconds.to_string()));
    StateChangeRequest {
        action: StateChangeAction::Stop,
        uid: Some(uid.to_owned()),
        data: grace.into_iter().collect::<BTreeMap<_, _>>(),
    }
}
