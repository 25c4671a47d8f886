//! What the scheduler goes by, and which absence of its node a pod outlives.
//!
//! Invariant: a machine whose root disk is on a node runs there and nowhere else, whatever its
//! affinity specifies; so no taint of an absent node ends it ([ADR 42]).
//!
//! [ADR 42]: ../../../../../../docs/adr/0042-machines-outlive-the-absence-of-their-node.md
//! Failure: a machine whose affinity forbids that node is unschedulable, and its pod reports it.

use std::collections::BTreeMap;

use crds::{VirtualMachine, names};
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm, Toleration, TopologySpreadConstraint,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Plan;
use super::firmware::needs_uefi;
use crate::reconcile::group::placement::Grouping;
use crate::reconcile::vm::prerequisites::Prerequisites;

/// Weight of the nodes to avoid.
const AVOID: i32 = 100;
/// Weight of all nodes. The scheduler scales the sums of weights so that the largest is 100: beside this
/// weight a node that has the image gets one point of 100 more than others.
const ALL: i32 = 100;
/// Weight of each node that has the image.
const PREFER: i32 = 1;
/// Label that kubelet sets on each node.
const OF_ALL_NODES: &str = "kubernetes.io/os";
/// Taints of a node that does not report.
const ABSENT: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// What the owner of a machine asks the scheduler for, and which claims have to be in reach, as a hash.
pub(crate) fn asked(
    vm: &VirtualMachine,
    prerequisites: &Prerequisites,
    grouping: Option<&Grouping>,
) -> String {
    let spec = &vm.spec;
    let size = &prerequisites.size;
    let mut all = vec![json!([
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
    ])];
    all.extend(grouping.map(Grouping::asked));
    all.extend(needs_uefi(vm, prerequisites).then(|| json!(names::NODE_UEFI)));
    // Without a group and UEFI it is the text of earlier versions: no placeholder is made again for an upgrade.
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    let digest = Sha256::digest(all.concat().as_bytes());
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The labels of nodes that machine and class name; where both name one, the class decides. A machine that
/// has no node yet gets one that has its firmware.
pub(super) fn node_selector(plan: &Plan<'_>) -> Option<BTreeMap<String, String>> {
    let mut all = plan.vm.spec.node_selector.clone();
    all.extend(plan.prerequisites.size.node_selector.clone());
    if plan.node.is_none() && needs_uefi(plan.vm, plan.prerequisites) {
        let label = (names::NODE_UEFI.to_owned(), names::UEFI_VALUE.to_owned());
        all.extend([label]);
    }
    Some(all).filter(|all| !all.is_empty())
}

/// A list as a pod has it: absent when it is empty.
pub(super) fn some<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    Some(list.to_vec()).filter(|list| !list.is_empty())
}

pub(super) fn affinity(plan: &Plan<'_>) -> Option<Affinity> {
    let own = plan.vm.spec.affinity.clone();
    let is_free = plan.node.is_none() && plan.avoid.is_empty() && plan.prefer.is_empty();
    let grouping = plan.grouping.filter(|_| plan.node.is_none());
    if own.is_none() && is_free && grouping.is_none_or(Grouping::is_without_rules) {
        return None;
    }
    let own = own.unwrap_or_default();
    let node_affinity = match plan.node {
        Some(node) => Some(pinned(own.node_affinity.unwrap_or_default(), node)),
        None if is_free => own.node_affinity,
        None => Some(inclined(own.node_affinity.unwrap_or_default(), plan)),
    };
    let all = Affinity {
        node_affinity,
        pod_affinity: own.pod_affinity,
        pod_anti_affinity: own.pod_anti_affinity,
    };
    Some(match grouping {
        Some(grouping) => grouping.extend(all),
        None => all,
    })
}

/// The constraints of the machine, and of its groups as long as it has no node.
pub(super) fn constraints(plan: &Plan<'_>) -> Option<Vec<TopologySpreadConstraint>> {
    let mut all = plan.vm.spec.topology_spread_constraints.clone();
    let grouping = plan.grouping.filter(|_| plan.node.is_none());
    all.extend(grouping.map(Grouping::constraints).unwrap_or_default());
    some(&all)
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

/// The scheduler may choose a node to avoid if there is no other. Among nodes that are equal otherwise one
/// that has the image is chosen; it does not count beside nodes that the machine itself prefers, whose weights
/// it would change.
fn inclined(mut affinity: NodeAffinity, plan: &Plan<'_>) -> NodeAffinity {
    let own = affinity
        .preferred_during_scheduling_ignored_during_execution
        .take()
        .unwrap_or_default();
    let elsewhere = plan.avoid.iter().map(|node| named("NotIn", node));
    let elsewhere: Vec<_> = elsewhere.collect();
    let avoids = (!elsewhere.is_empty()).then(|| preferred(AVOID, elsewhere));
    let nodes = plan.prefer.iter().filter(|_| own.is_empty());
    let here: Vec<_> = nodes
        .map(|node| preferred(PREFER, vec![named("In", node)]))
        .collect();
    // What avoids nodes has the weight for all others.
    let needs_weight = avoids.is_none() && !here.is_empty();
    let balance = needs_weight.then(everywhere);
    let mut all = own;
    all.extend(avoids.into_iter().chain(balance).chain(here));
    affinity.preferred_during_scheduling_ignored_during_execution =
        Some(all).filter(|all| !all.is_empty());
    affinity
}

fn preferred(weight: i32, fields: Vec<NodeSelectorRequirement>) -> PreferredSchedulingTerm {
    PreferredSchedulingTerm {
        weight,
        preference: NodeSelectorTerm {
            match_fields: Some(fields),
            ..NodeSelectorTerm::default()
        },
    }
}

fn everywhere() -> PreferredSchedulingTerm {
    let label = NodeSelectorRequirement {
        key: OF_ALL_NODES.to_owned(),
        operator: "Exists".to_owned(),
        values: None,
    };
    PreferredSchedulingTerm {
        weight: ALL,
        preference: NodeSelectorTerm {
            match_expressions: Some(vec![label]),
            ..NodeSelectorTerm::default()
        },
    }
}

/// The API server takes one name only for a field.
fn named(operator: &str, node: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: operator.to_owned(),
        values: Some(vec![node.to_owned()]),
    }
}

/// Terms are alternatives, so that each of them has to name the node.
fn pinned(mut affinity: NodeAffinity, node: &str) -> NodeAffinity {
    let here = named("In", node);
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
