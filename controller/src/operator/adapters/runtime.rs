//! The programs on nodes: a DaemonSet.
//!
//! Invariant: while a rollout is in progress a pod that is missing is progress, not a fault.
//! Failure: a status that the cluster has not written yet counts as zero everywhere.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{GRACE, NodeView, conditions};
use crate::operator::component::Conditions;

/// What is known beside the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Nodes that should have a pod and are dead or cordoned, which is not our fault.
    pub excluded: u32,
    /// Since when fewer pods serve than should.
    pub short_for: Duration,
    /// A pod whose containers were started again three times in ten minutes.
    pub restarting: Option<String>,
    /// A node whose machines would not survive a restart of the daemon.
    pub holding: Option<String>,
}

/// How many pods do not serve that should.
#[must_use]
pub fn missing(set: &DaemonSet, excluded: u32) -> u32 {
    let counts = Counts::from_set(set, excluded);
    counts.desired.saturating_sub(counts.available)
}

/// The four conditions of the node side.
#[must_use]
pub fn runtime(set: &DaemonSet, facts: &RuntimeFacts) -> Conditions {
    let counts = Counts::from_set(set, facts.excluded);
    let least = counts
        .desired
        .saturating_sub(max_unavailable(set, counts.desired));
    let seen = set
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    let unseen = seen.unwrap_or_default() < set.metadata.generation.unwrap_or_default();
    judge(&counts, least, unseen, facts)
}

/// The four conditions of a node side that no DaemonSet installs, by what the agents say.
#[must_use]
pub fn runtime_of_nodes(nodes: &[NodeView], version: &str, facts: &RuntimeFacts) -> Conditions {
    let count = |wanted: &dyn Fn(&NodeView) -> bool| {
        let nodes = nodes.iter().filter(|node| !node.excluded && wanted(node));
        u32::try_from(nodes.count()).unwrap_or(u32::MAX)
    };
    let counts = Counts {
        desired: count(&|_| true),
        updated: count(&|node| {
            let facts = node.facts.as_ref();
            facts.is_none_or(|facts| facts.daemon.version == version)
        }),
        available: count(&NodeView::is_ready),
        misscheduled: 0,
    };
    judge(&counts, counts.desired.saturating_sub(1), false, facts)
}

fn judge(counts: &Counts, least: u32, unseen: bool, facts: &RuntimeFacts) -> Conditions {
    let Counts {
        desired,
        updated,
        available,
        misscheduled,
    } = *counts;
    let least = least.max(1);
    let unavailable = if desired == 0 {
        Some("NoTargetNodes: no live node is to run machines".to_owned())
    } else {
        (available < least).then(|| format!("{available} of {desired} pods serve"))
    };
    let rollout = if unseen {
        Some("a change was not acted upon yet".to_owned())
    } else {
        (updated < desired).then(|| format!("{updated} of {desired} pods are of the new version"))
    };
    let short = (available < desired).then(|| format!("{available} of {desired} pods serve"));
    let long = facts.short_for >= GRACE;
    let misplaced =
        (misscheduled > 0).then(|| format!("{misscheduled} pods run where they should not"));
    let restarting = facts
        .restarting
        .as_ref()
        .map(|pod| format!("pod {pod} starts again and again"));
    let holding = facts
        .holding
        .as_ref()
        .map(|node| format!("machines on {node} would not survive a restart"));
    conditions(
        unavailable,
        rollout.clone().or(short.clone().filter(|_| !long)),
        short
            .filter(|_| long && rollout.is_none())
            .or(misplaced)
            .or(restarting),
        rollout.or(holding),
    )
}

struct Counts {
    desired: u32,
    updated: u32,
    available: u32,
    misscheduled: u32,
}

impl Counts {
    fn from_set(set: &DaemonSet, excluded: u32) -> Self {
        let count = |number: Option<i32>| u32::try_from(number.unwrap_or_default()).unwrap_or(0);
        let status = set.status.as_ref();
        let desired = count(status.map(|status| status.desired_number_scheduled));
        Self {
            desired: desired.saturating_sub(excluded),
            updated: count(status.and_then(|status| status.updated_number_scheduled)),
            available: count(status.and_then(|status| status.number_available)),
            misscheduled: count(status.map(|status| status.number_misscheduled)),
        }
    }
}

/// How many pods a rollout may take away at once; one unless the object specifies otherwise.
fn max_unavailable(set: &DaemonSet, desired: u32) -> u32 {
    let strategy = set.spec.update_strategy.as_ref();
    let value = strategy
        .and_then(|strategy| strategy.rolling_update.as_ref())
        .and_then(|rolling| rolling.max_unavailable.clone());
    match value {
        Some(IntOrString::Int(number)) => u32::try_from(number).unwrap_or(1),
        Some(IntOrString::String(percent)) => percent
            .trim_end_matches('%')
            .parse::<u32>()
            .map_or(1, |percent| desired.saturating_mul(percent).div_ceil(100)),
        None => 1,
    }
}
