//! Running agents of nodes: those that have renewed their lease recently.
//!
//! Invariant: ages are measured by this process's own clock from the moment at which a renewal was
//! seen, so that no other clock counts; no agent is reported lost while no agent renews at all,
//! since then the cause is the API server or our watch that is away.
//! Failure: an agent without any report counts as running until the leases were listed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::node_facts::{LEASE_SECONDS, node_of_lease};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Event;
use tokio::time::{Instant, sleep_until};

mod report;
#[cfg(test)]
mod tests;

use self::report::{LastReport, Versions};

/// How long an agent counts as running without a renewal, or without a connection to its daemon.
const TIMEOUT: Duration = Duration::from_secs(LEASE_SECONDS.unsigned_abs() as u64);

/// The last report of each agent. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Agents(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By node, in the order in which `lost` returns the nodes without a report.
    reports: BTreeMap<String, LastReport>,
    /// When the last report of any agent arrived.
    last: Option<Instant>,
    /// Nodes of the listing in progress.
    listed: HashSet<String>,
    is_listed: bool,
}

impl State {
    fn is_disconnected(&self, now: Instant) -> bool {
        !self.is_listed || self.last.is_none_or(|last| now >= last + TIMEOUT)
    }

    /// Takes a renewal in; returns whether the node can do more than before, or reports other failures.
    fn take(&mut self, lease: &Lease, now: Instant) -> bool {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let Some(node) = node_of_lease(name) else {
            return false;
        };
        self.listed.insert(node.to_owned());
        let known = self.reports.get(node);
        if known.is_some_and(|known| known.renewed == report::renewed(lease)) {
            return false;
        }
        let report = LastReport::read(lease, known, now);
        let lived = known.is_some_and(|known| now < known.end());
        let is_new = known.is_some_and(|known| report.differs_from(known));
        let reaches = report.alone.is_none();
        let answers_again = reaches && known.is_some_and(|known| known.alone.is_some());
        let is_change = !lived || answers_again || is_new;
        if self.is_disconnected(now) {
            // Agents that were not lost before the outage get time to renew.
            let all = self.reports.values_mut().filter(|one| !one.is_announced);
            all.for_each(|one| one.at = now);
        }
        self.last = Some(now);
        self.reports.insert(node.to_owned(), report);
        is_change
    }
}

impl Agents {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one event of the watch of leases in; returns whether more may be done by agents than
    /// before.
    pub fn apply(&self, event: &Event<Lease>) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        match event {
            Event::Init => state.listed.clear(),
            Event::InitApply(lease) | Event::Apply(lease) => return state.take(lease, now),
            Event::InitDone => {
                let listed = std::mem::take(&mut state.listed);
                state.reports.retain(|node, _| listed.contains(node));
                return !std::mem::replace(&mut state.is_listed, true);
            }
            Event::Delete(lease) => {
                let name = lease.metadata.name.as_deref().unwrap_or_default();
                node_of_lease(name).and_then(|node| state.reports.remove(node));
            }
        }
        false
    }

    /// Whether the leases were listed: before that no agent is known.
    #[must_use]
    pub fn are_listed(&self) -> bool {
        self.lock().is_listed
    }

    /// The nodes whose agents live and whose daemons run tasks of that kind, in alphabetical order.
    #[must_use]
    pub fn able(&self, kind: &str) -> Vec<String> {
        let state = self.lock();
        let now = Instant::now();
        let is_disconnected = state.is_disconnected(now);
        let able = state.reports.iter().filter(|(_, one)| {
            let lives = is_disconnected || now < one.end();
            lives && one.alone.is_none() && one.runs(kind)
        });
        able.map(|(node, _)| node.clone()).collect()
    }

    /// Whether agent and daemon of this node were last known to have this feature.
    #[must_use]
    pub fn has(&self, node: &str, feature: &str) -> bool {
        let state = self.lock();
        let report = state.reports.get(node);
        report.is_some_and(|one| one.has(feature))
    }

    /// Whether the daemon of this node runs tasks of that kind, by the last report of its agent; `None`: that
    /// is not known, the agent does not reach the daemon, or it renews no lease, also where no agent does.
    #[must_use]
    pub fn runs(&self, node: &str, kind: &str) -> Option<bool> {
        let state = self.lock();
        let now = Instant::now();
        let report = state.reports.get(node);
        let report = report.filter(|one| one.alone.is_none() && now < one.end());
        report.map(|one| one.runs(kind))
    }

    /// Why this node could not write the manifest beside a disk, by the last report of its agent; `None`: it
    /// reported no failure.
    #[must_use]
    pub fn backup_failure(&self, node: &str, disk: &str) -> Option<String> {
        let state = self.lock();
        let failures = &state.reports.get(node)?.backup_failures;
        failures.get(disk).or_else(|| failures.get("*")).cloned()
    }

    /// Whether this node could not write some manifest, by the last report of its agent.
    #[must_use]
    pub fn has_backup_failures(&self, node: &str) -> bool {
        let state = self.lock();
        let report = state.reports.get(node);
        report.is_some_and(|one| !one.backup_failures.is_empty())
    }

    /// The versions of this node's programs in the last report of its agent, whatever its state.
    #[must_use]
    pub fn versions(&self, node: &str) -> Option<Versions> {
        let state = self.lock();
        let report = state.reports.get(node);
        report.map(|one| one.versions.clone())
    }

    /// The nodes that have, or had, an agent, whatever its state.
    #[must_use]
    pub fn known(&self) -> BTreeSet<String> {
        self.lock().reports.keys().cloned().collect()
    }

    /// Whether what waits for this node's agent may expect that it is done.
    #[must_use]
    pub fn lives(&self, node: &str) -> bool {
        let state = self.lock();
        let now = Instant::now();
        state.is_disconnected(now) || state.reports.get(node).is_some_and(|one| now < one.end())
    }

    /// Whether the leases are known, and no agent of this node renews one. Also so where no agent does.
    #[must_use]
    pub fn is_absent(&self, node: &str) -> bool {
        let state = self.lock();
        let report = state.reports.get(node);
        let now = Instant::now();
        state.is_listed && report.is_none_or(|one| now >= one.end())
    }

    /// The newest machine type that there is instead, if this node, or every node without one, is
    /// known not to have this one.
    #[must_use]
    pub fn lacks(&self, node: Option<&str>, machine_type: &str) -> Option<String> {
        let state = self.lock();
        let mut nodes = state
            .reports
            .iter()
            .filter(|(name, _)| node.is_none_or(|node| node == name.as_str()));
        let (_, first) = nodes.next()?;
        let mut newest = first.lacks(machine_type)?;
        for (_, other) in nodes {
            newest = other.lacks(machine_type)?;
        }
        Some(newest.to_owned())
    }

    /// The nodes whose agents are lost, when there are some, in alphabetical order; announces each loss once.
    pub async fn lost(&self) -> Vec<String> {
        loop {
            let now = Instant::now();
            let next = {
                let mut state = self.lock();
                let is_disconnected = state.is_disconnected(now);
                let mut next = now + TIMEOUT;
                let mut lost = Vec::new();
                let unannounced = state
                    .reports
                    .iter_mut()
                    .filter(|(_, one)| !one.is_announced);
                for (node, one) in unannounced {
                    if now < one.end() {
                        next = next.min(one.end());
                    } else if !is_disconnected {
                        one.is_announced = true;
                        lost.push(node.clone());
                    }
                }
                if !lost.is_empty() {
                    return lost;
                }
                next
            };
            sleep_until(next).await;
        }
    }
}
