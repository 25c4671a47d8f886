//! What an agent reported last, in the lease of its node.
//!
//! Invariant: texts are bounded; what an earlier agent does not report is empty.
//! Failure: facts that cannot be read are those of an agent that reports nothing, and reaches its daemon.

use std::collections::BTreeMap;

use crds::names;
use crds::node_facts::{LIMIT, NodeFacts};
use crds::text::printable;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::TIMEOUT;

/// Longest message of a failure, in bytes.
const MESSAGE: usize = 512;

#[derive(Debug)]
pub(super) struct LastReport {
    pub(super) renewed: Option<MicroTime>,
    pub(super) at: Instant,
    /// Since when it reports that its daemon does not answer.
    pub(super) alone: Option<Instant>,
    /// The machine types of its node, the oldest first; empty when they are not known.
    machine_types: Vec<String>,
    /// Kinds of task that its daemon runs, as [`crds::TaskKind`] spells them.
    task_kinds: Vec<String>,
    /// What it and its daemon can do that earlier versions cannot.
    features: Vec<String>,
    /// Disks whose manifest it could not write, and why; `*`: all disks of the node.
    pub(super) backup_failures: BTreeMap<String, String>,
    pub(super) versions: Versions,
    /// Its loss was announced.
    pub(super) is_announced: bool,
}

/// The versions of a node's programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of the agent.
    pub agent: String,
    /// Of the daemon.
    pub daemon: String,
}

impl LastReport {
    /// What the lease says now; `known` is what was known of the agent before.
    pub(super) fn read(lease: &Lease, known: Option<&Self>, now: Instant) -> Self {
        let facts = NodeFacts::of_lease(lease);
        let reaches = facts.as_ref().is_none_or(|facts| facts.daemon.reachable);
        let since = known.and_then(|known| known.alone).unwrap_or(now);
        let facts = facts.unwrap_or_default();
        let daemon = facts.daemon;
        Self {
            renewed: renewed(lease),
            at: now,
            alone: (!reaches).then_some(since),
            machine_types: daemon.machine_types,
            task_kinds: daemon.task_kinds,
            features: [daemon.features, facts.features].concat(),
            backup_failures: backup_failures(lease),
            versions: Versions {
                agent: facts.agent_version,
                daemon: daemon.version,
            },
            is_announced: false,
        }
    }

    /// When it is lost, unless it renews before that.
    pub(super) fn end(&self) -> Instant {
        let since = self.alone.map_or(self.at, |alone| alone.min(self.at));
        since + TIMEOUT
    }

    /// Whether its node can do other things than by an earlier report, or reports other failures.
    pub(super) fn differs_from(&self, earlier: &Self) -> bool {
        earlier.task_kinds != self.task_kinds
            || earlier.features != self.features
            || earlier.backup_failures != self.backup_failures
    }

    /// Whether its daemon runs tasks of that kind.
    pub(super) fn runs(&self, kind: &str) -> bool {
        self.task_kinds.iter().any(|known| known == kind)
    }

    /// Whether agent and daemon have that feature.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|known| known == feature)
    }

    /// The newest machine type of its node, if the node is known not to have this one.
    pub(super) fn lacks(&self, machine_type: &str) -> Option<&str> {
        let newest = self.machine_types.last()?;
        let has = self.machine_types.iter().any(|known| known == machine_type);
        (!has).then_some(newest)
    }
}

/// When the lease was renewed, by its own clock.
pub(super) fn renewed(lease: &Lease) -> Option<MicroTime> {
    lease.spec.as_ref().and_then(|spec| spec.renew_time.clone())
}

/// What an agent reports of manifests, bounded.
fn backup_failures(lease: &Lease) -> BTreeMap<String, String> {
    let annotations = lease.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(names::BACKUP_FAILURES));
    let text = text.filter(|text| text.len() <= LIMIT);
    let failures = text.and_then(|text| serde_json::from_str::<BTreeMap<_, String>>(text).ok());
    let failures = failures.unwrap_or_default().into_iter();
    failures
        .map(|(disk, why)| (disk, printable(&why, MESSAGE)))
        .collect()
}
