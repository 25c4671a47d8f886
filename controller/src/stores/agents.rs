//! Running agents of nodes: those that have renewed their lease recently.
//!
//! Invariant: ages are measured by this process's own clock from the moment at which a renewal was
//! seen, so that no other clock counts; no agent is reported lost while no agent renews at all,
//! since then the cause is the API server or our watch that is away.
//! Failure: an agent without any report counts as running until the leases were listed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::names;
use crds::node_facts::{LEASE_SECONDS, LIMIT, NodeFacts, node_of_lease};
use crds::text::printable;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::runtime::watcher::Event;
use tokio::time::{Instant, sleep_until};

/// How long an agent counts as running without a renewal, or without a connection to its daemon.
const TIMEOUT: Duration = Duration::from_secs(LEASE_SECONDS.unsigned_abs() as u64);

/// Longest message of a failure, in bytes.
const MESSAGE: usize = 512;

/// The last report of each agent. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Agents(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By node.
    reports: HashMap<String, LastReport>,
    /// When the last report of any agent arrived.
    last: Option<Instant>,
    /// Nodes of the listing in progress.
    listed: HashSet<String>,
    is_listed: bool,
}

#[derive(Debug)]
struct LastReport {
    renewed: Option<MicroTime>,
    at: Instant,
    /// Since when it reports that its daemon does not answer.
    alone: Option<Instant>,
    /// The machine types of its node, the oldest first; empty when they are not known.
    machine_types: Vec<String>,
    /// Kinds of task that its daemon runs, as [`crds::TaskKind`] spells them.
    task_kinds: Vec<String>,
    /// What it and its daemon can do that earlier versions cannot.
    features: Vec<String>,
    /// Disks whose manifest it could not write, and why; `*`: all disks of the node.
    backup_failures: BTreeMap<String, String>,
    versions: Versions,
    /// Its loss was announced.
    is_announced: bool,
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
    /// When it is lost, unless it renews before that.
    fn end(&self) -> Instant {
        let since = self.alone.map_or(self.at, |alone| alone.min(self.at));
        since + TIMEOUT
    }

    /// The newest machine type of its node, if the node is known not to have this one.
    fn lacks(&self, machine_type: &str) -> Option<&str> {
        let newest = self.machine_types.last()?;
        let has = self.machine_types.iter().any(|known| known == machine_type);
        (!has).then_some(newest)
    }
}

impl State {
    fn is_disconnected(&self, now: Instant) -> bool {
        !self.is_listed || self.last.is_none_or(|last| now >= last + TIMEOUT)
    }

    /// Takes a renewal in; returns whether the node can do more than before, or reports other failures.
    fn hear(&mut self, lease: &Lease, now: Instant) -> bool {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let Some(node) = node_of_lease(name) else {
            return false;
        };
        self.listed.insert(node.to_owned());
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let known = self.reports.get(node);
        if known.is_some_and(|known| known.renewed == renewed) {
            return false;
        }
        let facts = NodeFacts::of_lease(lease);
        let reaches = facts.as_ref().is_none_or(|facts| facts.daemon.reachable);
        let since = known.and_then(|known| known.alone).unwrap_or(now);
        let facts = facts.unwrap_or_default();
        let daemon = facts.daemon;
        let report = LastReport {
            renewed,
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
        };
        let lived = known.is_some_and(|known| now < known.end());
        let is_new = |known: &LastReport| {
            known.task_kinds != report.task_kinds
                || known.features != report.features
                || known.backup_failures != report.backup_failures
        };
        let answers_again = reaches && known.is_some_and(|known| known.alone.is_some());
        let is_change = !lived || answers_again || known.is_some_and(is_new);
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
            Event::InitApply(lease) | Event::Apply(lease) => return state.hear(lease, now),
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
        let (state, now) = (self.lock(), Instant::now());
        let is_disconnected = state.is_disconnected(now);
        let able = state.reports.iter().filter(|(_, one)| {
            let lives = is_disconnected || now < one.end();
            lives && one.alone.is_none() && one.task_kinds.iter().any(|known| known == kind)
        });
        let mut nodes: Vec<_> = able.map(|(node, _)| node.clone()).collect();
        nodes.sort();
        nodes
    }

    /// Whether agent and daemon of this node were last known to have this feature.
    #[must_use]
    pub fn has(&self, node: &str, feature: &str) -> bool {
        let state = self.lock();
        let report = state.reports.get(node);
        report.is_some_and(|one| one.features.iter().any(|known| known == feature))
    }

