//! The nodes that are to run machines, from the reports of their agents.
//!
//! Invariant: a node that is dead, cordoned or not ready for reasons of its host is distinguished
//! from one where our parts fail.
//! Failure: facts that cannot be read count as none.

use std::collections::BTreeMap;

use crds::names::{NODE_COMPLETE, NODE_READY, RUNTIME_CLASS};
use crds::node_facts::{NodeFacts, is_fresh, lease_name};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

/// Seconds after which a condition that its agent has not renewed does not count: three times the
/// time between two renewals.
const CONDITION_SECONDS: i64 = 900;

/// The reason of a node whose machines run by software emulation.
const EMULATION: &str = "SoftwareEmulation";

/// A node, by the state of our parts on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Dead, cordoned or not ready for reasons of its host.
    pub excluded: bool,
    /// Its agent renewed the lease in time.
    pub fresh: bool,
    /// kubelet reports that its runtime is down.
    pub runtime_down: bool,
    /// Its status lists our handler, or lists none at all.
    pub handler: bool,
    /// The last report of the agent.
    pub facts: Option<NodeFacts>,
    /// Its condition about machines, unless that is old.
    pub condition: Option<ReadyCondition>,
}

/// A condition of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// In CamelCase.
    pub reason: String,
    /// Details.
    pub message: String,
}

impl NodeView {
    /// Machines can run there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.excluded && self.fault().is_none()
    }

    /// It should run machines and does not, through our fault.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        !self.excluded && self.fault().is_some()
    }

    /// Why machines cannot run there, or what it lacks; reason and message.
    #[must_use]
    pub fn problem(&self) -> Option<(&str, &str)> {
        if self.excluded {
            return None;
        }
        self.fault().or_else(|| self.lack())
    }

    /// Machines can run there, and it lacks something.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.is_ready() && self.lack().is_some()
    }

    /// Its machines run by software emulation.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.lack().is_some_and(|(reason, _)| reason == EMULATION)
    }

    fn fault(&self) -> Option<(&str, &str)> {
        if !self.fresh {
            return Some(("AgentUnavailable", "its agent does not renew its lease"));
        }
        let daemon = self.facts.as_ref().map(|facts| &facts.daemon);
        let refusal = self
            .condition
            .as_ref()
            .filter(|condition| condition.status == "False");
        match (daemon, refusal) {
            _ if self.runtime_down => Some((
                "RuntimeDown",
                "kubelet reports that its container runtime is down",
            )),
            (None, _) => Some(("AgentUnavailable", "its agent reports no facts")),
            (Some(daemon), _) if !daemon.reachable => {
                Some(("DaemonUnavailable", daemon.message.as_str()))
            }
            (Some(_), Some(condition)) => Some(condition.words()),
            (Some(_), None) => None,
        }
    }

    fn lack(&self) -> Option<(&str, &str)> {
        let condition = self.condition.as_ref()?;
        let is_limited = condition.status == "True" && condition.reason != NODE_COMPLETE;
        is_limited.then(|| condition.words())
    }
}

impl ReadyCondition {
    const fn words(&self) -> (&str, &str) {
        (self.reason.as_str(), self.message.as_str())
    }
}

/// The nodes that `selector` selects, by name.
#[must_use]
pub fn views(
    nodes: &[Node],
    leases: &[Lease],
    selector: &BTreeMap<String, String>,
    now: &Time,
) -> Vec<NodeView> {
    let selected = |node: &&Node| {
        let labels = node.labels();
        selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    };
    let mut views: Vec<_> = nodes
        .iter()
        .filter(selected)
        .map(|node| view(node, leases, now))
        .collect();
    views.sort_by(|one, other| one.name.cmp(&other.name));
    views
}

fn view(node: &Node, leases: &[Lease], now: &Time) -> NodeView {
    let name = node.name_any();
    let lease = lease_name(&name);
    let lease = leases
        .iter()
        .find(|found| found.metadata.name.as_deref() == Some(&lease));
    let status = node.status.as_ref();
    let ready = status
        .and_then(|status| status.conditions.as_ref())
        .and_then(|conditions| conditions.iter().find(|c| c.type_ == "Ready"));
    let runtime_down = ready.is_some_and(says_runtime_down);
    let alive = ready.is_some_and(|ready| ready.status == "True") || runtime_down;
    let cordoned = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default();
    let handlers = status.and_then(|status| status.runtime_handlers.as_ref());
    NodeView {
        excluded: cordoned || !alive,
        fresh: lease.is_some_and(|lease| is_fresh(lease, now)),
        runtime_down,
        handler: handlers.is_none_or(|handlers| {
            handlers
                .iter()
                .any(|handler| handler.name.as_deref() == Some(RUNTIME_CLASS))
        }),
        facts: lease.and_then(NodeFacts::of_lease),
        condition: status
            .and_then(|status| status.conditions.as_ref())
            .and_then(|conditions| conditions.iter().find(|c| c.type_ == NODE_READY))
            .and_then(|condition| ready_condition(condition, now)),
        name,
    }
}

fn ready_condition(condition: &NodeCondition, now: &Time) -> Option<ReadyCondition> {
    let renewed = condition.last_heartbeat_time.as_ref()?;
    let age = now.0.duration_since(renewed.0).as_secs();
    (age.abs() <= CONDITION_SECONDS).then(|| ReadyCondition {
        status: condition.status.clone(),
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    })
}

/// kubelet is alive and reports that its runtime is not.
fn says_runtime_down(ready: &NodeCondition) -> bool {
    let message = ready.message.as_deref().unwrap_or_default();
    ready.status == "False"
        && (message.contains("container runtime is down")
            || message.contains("container runtime not ready")
            || message.contains("container runtime status check"))
}
