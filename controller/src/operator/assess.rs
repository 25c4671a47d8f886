//! Converts the observed objects to components.
//!
//! Components are visited in the order in which an upgrade rolls them out: kinds, admission
//! policies, controller, proxies, node side; then other resources as listed.
//!
//! Invariant: pure but for the memory that it is given; memory holds what no object contains: since
//! when something is short, and how often containers started again.
//! Failure: what could not be read is a component that failed.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::text::printable;
use crds::{NodeProblem, VmletNodes, VmletStatus};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::adapters::{self, NodeView, RuntimeFacts, Wanted};
use super::component::{Component, ComponentState};
use super::observe::{Observation, Read};

/// Containers that start so often in [`WINDOW`] are a fault.
const RESTARTS: i32 = 3;
/// See [`RESTARTS`].
const WINDOW: Duration = Duration::from_mins(10);

/// What is remembered from pass to pass. A new process starts without.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    set_short_since: Option<Time>,
    deployment_short_since: Option<Time>,
    /// By pod: when its containers had started again how often.
    restarts: BTreeMap<String, Vec<(Time, i32)>>,
}

/// What was found out.
#[derive(Clone, Debug)]
pub struct Assessment {
    /// In visiting order.
    pub components: Vec<Component>,
    /// The nodes that are to run machines.
    pub nodes: Vec<NodeView>,
}

/// Judges what was read.
pub fn assess(
    seen: &Observation,
    wanted: &[Wanted],
    version: &str,
    now: &Time,
    memory: &mut Memory,
) -> Assessment {
    let nodes = nodes(seen, now);
    let mut components = vec![
        component("Crds", &seen.definitions, |found| {
            adapters::definitions(wanted, found)
        }),
        component("AdmissionPolicy", &seen.policies, |found| {
            ComponentState::Found(adapters::admission(found))
        }),
        component("Controller", &seen.deployment, |found| match found {
            Some(deployment) => controller(deployment, now, memory),
            None => ComponentState::Nothing("its Deployment does not exist".to_owned()),
        }),
        component("CriProxy", &nodes, |nodes| {
            if nodes.iter().all(|node| node.facts.is_none()) {
                return ComponentState::Nothing("no node has reported yet".to_owned());
            }
            ComponentState::Found(adapters::proxy(nodes, version))
        }),
        runtime(seen, &nodes, version, now, memory),
    ];
    for (wanted, read) in &seen.others {
        components.push(component(&wanted.kind, read, |found| match found {
            Some(object) => adapters::resource(object),
            None => ComponentState::Nothing(format!("{} does not exist", wanted.name)),
        }));
    }
    let nodes = nodes.unwrap_or_default();
    let runs = |of: fn(&NodeView) -> Option<&str>| {
        let mut versions = nodes.iter().filter(|node| !node.excluded).map(of);
        versions.all(|found| found == Some(version))
    };
    let daemons = runs(|node| Some(node.facts.as_ref()?.daemon.version.as_str()));
    let proxies = nodes
        .iter()
        .filter(|node| !node.excluded)
        .filter_map(|node| node.facts.as_ref()?.proxy.as_ref())
        .all(|proxy| proxy.version == version);
    for component in &mut components {
        match component.name.as_str() {
            "Runtime" => component.version_matches = daemons,
            "CriProxy" => component.version_matches = proxies,
            _ => {}
        }
    }
    Assessment { components, nodes }
}

/// How many nodes are well, and what the others lack, for the status.
#[must_use]
pub fn count(nodes: &[NodeView]) -> VmletNodes {
    let bad: Vec<_> = nodes.iter().filter(|node| node.is_bad()).collect();
    let mut limited: Vec<_> = nodes.iter().filter(|node| node.is_limited()).collect();
    // What makes machines many times slower goes first: places in the status are few.
    limited.sort_by_key(|node| !node.is_emulated());
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let problems = bad.iter().chain(&limited).filter_map(|node| problem(node));
    VmletNodes {
        targeted: number(nodes.iter().filter(|node| !node.excluded).count()),
        ready: number(nodes.iter().filter(|node| node.is_ready()).count()),
        degraded: number(bad.len()),
        limited: number(limited.len()),
        problems: problems.take(VmletStatus::MOST_BAD_NODES).collect(),
        bad: bad
            .iter()
            .take(VmletStatus::MOST_BAD_NODES)
            .map(|node| node.name.clone())
            .collect(),
    }
}

/// The words are another program's.
fn problem(node: &NodeView) -> Option<NodeProblem> {
    let (reason, message) = node.problem()?;
    let reason: String = reason.chars().filter(char::is_ascii_alphanumeric).collect();
    Some(NodeProblem {
        name: node.name.clone(),
        reason: printable(&reason, 64),
        message: printable(message, VmletStatus::LONGEST_PROBLEM),
    })
}

fn component<T>(name: &str, read: &Read<T>, state: impl FnOnce(&T) -> ComponentState) -> Component {
    match read {
        Ok(found) => Component::new(name, state(found)),
        Err(error) => Component::failed(name, error),
    }
}

