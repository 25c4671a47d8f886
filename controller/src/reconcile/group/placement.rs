//! What the groups of a machine ask the scheduler for.
//!
//! Machines of one group find each other by a label of their pods, which names the outermost group. A
//! machine that is off has no pod: its place is the node on record.
//!
//! Invariant: placement follows the outermost group alone, and counts only as long as no node has the root
//! disk of the machine.
//! Failure: a machine that fits nowhere waits, and its placeholder reports why; with `ScheduleAnyway` it
//! goes to another node.

use std::collections::{BTreeMap, BTreeSet};

use crds::names::GROUP_LABEL;
use crds::{GroupMemberKind, GroupPlacement, PlacementPolicy, VirtualMachine, WhenUnsatisfiable};
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PreferredSchedulingTerm,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::family;
use crate::stores::{Key, Relation, Stores};

/// Longest value of a label.
const LONGEST_VALUE: usize = 63;
/// Weight of what may be left undone.
const WEIGHT: i32 = 100;

/// The outermost group of a machine, for the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grouping {
    label: String,
    rules: Vec<Rule>,
}

/// A rule, and the domains that have machines of the group by their record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    placement: GroupPlacement,
    taken: BTreeSet<String>,
}

impl Rule {
    const fn is_required(&self) -> bool {
        matches!(
            self.placement.when_unsatisfiable,
            WhenUnsatisfiable::DoNotSchedule
        )
    }

    /// The nodes that the record leaves; `None`: all of them.
    fn requirement(&self) -> Option<NodeSelectorRequirement> {
        let operator = match self.placement.policy {
            PlacementPolicy::Apart => "NotIn",
            PlacementPolicy::Together => "In",
            PlacementPolicy::Spread => return None,
        };
        (!self.taken.is_empty()).then(|| NodeSelectorRequirement {
            key: self.placement.topology_key.clone(),
            operator: operator.to_owned(),
            values: Some(self.taken.iter().cloned().collect()),
        })
    }
}

impl Grouping {
    /// The grouping of a machine that belongs to a group.
    pub(crate) fn find(stores: &Stores, vm: &VirtualMachine) -> Option<Self> {
        let group = family::of_machine(stores, vm)?.ok()?;
        let top = family::outermost(stores, group);
        let rules = top.spec.placement.iter();
        let rules = rules.map(|placement| Rule {
            placement: placement.clone(),
            taken: taken(
                stores,
                &Key::from_object(&*top),
                vm,
                &placement.topology_key,
            ),
        });
        Some(Self {
            label: value(&top.name_any()),
            rules: rules.collect(),
        })
    }

    /// Whether it asks for nothing but the label.
    pub(crate) const fn is_without_rules(&self) -> bool {
        self.rules.is_empty()
    }

    /// The label of the machine's pods.
    pub(crate) fn label(&self) -> (String, String) {
        (GROUP_LABEL.to_owned(), self.label.clone())
    }

    /// What a placeholder is made again for. Places of other machines are not in it: each of them would
    /// make all placeholders of the group again.
    pub(crate) fn asked(&self) -> Value {
        let rules = self.rules.iter().map(|rule| json!(rule.placement));
        json!([self.label, rules.collect::<Vec<_>>()])
    }

    /// Whether a required rule forbids that node, by the record: the machine that was there first may have
    /// no pod by now.
    pub(crate) fn forbids(&self, labels: &BTreeMap<String, String>) -> bool {
        self.rules
            .iter()
            .filter(|rule| rule.is_required())
            .any(|rule| {
                let domain = labels.get(&rule.placement.topology_key);
                let is_taken = domain.is_some_and(|domain| rule.taken.contains(domain));
                match rule.placement.policy {
                    PlacementPolicy::Apart => is_taken,
                    PlacementPolicy::Together => !rule.taken.is_empty() && !is_taken,
                    PlacementPolicy::Spread => false,
                }
            })
    }

    /// The affinity of a pod that no node has yet.
    pub(crate) fn extend(&self, mut affinity: Affinity) -> Affinity {
        for rule in &self.rules {
            self.among_pods(rule, &mut affinity);
            if let Some(requirement) = rule.requirement() {
                among_nodes(rule, requirement, &mut affinity);
            }
        }
        affinity
    }