    /// Whether the daemon of this node runs tasks of that kind, by the last report of its agent; `None`: that
    /// is not known, the agent does not reach the daemon, or it renews no lease, also where no agent does.
    #[must_use]
    pub fn runs(&self, node: &str, kind: &str) -> Option<bool> {
        let (state, now) = (self.lock(), Instant::now());
        let report = state.reports.get(node);
        let report = report.filter(|one| one.alone.is_none() && now < one.end());
        report.map(|one| one.task_kinds.iter().any(|known| known == kind))
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
        let (state, now) = (self.lock(), Instant::now());
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

    /// The nodes whose agents are lost, when there are some; announces each loss once.
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

#[cfg(test)]
mod tests {
    use std::future::Future;

    use crds::names::NODE_FACTS;
    use serde_json::json;
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The lease of a node at its `n`th renewal.
    fn lease(node: &str, n: u32, reaches: bool) -> Lease {
        let facts = json!({ "daemon": { "reachable": reaches } }).to_string();
        serde_json::from_value(json!({
            "metadata": { "name": format!("vmlet-node-{node}"), "annotations": { NODE_FACTS: facts } },
            "spec": { "renewTime": format!("2001-01-01T00:00:00.{n:06}Z") },
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_daemon_of_a_silent_agent_runs_is_not_known() {
        let agents = Agents::default();
        agents.apply(&Event::Init);
        for node in ["a", "b"] {
            agents.apply(&Event::InitApply(lease(node, 0, true)));
        }
        agents.apply(&Event::InitDone);
        assert_eq!(agents.runs("a", "Revert"), Some(false));
        for n in 1..4 {
            advance(TIMEOUT / 2).await;
            agents.apply(&Event::Apply(lease("b", n, true)));
        }
        assert_eq!(agents.runs("a", "Revert"), None);
        assert_eq!(agents.runs("b", "Revert"), Some(false));
        advance(TIMEOUT).await;
        assert_eq!(agents.runs("b", "Revert"), None, "the only one");
    }

    /// The lease of a node with these machine types.
    fn with_types(node: &str, types: &[&str]) -> Lease {
        let mut lease = lease(node, 0, true);
        let facts = json!({ "daemon": { "reachable": true, "machineTypes": types } });
        let annotations = lease.metadata.annotations.as_mut().unwrap();
        annotations.insert(NODE_FACTS.to_owned(), facts.to_string());
        lease
    }

    #[tokio::test]
    async fn only_nodes_whose_machine_types_are_known_lack_one() {
        let agents = Agents::default();
        let old = with_types("old", &["pc-q35-6.0", "pc-q35-7.2"]);
        let new = with_types("new", &["pc-q35-7.2", "pc-q35-9.0"]);
        assert_eq!(agents.lacks(None, "pc-q35-9.0"), None, "no node is known");
        list(&agents, &[old.clone(), new.clone()]);
        let lacks = |node, wanted| agents.lacks(node, wanted);
        assert_eq!(lacks(Some("old"), "pc-q35-7.2"), None);
        assert_eq!(
            lacks(Some("old"), "pc-q35-9.0").as_deref(),
            Some("pc-q35-7.2")
        );
        assert_eq!(lacks(Some("other"), "pc-q35-9.0"), None);
        assert_eq!(lacks(None, "pc-q35-9.0"), None, "one node has it");
        assert!(lacks(None, "pc-q35-99.0").is_some());
        list(&agents, &[old, new, with_types("silent", &[])]);
        assert_eq!(agents.lacks(None, "pc-q35-99.0"), None, "one is not known");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_needs_a_node_with_a_running_agent_that_offers_its_kind() {
        let agents = Agents::default();
        let with_kinds = |node: &str, n: u32, kinds: &[&str]| {
            let mut lease = lease(node, n, true);
            let facts = json!({ "daemon": { "reachable": true, "taskKinds": kinds } });
            let annotations = lease.metadata.annotations.as_mut().unwrap();
            annotations.insert(NODE_FACTS.to_owned(), facts.to_string());
            lease
        };
        assert!(!agents.are_listed());
        assert!(agents.apply(&Event::Apply(with_kinds("b", 0, &["InspectImage"]))));
        agents.apply(&Event::Init);
        for node in ["a", "b"] {
            agents.apply(&Event::InitApply(with_kinds(node, 1, &["InspectImage"])));
        }
        agents.apply(&Event::InitApply(with_kinds("old", 1, &["Provision"])));
        assert!(agents.apply(&Event::InitDone), "the first list");
        assert_eq!(agents.able("InspectImage"), ["a", "b"]);
        let again = with_kinds("b", 2, &["InspectImage"]);
        assert!(!agents.apply(&Event::Apply(again)), "a renewal is no news");
        assert!(agents.apply(&Event::Apply(with_kinds("old", 2, &["InspectImage"]))));
        assert_eq!(agents.able("InspectImage"), ["a", "b", "old"]);
        assert_eq!(agents.able("Provision"), Vec::<String>::new());
        agents.apply(&Event::Apply(lease("a", 3, false)));
        advance(30 * SECOND).await;
        agents.apply(&Event::Apply(with_kinds("b", 4, &["InspectImage"])));
        advance(15 * SECOND).await;
        assert_eq!(
            agents.able("InspectImage"),
            ["b"],
            "one does not reach its daemon, one is silent"
        );
        assert_eq!(agents.known().len(), 3);
    }

    fn list(agents: &Agents, leases: &[Lease]) {
        agents.apply(&Event::Init);
        for lease in leases {
            agents.apply(&Event::InitApply(lease.clone()));
        }
        agents.apply(&Event::InitDone);
    }

    /// `a` renews every second; `b` is what the other one says in that second.
    async fn pass_by(agents: &Agents, seconds: u32, b: impl Fn(u32) -> Option<Lease>) {
        for n in 1..=seconds {
            advance(SECOND).await;
            agents.apply(&Event::Apply(lease("a", n, true)));
            if let Some(lease) = b(n) {
                agents.apply(&Event::Apply(lease));
            }
        }
    }

    async fn ends_at_once(future: impl Future<Output = Vec<String>>) -> bool {
        timeout(Duration::ZERO, future).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_without_a_renewal_for_forty_seconds_is_lost_until_it_renews() {
        let agents = Agents::default();
        assert!(agents.lives("b"), "no agent was listed");
        list(&agents, &[lease("a", 0, true), lease("b", 0, true)]);
        // The lease is written, and never renewed.
        pass_by(&agents, 39, |_| Some(lease("b", 0, true))).await;
        assert!(agents.lives("a") && agents.lives("b") && !agents.lives("c"));
        assert!(!ends_at_once(agents.lost()).await);
        pass_by(&agents, 1, |_| None).await;
        // `a` was last renewed with another number.
        assert!(agents.lives("a") && !agents.lives("b"));
        assert!(ends_at_once(agents.lost()).await);
        assert!(!ends_at_once(agents.lost()).await, "reported once");
        agents.apply(&Event::Apply(lease("b", 1, true)));
        assert!(agents.lives("b"));
        agents.apply(&Event::Delete(lease("b", 1, true)));
        assert!(!agents.lives("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_does_not_answer_its_agent_is_as_good_as_none_after_the_same_time() {
        let agents = Agents::default();
        list(&agents, &[lease("a", 0, true), lease("b", 0, true)]);
        pass_by(&agents, 40, |n| Some(lease("b", n, false))).await;
        assert!(agents.lives("b"), "it said so 39 seconds ago");
        pass_by(&agents, 1, |_| Some(lease("b", 41, false))).await;
        assert!(!agents.lives("b"));
        agents.apply(&Event::Apply(lease("b", 42, true)));
        assert!(agents.lives("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_answers_again_after_a_short_time_can_do_more() {
        let agents = Agents::default();
        list(&agents, &[lease("a", 0, true)]);
        let renew = |n, reaches| agents.apply(&Event::Apply(lease("a", n, reaches)));
        for (n, reaches, is_change) in [
            (1, false, false),
            (2, false, false),
            (3, true, true),
            (4, true, false),
        ] {
            advance(10 * SECOND).await;
            assert_eq!(renew(n, reaches), is_change, "{n}");
            assert_eq!(agents.runs("a", "Revert").is_some(), reaches, "{n}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_any_report_no_agent_is_lost_nor_right_after() {
        let agents = Agents::default();
        let all = |n| {
            [
                lease("a", n, true),
                lease("b", n, true),
                lease("c", 0, true),
            ]
        };
        list(&agents, &all(0));
        pass_by(&agents, 40, |n| Some(lease("b", n, true))).await;
        assert!(!agents.lives("c"));
        assert!(ends_at_once(agents.lost()).await);
        advance(60 * SECOND).await;
        assert!(agents.lives("a") && agents.lives("b") && agents.lives("c"));
        assert!(!ends_at_once(agents.lost()).await);
        agents.apply(&Event::Apply(lease("a", 999, true)));
        advance(10 * SECOND).await;
        assert!(agents.lives("b"), "it has time to renew");
        assert!(!agents.lives("c"), "it was silent before");
        assert!(!ends_at_once(agents.lost()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_agent_is_reported_when_its_lease_expires() {
        let agents = Agents::default();
        list(&agents, &[lease("a", 0, true), lease("b", 0, true)]);
        let waiting = tokio::spawn({
            let agents = agents.clone();
            async move { agents.lost().await }
        });
        tokio::task::yield_now().await;
        pass_by(&agents, 45, |_| None).await;
        let lost = timeout(SECOND, waiting).await.unwrap().unwrap();
        assert_eq!(lost, ["b"]);
    }
}
