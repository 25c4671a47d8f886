//! What the scheduler goes by, and which absence of its node a pod outlives.
//!
//! Invariant: a machine whose root disk is on a node runs there and nowhere else, whatever its
//! affinity specifies; so no taint of an absent node ends it ([ADR 42]).
//!
//! [ADR 42]: ../../../../../../docs/adr/0042-machines-outlive-the-absence-of-their-node.md
//! Failure: a machine whose affinity forbids that node is unschedulable, and its pod reports it.

use std::collections::BTreeMap;

use crds::VirtualMachine;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm, Toleration,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Plan;
use crate::reconcile::vm::prerequisites::Prerequisites;

/// Taints of a node that does not report.
const ABSENT: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// What the owner of a machine asks the scheduler for, and which claims have to be in reach, as a hash.
pub(crate) fn asked(vm: &VirtualMachine, prerequisites: &Prerequisites) -> String {
    let spec = &vm.spec;
    let size = &prerequisites.size;
    let all = json!([
        spec.affinity,
        spec.node_selector,
        spec.tolerations,
        spec.topology_spread_constraints,
        spec.priority_class_name,
        spec.scheduler_name,
        spec.boot_disk_capacity,
        spec.volumes,
        size.node_selector,
        size.cpus,
        size.memory,
        size.requests,
        size.limits,
    ]);
    let digest = Sha256::digest(all.to_string().as_bytes());
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The labels of nodes that machine and class name; where both name one, the class decides.
pub(super) fn node_selector(plan: &Plan<'_>) -> Option<BTreeMap<String, String>> {
    let mut all = plan.vm.spec.node_selector.clone();
    all.extend(plan.prerequisites.size.node_selector.clone());
    Some(all).filter(|all| !all.is_empty())
}

/// A list as a pod has it: absent when it is empty.
pub(super) fn some<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    Some(list.to_vec()).filter(|list| !list.is_empty())
}

pub(super) fn of(plan: &Plan<'_>) -> Option<Affinity> {
    let own = plan.vm.spec.affinity.clone();
    if own.is_none() && plan.node.is_none() && plan.avoid.is_empty() {
        return None;
    }
    let own = own.unwrap_or_default();
    let node_affinity = match plan.node {
        Some(node) => Some(pinned(own.node_affinity.unwrap_or_default(), node)),
        None if plan.avoid.is_empty() => own.node_affinity,
        None => Some(away(own.node_affinity.unwrap_or_default(), plan.avoid)),
    };
    Some(Affinity {
        node_affinity,
        pod_affinity: own.pod_affinity,
        pod_anti_affinity: own.pod_anti_affinity,
    })
}

/// Those of the machine. A machine with its root disk on its node tolerates the absence of that node
/// without a limit, where the default is five minutes: it can run nowhere else, and its guest most
/// likely runs on. What the machine itself says of such a taint counts.
pub(super) fn tolerations(plan: &Plan<'_>) -> Option<Vec<Toleration>> {
    let own = &plan.vm.spec.tolerations;
    let says_nothing = |key: &&str| !own.iter().any(|own| own.key.as_deref() == Some(key));
    let absences = ABSENT.into_iter().filter(|_| plan.disk.is_some());
    let tolerated = absences.filter(says_nothing).map(|key| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    });
    let all: Vec<_> = own.iter().cloned().chain(tolerated).collect();
    some(&all)
}

/// The scheduler may choose such a node if there is no other.
fn away(mut affinity: NodeAffinity, nodes: &[String]) -> NodeAffinity {
    let elsewhere = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(nodes.to_vec()),
    };
    let preferred = PreferredSchedulingTerm {
        weight: 100,
        preference: NodeSelectorTerm {
            match_fields: Some(vec![elsewhere]),
            ..NodeSelectorTerm::default()
        },
    };
    let all = &mut affinity.preferred_during_scheduling_ignored_during_execution;
    all.get_or_insert_default().push(preferred);
    affinity
}

/// Terms are alternatives, so that each of them has to name the node.
fn pinned(mut affinity: NodeAffinity, node: &str) -> NodeAffinity {
    let here = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .take();
    let mut terms = required.map(|r| r.node_selector_terms).unwrap_or_default();
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in &mut terms {
        term.match_fields.get_or_insert_default().push(here.clone());
    }
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: terms,
    });
    affinity
}
