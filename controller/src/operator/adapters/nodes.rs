//! The nodes that are to run machines, from the reports of their agents.
//!
//! Invariant: a node that is dead, cordoned or not ready for reasons of its host is distinguished
//! from one where our parts fail.
//! Failure: facts that cannot be read count as none.

use std::collections::BTreeMap;

use crds::names::RUNTIME_CLASS;
use crds::node_facts::{NodeFacts, is_fresh, lease_name};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

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
}

impl NodeView {
    /// Machines can run there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let reachable = self
            .facts
            .as_ref()
            .is_some_and(|facts| facts.daemon.reachable);
        !self.excluded && self.fresh && !self.runtime_down && reachable
    }

    /// It should run machines and does not, through our fault.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        !self.excluded && !self.is_ready()
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
        name,
    }
}

/// kubelet is alive and reports that its runtime is not.
fn says_runtime_down(ready: &NodeCondition) -> bool {
    let message = ready.message.as_deref().unwrap_or_default();
    ready.status == "False"
        && (message.contains("container runtime is down")
            || message.contains("container runtime not ready")
            || message.contains("container runtime status check"))
}
