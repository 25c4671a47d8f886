//! The state of one location, and what is next there.
//!
//! | `Ready` | reason | when |
//! | --- | --- | --- |
//! | True | `Listed` | kubelet reports the image |
//! | True | `Pulled` | a task, a pre-pull or a placeholder showed that the node has it |
//! | False | `Pulling` | a task pulls it, or kubelet does with a pull secret |
//! | False | `Failed` | the last pull failed |
//! | False | `Missing` | kubelet reported it, and does not any more |
//! | Unknown | `Waiting`, `NodeUnavailable` | a pre-pull comes to it in turn; its agent does not report |
//!
//! Invariant: pure. Only a machine that waits, or a pre-pull that lost its file, causes a task.
//! Failure: none.

use std::time::Duration;

use crds::conditions::{self, READY, Status};
use crds::{CacheLocationStatus, TaskState, VirtualMachineTask};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::wanted::Want;
use crate::reconcile::image::RECHECK;

/// Seconds that kubelet has to start a placeholder on a node that may have the image, before the
/// node gets a task for it.
const AT_ONCE: i64 = 3;
/// Seconds after which the files of a location are checked for a placeholder that has not started.
const SUSPECT: i64 = 10;
/// Seconds after which a pre-pull fetches files again that a node has lost: whatever removed them may
/// do so again.
const REFETCH: i64 = 600;
/// Seconds for which a location without use stays.
const KEPT: i64 = 86_400;
/// Steps of the progress, in percent: each is a write for every machine that waits.
pub(crate) const STEP: u32 = 10;

pub(super) const LISTED: &str = "Listed";
pub(super) const PULLED: &str = "Pulled";
pub(super) const FAILED: &str = "Failed";
const MISSING: &str = "Missing";
const PULLING: &str = "Pulling";

/// What is known of a node.
#[derive(Debug, Clone)]
pub(super) struct Facts<'a> {
    pub(super) node: &'a str,
    /// As the status has it.
    pub(super) old: Option<&'a CacheLocationStatus>,
    pub(super) want: Option<&'a Want>,
    /// The task of the cache.
    pub(super) task: Option<&'a VirtualMachineTask>,
    /// The task of the pre-pull.
    pub(super) pre_pull: Option<&'a VirtualMachineTask>,
    /// kubelet reports the image.
    pub(super) is_listed: bool,
    /// kubelet reports all images of the node.
    pub(super) lists_all: bool,
    /// A pre-pull has pulled the present source there.
    pub(super) was_pre_pulled: bool,
    /// Its agent reports.
    pub(super) lives: bool,
    /// Its agent reports, and its daemon pulls images.
    pub(super) is_able: bool,
    /// Only kubelet has the credentials.
    pub(super) is_private: bool,
    /// How long the failed task of the cache stays.
    pub(super) held: Option<Duration>,
    /// Seconds since the Unix epoch.
    pub(super) now: i64,
}

/// What is done about the task of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// A new one, in place of one that ended.
    Pull,
    /// The one that ended is deleted: it says nothing more.
    Clean,
}

/// Order in which locations are kept where there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Waiting,
    Used,
    Unused,
}

/// A location as it is to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) node: String,
    pub(super) status: Status,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) effect: Effect,
    pub(super) rank: Rank,
    pub(super) unused_since: Option<Time>,
    /// Seconds until the location is checked again.
    pub(super) again: Option<u64>,
    /// It is left out for a moment: its node may have the files.
    pub(super) is_pending: bool,
}

/// State of the files.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Has(&'static str),
    Pulls(u32),
    Failed(String),
    Missing,
    Unavailable,
    /// Nothing is known.
    Unknown,
}

/// What is said of a location, and what is done there.
struct Answer {
    status: Status,
    reason: &'static str,
    message: String,
    effect: Effect,
    again: Option<u64>,
}

impl Answer {
    const fn new(status: Status, reason: &'static str, message: String) -> Self {
        Self {
            status,
            reason,
            message,
            effect: Effect::None,
            again: None,
        }
    }

