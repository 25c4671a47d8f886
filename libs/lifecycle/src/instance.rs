//! An instance: the state of its pod.
//!
//! Invariant: only what kubelet and the agent wrote is believed; a node that is silent makes a live
//! instance `Unknown`, never ended.
//! Failure: a pod that says nothing useful is `Pending`.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::phase::Phase;
use crds::names;

mod end;
mod waiting;

pub use end::EndCause;
pub use waiting::Unstartable;

/// Longest message, in characters: what a status holds.
const LONGEST_MESSAGE: usize = 4096;

/// What is known of the node of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It reports, or there is no node yet.
    #[default]
    Ready,
    /// It does not report.
    NotReady,
}

/// An instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// UID of the pod.
    pub uid: String,
    /// Its state.
    pub phase: Phase,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Seconds that the deletion leaves it, when it is being deleted.
    pub grace_seconds: Option<i64>,
    /// The guest began to run. `None`: it never did.
    pub started_at: Option<Time>,
    /// It ended.
    pub finished_at: Option<Time>,
    /// How it ended; only in a final phase.
    pub end: Option<EndCause>,
    /// Exit code; only in a final phase.
    pub exit_code: Option<i32>,
    /// Details of the end or the obstacle, for users; at most 4096 characters.
    pub message: String,
    /// The cluster took it away: evicted, preempted, refused by its node.
    pub disrupted: bool,
    /// Why it does not get on.
    pub unstartable: Option<Unstartable>,
    /// Its vCPUs are paused; the text names who paused them.
    pub paused: Option<String>,
    /// More about that, for people, such as which disk is full; may be empty.
    pub pause_message: String,
    /// The pod's condition `Ready`, when it has one.
    pub ready: Option<bool>,
    /// Revision that it was built from.
    pub revision: Option<String>,
    /// Generation that it was built from.
    pub generation: Option<i64>,
}

impl Instance {
    /// Reads a pod. `node` is the state of the node in its `spec.nodeName`.
    #[must_use]
    pub fn from_pod(pod: &Pod, node: NodeState) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.as_deref().unwrap_or_default();
        let container = containers.first();
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
        let ended = end::read(&status, container);
        let phase = match &ended {
            Some(ended) => ended.phase,
            None if node == NodeState::NotReady || status.phase.as_deref() == Some("Unknown") => {
                Phase::Unknown
            }
            None => live_phase(pod, container, conditions),
        };
        let unstartable = waiting::read(container, conditions);
        let message = ended.as_ref().map(|e| e.message.clone());
        let message = message.unwrap_or_else(|| waiting::message(container, conditions));
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            phase,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            grace_seconds: pod.metadata.deletion_grace_period_seconds,
            started_at: started_at(container),
            finished_at: ended.as_ref().and_then(|e| e.finished_at.clone()),
            exit_code: ended.as_ref().and_then(|e| e.exit_code),
            end: ended.map(|e| e.cause),
            message: message.chars().take(LONGEST_MESSAGE).collect(),
            disrupted: holds(conditions, "DisruptionTarget") || end::is_host_reason(&status),
            unstartable,
            paused: paused(conditions),
            pause_message: pause_message(conditions),
            ready: condition(conditions, "Ready").map(|c| c.status == "True"),
            revision: annotation(names::REVISION),
            generation: annotation(names::GENERATION).and_then(|text| text.parse().ok()),
        }
    }

    /// Whether the guest ever ran.
    #[must_use]
    pub const fn ever_ran(&self) -> bool {
        self.started_at.is_some()
    }

    /// Whole seconds for which the guest has run until `now`, or until its end.
    #[must_use]
    pub fn ran_seconds(&self, now: &Time) -> Option<i64> {
        let until = self.finished_at.as_ref().unwrap_or(now);
        let since = self.started_at.as_ref()?;
        Some(
            until
                .0
                .as_second()
                .saturating_sub(since.0.as_second())
                .max(0),
        )
    }

    /// Whether it is neither ended nor about to be.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !self.deleting && !self.phase.is_final()
    }
}

fn live_phase(
    pod: &Pod,
    container: Option<&ContainerStatus>,
    conditions: &[PodCondition],
) -> Phase {
    let state = container.and_then(|c| c.state.as_ref());
    if state.is_some_and(|s| s.running.is_some()) {
        Phase::Running
    } else if pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) {
        Phase::Scheduled
    } else if condition(conditions, "PodScheduled")
        .is_some_and(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))
    {
        Phase::Scheduling
    } else {
        Phase::Pending
    }
}

/// Kubelet gives a container that never started the epoch as its time.
fn started_at(container: Option<&ContainerStatus>) -> Option<Time> {
    let state = container?.state.as_ref()?;
    let running = state.running.as_ref().and_then(|r| r.started_at.clone());
    let terminated = state.terminated.as_ref().and_then(|t| t.started_at.clone());
    running.or(terminated).filter(|time| time.0.as_second() > 0)
}

fn paused(conditions: &[PodCondition]) -> Option<String> {
    let found = condition(conditions, names::POD_PAUSED_CONDITION)?;
    (found.status == "True").then(|| {
        found
            .reason
            .clone()
            .unwrap_or_else(|| "PausedByUser".into())
    })
}

fn pause_message(conditions: &[PodCondition]) -> String {
    let found = condition(conditions, names::POD_PAUSED_CONDITION).filter(|c| c.status == "True");
    let text = found.and_then(|c| c.message.as_deref()).unwrap_or_default();
    text.chars().take(LONGEST_MESSAGE).collect()
}

fn condition<'a>(conditions: &'a [PodCondition], kind: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|c| c.type_ == kind)
}

fn holds(conditions: &[PodCondition], kind: &str) -> bool {
    condition(conditions, kind).is_some_and(|c| c.status == "True")
}