/// Nodes that the DaemonSet selects; without one, those whose agents have leases.
fn nodes(seen: &Observation, now: &Time) -> Read<Vec<NodeView>> {
    let nodes = seen.nodes.as_ref();
    let leases = seen.leases.as_ref();
    let nodes = nodes.map_err(Clone::clone)?;
    let leases = leases.map_err(Clone::clone)?;
    let set = seen.daemon_set.as_ref().map_err(Clone::clone)?;
    Ok(match set {
        Some(set) => {
            let selector = node_selector(set).cloned().unwrap_or_default();
            adapters::views(nodes, leases, &selector, now)
        }
        None => {
            let mut views = adapters::views(nodes, leases, &BTreeMap::new(), now);
            views.retain(|node| node.facts.is_some());
            views
        }
    })
}

fn node_selector(set: &DaemonSet) -> Option<&BTreeMap<String, String>> {
    let template = set.spec.template.spec.as_ref()?;
    template.node_selector.as_ref()
}

fn controller(deployment: &Deployment, now: &Time, memory: &mut Memory) -> ComponentState {
    let available = deployment
        .status
        .as_ref()
        .and_then(|status| status.available_replicas);
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let is_short = available.unwrap_or_default() < wanted;
    let short_for = since(&mut memory.deployment_short_since, is_short, now);
    adapters::deployment(deployment, short_for)
}

fn runtime(
    seen: &Observation,
    nodes: &Read<Vec<NodeView>>,
    version: &str,
    now: &Time,
    memory: &mut Memory,
) -> Component {
    let name = "Runtime";
    let (set, nodes, pods) = match (&seen.daemon_set, nodes, &seen.pods) {
        (Ok(set), Ok(nodes), Ok(pods)) => (set, nodes, pods),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
            return Component::failed(name, error);
        }
    };
    let excluded = nodes.iter().filter(|node| node.excluded).count();
    let excluded = u32::try_from(excluded).unwrap_or(u32::MAX);
    let is_short = match set {
        Some(set) => adapters::missing(set, excluded) > 0,
        None => nodes.iter().any(NodeView::is_bad),
    };
    let facts = RuntimeFacts {
        excluded,
        short_for: since(&mut memory.set_short_since, is_short, now),
        restarting: restarting(&mut memory.restarts, pods, now),
        holding: holding(nodes),
    };
    match set {
        Some(set) => Component::found(name, adapters::runtime(set, &facts)),
        None if nodes.is_empty() => Component::nothing(
            name,
            "its DaemonSet does not exist and no node has reported",
        ),
        None => Component::found(name, adapters::runtime_of_nodes(nodes, version, &facts)),
    }
}

/// The first node whose machines would end with the daemon's pod.
fn holding(nodes: &[NodeView]) -> Option<String> {
    let mut all = nodes.iter();
    let is_holding = |node: &&NodeView| {
        let facts = node.facts.as_ref();
        facts.is_some_and(|facts| facts.daemon.bound_machines > 0)
    };
    all.find(is_holding).map(|node| node.name.clone())
}

/// How long something has been so.
fn since(memory: &mut Option<Time>, is_so: bool, now: &Time) -> Duration {
    if !is_so {
        *memory = None;
        return Duration::ZERO;
    }
    let start = memory.get_or_insert_with(|| now.clone());
    Duration::try_from(now.0.duration_since(start.0)).unwrap_or_default()
}

/// A pod whose containers started again too often lately.
fn restarting(
    memory: &mut BTreeMap<String, Vec<(Time, i32)>>,
    pods: &[Pod],
    now: &Time,
) -> Option<String> {
    let mut found = None;
    let mut kept = BTreeMap::new();
    for pod in pods {
        let key = pod.uid().unwrap_or_default();
        let containers = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let count = containers
            .into_iter()
            .flatten()
            .map(|container| container.restart_count)
            .max()
            .unwrap_or_default();
        let mut history = memory.remove(&key).unwrap_or_default();
        let is_old = |time: &Time| {
            Duration::try_from(now.0.duration_since(time.0)).is_ok_and(|age| age > WINDOW)
        };
        history.retain(|(time, _)| !is_old(time));
        if history.last().is_none_or(|(_, last)| *last != count) {
            history.push((now.clone(), count));
        }
        let before = history.first().map_or(count, |(_, count)| *count);
        if count.saturating_sub(before) >= RESTARTS {
            found.get_or_insert_with(|| pod.name_any());
        }
        kept.insert(key, history);
    }
    *memory = kept;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(jiff::Timestamp::from_second(1_000_000 + seconds).unwrap())
    }

    fn pod(restarts: i32) -> Pod {
        let pod = serde_json::json!({"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": [
            {"name": "c", "restartCount": restarts, "ready": true, "image": "", "imageID": ""}]}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn three_restarts_in_ten_minutes_are_a_fault_and_spread_out_they_are_not() {
        let mut memory = BTreeMap::new();
        let mut note = |restarts, seconds| restarting(&mut memory, &[pod(restarts)], &at(seconds));
        assert_eq!(note(40, 0), None, "what was before is not known");
        assert_eq!(note(42, 100), None);
        assert_eq!(note(43, 200), Some("p".to_owned()));
        assert_eq!(note(43, 900), None, "the window has passed");
        assert_eq!(note(45, 1700), None);
        assert_eq!(note(46, 2400), None);
    }

    #[test]
    fn a_shortage_that_returns_starts_its_time_again() {
        let mut memory = None;
        assert_eq!(since(&mut memory, true, &at(0)), Duration::ZERO);
        assert_eq!(since(&mut memory, true, &at(301)), Duration::from_secs(301));
        assert_eq!(since(&mut memory, false, &at(302)), Duration::ZERO);
        assert_eq!(since(&mut memory, true, &at(400)), Duration::ZERO);
    }
}