    fn among_pods(&self, rule: &Rule, affinity: &mut Affinity) {
        let term = PodAffinityTerm {
            label_selector: Some(self.selector()),
            topology_key: rule.placement.topology_key.clone(),
            ..PodAffinityTerm::default()
        };
        match rule.placement.policy {
            PlacementPolicy::Apart => {
                let all = affinity.pod_anti_affinity.get_or_insert_default();
                add(
                    &mut all.required_during_scheduling_ignored_during_execution,
                    &mut all.preferred_during_scheduling_ignored_during_execution,
                    rule,
                    term,
                );
            }
            PlacementPolicy::Together => {
                let all = affinity.pod_affinity.get_or_insert_default();
                add(
                    &mut all.required_during_scheduling_ignored_during_execution,
                    &mut all.preferred_during_scheduling_ignored_during_execution,
                    rule,
                    term,
                );
            }
            PlacementPolicy::Spread => {}
        }
    }

    fn selector(&self) -> LabelSelector {
        LabelSelector {
            match_labels: Some(BTreeMap::from([self.label()])),
            ..LabelSelector::default()
        }
    }

    /// The constraints of a pod that no node has yet.
    pub(crate) fn constraints(&self) -> Vec<TopologySpreadConstraint> {
        let is_spread = |rule: &&Rule| rule.placement.policy == PlacementPolicy::Spread;
        let rules = self.rules.iter().filter(is_spread);
        let constraint = |rule: &Rule| TopologySpreadConstraint {
            label_selector: Some(self.selector()),
            max_skew: 1,
            topology_key: rule.placement.topology_key.clone(),
            when_unsatisfiable: format!("{:?}", rule.placement.when_unsatisfiable),
            ..TopologySpreadConstraint::default()
        };
        rules.map(constraint).collect()
    }
}

/// Adds a term to those that the rule is one of.
fn add(
    required: &mut Option<Vec<PodAffinityTerm>>,
    preferred: &mut Option<Vec<WeightedPodAffinityTerm>>,
    rule: &Rule,
    term: PodAffinityTerm,
) {
    if rule.is_required() {
        required.get_or_insert_default().push(term);
        return;
    }
    let weighted = WeightedPodAffinityTerm {
        pod_affinity_term: term,
        weight: WEIGHT,
    };
    preferred.get_or_insert_default().push(weighted);
}

/// Terms are alternatives, so that each of them has to have the requirement.
fn among_nodes(rule: &Rule, requirement: NodeSelectorRequirement, affinity: &mut Affinity) {
    let all = affinity.node_affinity.get_or_insert_default();
    if rule.is_required() {
        let required = &mut all.required_during_scheduling_ignored_during_execution;
        let terms = &mut required.get_or_insert_default().node_selector_terms;
        if terms.is_empty() {
            terms.push(NodeSelectorTerm::default());
        }
        for term in terms {
            let expressions = term.match_expressions.get_or_insert_default();
            expressions.push(requirement.clone());
        }
        return;
    }
    let preferred = PreferredSchedulingTerm {
        weight: WEIGHT,
        preference: NodeSelectorTerm {
            match_expressions: Some(vec![requirement]),
            ..NodeSelectorTerm::default()
        },
    };
    let preferences = &mut all.preferred_during_scheduling_ignored_during_execution;
    preferences.get_or_insert_default().push(preferred);
}

/// The domains of the other machines below the group that have a node on record.
fn taken(stores: &Stores, top: &Key, vm: &VirtualMachine, topology_key: &str) -> BTreeSet<String> {
    let kind = GroupMemberKind::VirtualMachine;
    let mut all = BTreeSet::new();
    for key in family::with_groups_below(stores, top) {
        let Some(group) = family::find(stores, &key) else {
            continue;
        };
        for other in stores.vms_with(&Relation::Group(key)) {
            let is_other = other.metadata.uid != vm.metadata.uid;
            let node = other.status.as_ref().and_then(|s| s.node_name.clone());
            let Some(node) = node.filter(|_| is_other) else {
                continue;
            };
            if !family::lists(&group, kind, &other.name_any()) {
                continue;
            }
            let node = stores.nodes.get(&Key::new("", node).reference());
            let domain = node.and_then(|node| node.labels().get(topology_key).cloned());
            all.extend(domain);
        }
    }
    all
}

/// A name as the value of a label, which is shorter.
fn value(name: &str) -> String {
    if name.len() <= LONGEST_VALUE {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.as_bytes());
    let hash: String = digest.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!("group-{hash}")
}