    fn pull(facts: &Facts<'_>) -> Self {
        Self {
            effect: Effect::Pull,
            ..Self::new(Status::False, PULLING, pulls(facts.node, 0))
        }
    }
}

/// The location; none where the node needs no files.
pub(super) fn judge(facts: &Facts<'_>) -> Option<Verdict> {
    let waits = facts.want.and_then(|want| want.waits_since);
    let is_pre_pulled = facts.want.is_some_and(|want| want.is_pre_pulled);
    let rank = match (waits, facts.want) {
        (Some(_), _) => Rank::Waiting,
        (None, Some(_)) => Rank::Used,
        (None, None) => Rank::Unused,
    };
    let state = state(facts, waits);
    // A machine that starts at once has the image of its node.
    let left = waits.map_or(0, |since| AT_ONCE - (facts.now - since));
    let is_pending =
        state == State::Unknown && facts.old.is_none() && (1..=AT_ONCE).contains(&left);
    let mut answer = answer(facts, &state, (waits, is_pre_pulled));
    // A disk that exists does not need the files again.
    if answer.status != Status::True && waits.is_none() && !is_pre_pulled {
        return None;
    }
    if is_pending {
        answer.effect = Effect::None;
        answer.again = u64::try_from(left).ok();
    }
    let unused_since = unused_since(facts, rank);
    if let Some(since) = &unused_since {
        let left = KEPT - (facts.now - since.0.as_second());
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        answer.again = Some(answer.again.map_or(left, |again| again.min(left)));
    }
    Some(Verdict {
        node: facts.node.to_owned(),
        status: answer.status,
        reason: answer.reason,
        message: answer.message,
        effect: answer.effect,
        rank,
        unused_since,
        again: answer.again,
        is_pending,
    })
}

fn answer(facts: &Facts<'_>, state: &State, (waits, is_pre_pulled): (Option<i64>, bool)) -> Answer {
    let node = facts.node;
    let is_due = waits.is_some() && facts.is_able && !facts.is_private;
    match state {
        State::Has(reason) => {
            let is_over = facts.task.is_some_and(VirtualMachineTask::is_final);
            // What the task showed is on record by now.
            let is_recorded = ready(facts).is_some_and(|ready| ready.status == "True");
            Answer {
                effect: if is_over && is_recorded {
                    Effect::Clean
                } else {
                    Effect::None
                },
                again: suspect_after(facts, waits),
                ..Answer::new(Status::True, reason, String::new())
            }
        }
        State::Pulls(percent) => Answer {
            // An agent that goes away has no event here.
            again: Some(RECHECK.as_secs()),
            ..Answer::new(Status::False, PULLING, pulls(node, *percent))
        },
        State::Failed(message) => {
            let again = facts.held.map(|left| left.as_secs().max(1));
            // The pre-pull repeats its own.
            let is_lost = is_pre_pulled && facts.is_able && facts.task.is_some();
            if again.is_none() && (is_due || is_lost) {
                return Answer::pull(facts);
            }
            Answer {
                again,
                ..Answer::new(Status::False, FAILED, format!("node {node}: {message}"))
            }
        }
        State::Missing | State::Unknown if is_due => Answer::pull(facts),
        State::Missing | State::Unknown if waits.is_some() && facts.is_private => {
            let text = format!("kubelet of node {node} pulls the image with its pull secret");
            Answer::new(Status::False, PULLING, text)
        }
        State::Missing if facts.is_able && !facts.is_private => {
            let lost = ready(facts).filter(|ready| ready.reason == MISSING);
            let lost = lost.map_or(facts.now, |ready| seconds(&ready.last_transition_time));
            match u64::try_from(REFETCH - (facts.now - lost)) {
                Ok(left) if left > 0 => Answer {
                    again: Some(left),
                    ..lost_by(node)
                },
                _ => Answer::pull(facts),
            }
        }
        State::Missing => lost_by(node),
        State::Unknown if is_pre_pulled && facts.is_able => {
            let text = format!("spec.prePull of the image comes to node {node} in turn");
            Answer::new(Status::Unknown, "Waiting", text)
        }
        State::Unavailable | State::Unknown => {
            let text = format!(
                "the vmlet-agent of node {node} does not report, or its daemon does not pull images on request"
            );
            Answer::new(Status::Unknown, "NodeUnavailable", text)
        }
    }
}

