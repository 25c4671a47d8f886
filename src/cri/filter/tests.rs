//! Tests of filters, and of the fields of lists and statuses.
//!
//! Invariant: rows are plain values; nothing is looked up.
//! Failure: a failing test names the part of the filter.

use std::collections::BTreeMap;
use std::sync::Arc;

use cri_proto::v1::{
    ContainerFilter, ContainerState, ContainerStateValue, PodSandboxFilter, PodSandboxState,
    PodSandboxStateValue,
};
use podspec::{ContainerId, CpuModel, Defaults, Machine, Mib, PodResources, SandboxId, Vcpus};

use super::{containers, sandboxes};
use crate::sandbox::state::Phase as SandboxPhase;
use crate::sandbox::{Sandbox, SandboxConfig};
use crate::vm::state::Phase;
use crate::vm::{Container, ContainerConfig, Spec};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(start: &str) -> T {
    format!("{start:0<56}766d6c74").parse().unwrap()
}

fn sandbox(start: &str, phase: SandboxPhase, pairs: &[(&str, &str)]) -> Arc<Sandbox> {
    Arc::new(Sandbox {
        id: id(start),
        phase,
        created_at: 1,
        config: SandboxConfig {
            labels: labels(pairs),
            ..SandboxConfig::default()
        },
        network: None,
    })
}

fn container(start: &str, inside: &str, phase: Phase, pairs: &[(&str, &str)]) -> Arc<Container> {
    let defaults = Defaults {
        vcpus: Vcpus::ONE,
        memory: Mib::new(512),
        cpu_model: CpuModel::Default,
    };
    let config = ContainerConfig {
        labels: labels(pairs),
        ..ContainerConfig::default()
    };
    Arc::new(Container {
        id: id(start),
        sandbox: id(inside),
        phase,
        created_at: 1,
        started_at: 0,
        finished_at: 0,
        kill_at: None,
        held: false,
        probe: None,
        exit: None,
        oom_kills: 0,
        updated: None,
        wanted: None,
        spec: Spec {
            part: Default::default(),
            seed: false,
            sysprep: false,
            uefi: false,
            user: None,
            instance: Default::default(),
            machine: Machine::from_pod(&config.annotations, PodResources::default(), defaults)
                .unwrap(),
            config,
            blocks: Vec::new(),
            file_disks: Vec::new(),
            image_digest: "sha256:ab".into(),
            log_path: "/l".into(),
            shares: Vec::new(),
            unsupported: Vec::new(),
        },
    })
}

fn some_sandboxes() -> Vec<Arc<Sandbox>> {
    vec![
        sandbox("aa1", SandboxPhase::Ready, &[("app", "web"), ("tier", "1")]),
        sandbox("aa2", SandboxPhase::Stopped, &[("app", "web")]),
        sandbox("bb", SandboxPhase::Stopping, &[]),
    ]
}

fn some_containers() -> Vec<Arc<Container>> {
    vec![
        container("c1", "aa1", Phase::Running, &[("app", "web")]),
        container("c2", "aa1", Phase::Exited, &[]),
        container("d", "aa2", Phase::Starting, &[]),
    ]
}

/// The beginnings of the ids that fit.
fn sandbox_ids(filter: PodSandboxFilter) -> Vec<String> {
    let found = sandboxes(some_sandboxes(), Some(filter));
    found
        .iter()
        .map(|s| s.id.as_str()[..3].to_owned())
        .collect()
}

fn container_ids(filter: ContainerFilter) -> Vec<String> {
    let found = containers(some_containers(), Some(filter));
    found
        .iter()
        .map(|c| c.id.as_str()[..2].to_owned())
        .collect()
}

#[test]
fn without_a_filter_everything_is_listed() {
    assert_eq!(sandboxes(some_sandboxes(), None).len(), 3);
    assert_eq!(sandbox_ids(PodSandboxFilter::default()).len(), 3);
    assert_eq!(containers(some_containers(), None).len(), 3);
    assert_eq!(container_ids(ContainerFilter::default()).len(), 3);
}

#[test]
fn an_id_may_be_a_prefix_that_only_one_has() {
    let by = |id: &str| {
        sandbox_ids(PodSandboxFilter {
            id: id.into(),
            ..Default::default()
        })
    };
    assert_eq!(by("aa1"), ["aa1"]);
    assert_eq!(by(id::<SandboxId>("bb").as_str()), ["bb0"]);
    assert!(by("aa").is_empty(), "ambiguous");
    assert!(by("ff").is_empty(), "unknown");
    assert!(by("\u{0}").is_empty(), "nonsense");
}

#[test]
fn containers_of_a_sandbox_are_found_by_its_prefix() {
    let by = |id: &str| {
        container_ids(ContainerFilter {
            pod_sandbox_id: id.into(),
            ..Default::default()
        })
    };
    assert_eq!(by("aa1"), ["c1", "c2"]);
    assert_eq!(by("aa2"), ["d0"]);
    assert!(by("aa").is_empty());
    assert!(by(ContainerId::generate().as_str()).is_empty());
}

#[test]
fn states_and_labels_must_all_fit() {
    let state = |state: PodSandboxState| {
        Some(PodSandboxStateValue {
            state: state.into(),
        })
    };
    let ready = PodSandboxFilter {
        state: state(PodSandboxState::SandboxReady),
        ..Default::default()
    };
    assert_eq!(sandbox_ids(ready), ["aa1"]);
    let stopped_web = PodSandboxFilter {
        state: state(PodSandboxState::SandboxNotready),
        label_selector: labels(&[("app", "web")]),
        ..Default::default()
    };
    assert_eq!(sandbox_ids(stopped_web), ["aa2"]);
    let both_labels = PodSandboxFilter {
        label_selector: labels(&[("app", "web"), ("tier", "2")]),
        ..Default::default()
    };
    assert!(sandbox_ids(both_labels).is_empty());
}

#[test]
fn a_machine_that_is_being_started_is_not_running_yet() {
    let by = |state: i32| {
        container_ids(ContainerFilter {
            state: Some(ContainerStateValue { state }),
            ..Default::default()
        })
    };
    assert_eq!(by(ContainerState::ContainerCreated.into()), ["d0"]);
    assert_eq!(by(ContainerState::ContainerRunning.into()), ["c1"]);
    assert_eq!(by(ContainerState::ContainerExited.into()), ["c2"]);
    assert!(by(77).is_empty());
}