fn state(facts: &Facts<'_>, waits: Option<i64>) -> State {
    let has = State::Has(if facts.is_listed { LISTED } else { PULLED });
    if facts.want.is_some_and(|want| want.is_seen) {
        return has;
    }
    if let Some(task) = facts.task {
        return match task.state() {
            Some(TaskState::Success) => has,
            Some(TaskState::Error | TaskState::Cancelled) if facts.is_listed => has,
            Some(TaskState::Error | TaskState::Cancelled) => State::Failed(said(task)),
            _ if facts.lives => State::Pulls(percent(task)),
            _ => State::Unavailable,
        };
    }
    let ready = ready(facts);
    if is_suspect(facts, waits) {
        return State::Unknown;
    }
    if facts.is_listed {
        return has;
    }
    match facts.pre_pull.map(|task| (task, task.state())) {
        Some((_, Some(TaskState::Success))) => return has,
        Some((task, Some(TaskState::Error | TaskState::Cancelled))) if waits.is_none() => {
            return State::Failed(said(task));
        }
        Some((task, None | Some(TaskState::Queued | TaskState::Running))) if facts.lives => {
            return State::Pulls(percent(task));
        }
        _ => {}
    }
    match ready.map(|ready| (ready.status.as_str(), ready.reason.as_str())) {
        Some(("True", LISTED)) if facts.lists_all => State::Missing,
        Some(("True", LISTED)) => State::Has(LISTED),
        Some(("True", _)) => State::Has(PULLED),
        Some((_, MISSING)) => State::Missing,
        _ if facts.was_pre_pulled => State::Has(PULLED),
        _ => State::Unknown,
    }
}

/// The node is known to have the files, and has not started a placeholder of them for a while.
fn is_suspect(facts: &Facts<'_>, waits: Option<i64>) -> bool {
    trusted_before(facts, waits).is_some_and(|since| facts.now - since >= SUSPECT)
}

/// When that will be so.
fn suspect_after(facts: &Facts<'_>, waits: Option<i64>) -> Option<u64> {
    let since = trusted_before(facts, waits)?;
    let left = SUSPECT - (facts.now - since);
    u64::try_from(left).ok().filter(|left| *left > 0)
}

/// Since when a placeholder waits that came after the files were last known to be there.
fn trusted_before(facts: &Facts<'_>, waits: Option<i64>) -> Option<i64> {
    let known = ready(facts).filter(|ready| ready.status == "True")?;
    waits.filter(|since| seconds(&known.last_transition_time) < *since)
}

fn unused_since(facts: &Facts<'_>, rank: Rank) -> Option<Time> {
    let known = facts.old.and_then(|old| old.unused_since.clone());
    match rank {
        Rank::Unused => {
            let now = || jiff::Timestamp::from_second(facts.now).map(Time).ok();
            known.or_else(now)
        }
        Rank::Waiting | Rank::Used => None,
    }
}

fn ready<'a>(facts: &Facts<'a>) -> Option<&'a Condition> {
    conditions::find(&facts.old?.conditions, READY)
}

fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

fn pulls(node: &str, percent: u32) -> String {
    match percent {
        0 => format!("node {node} pulls the image"),
        percent => format!("node {node} pulls the image: {percent} %"),
    }
}

fn lost_by(node: &str) -> Answer {
    let text = format!("node {node} does not have the files any more");
    Answer::new(Status::False, MISSING, text)
}

/// In steps, rounded down.
fn percent(task: &VirtualMachineTask) -> u32 {
    let exact = task.status.as_ref().map_or(0, |s| s.progress_percent);
    exact.min(100) / STEP * STEP
}

fn said(task: &VirtualMachineTask) -> String {
    let status = task.status.as_ref();
    let message = status.map(|status| status.message.clone());
    message
        .filter(|message| !message.is_empty())
        .unwrap_or_else(|| "the pull was cancelled".to_owned())
}
