//! Metrics of sandboxes and containers, with the names and labels of cAdvisor.
//!
//! Invariant: a metric has as many label values as its descriptor has keys, and no two metrics of
//! an answer have the same name and labels: one that breaks this breaks kubelet's whole export.
//! Values are whole numbers, as the protocol has them; times are in whole seconds.
//! Failure: none; where the kernel counts nothing for a machine, a metric that must be there is 0,
//! and one that may be absent is absent.

use cri_proto::v1;
use cri_proto::v1::MetricType;

use crate::guest::Report;
use crate::sandbox::Sandbox;
use crate::vm::Container;
use crate::vm::details::{Detail, Room};
use crate::vm::stats::{Cpu, Disk, Memory, PodUsage, Pressure, Usage};

mod figures;
mod guest;
mod names;

use names::{ALL, Name};

/// Labels of every metric; some have more.
const BASE: [&str; 6] = ["id", "name", "image", "container", "pod", "namespace"];

/// Name of a sandbox where containers have theirs.
const SANDBOX: &str = "POD";

const SECOND: u64 = 1_000_000_000;

/// What the metrics of one sandbox or container are made from.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cri) struct Sources<'a> {
    pub(in crate::cri) cpu: Option<Cpu>,
    pub(in crate::cri) memory: Option<Memory>,
    pub(in crate::cri) pressure: Option<Pressure>,
    /// What its root disk takes.
    pub(in crate::cri) disk: Option<Disk>,
    pub(in crate::cri) detail: Option<&'a Detail>,
    pub(in crate::cri) room: Option<&'a Room>,
    /// What the guest reported last.
    pub(in crate::cri) guest: Option<&'a Report>,
}

/// kubelet's limits; 0 is "not given".
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    cpu_period: i64,
    cpu_quota: i64,
    cpu_shares: i64,
    memory: i64,
    memory_and_swap: i64,
}

/// Metrics of one sandbox or container under construction.
#[derive(Debug)]
struct Samples {
    labels: [String; BASE.len()],
    at: i64,
    all: Vec<v1::Metric>,
}

/// All descriptors.
pub(in crate::cri) fn descriptors() -> Vec<v1::MetricDescriptor> {
    let all = ALL.iter().map(|name| v1::MetricDescriptor {
        name: name.name.to_owned(),
        help: name.help.to_owned(),
        label_keys: name.keys().map(str::to_owned).collect(),
    });
    all.collect()
}

/// The metrics of a sandbox, with those of its running containers.
pub(in crate::cri) fn of_sandbox(
    row: &Sandbox,
    usage: &PodUsage,
    sources: Sources<'_>,
    at: i64,
    containers: Vec<v1::ContainerMetrics>,
) -> v1::PodSandboxMetrics {
    let metadata = &row.config.metadata;
    let mut samples = Samples::new(
        at,
        [
            row.id.as_str(),
            SANDBOX,
            "",
            "",
            &metadata.name,
            &metadata.namespace,
        ],
    );
    let resources = &row.config.resources;
    let limits = Limits {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        memory: resources.memory_limit,
        ..Limits::default()
    };
    samples.life(row.created_at);
    samples.usage(sources);
    samples.limits(limits, sources.detail);
    if let Some(traffic) = &usage.network {
        traffic.nics.iter().for_each(|nic| samples.nic(nic));
    }
    v1::PodSandboxMetrics {
        pod_sandbox_id: row.id.to_string(),
        metrics: samples.all,
        container_metrics: containers,
    }
}

/// The metrics of a container that runs.
pub(in crate::cri) fn of_container(
    row: &Container,
    sandbox: &Sandbox,
    usage: &Usage,
    sources: Sources<'_>,
    at: i64,
) -> v1::ContainerMetrics {
    let config = &row.spec.config;
    let name = &config.metadata.name;
    let pod = &sandbox.config.metadata;
    let image = match config.image.user_specified_image.as_str() {
        "" => &config.image.image,
        given => given,
    };
    let mut samples = Samples::new(
        at,
        [
            row.id.as_str(),
            name,
            image,
            name,
            &pod.name,
            &pod.namespace,
        ],
    );
    let resources = row.resources();
    let limits = Limits {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory: resources.memory_limit_in_bytes,
        memory_and_swap: resources.memory_swap_limit_in_bytes,
    };
    samples.life(row.started_at);
    samples.usage(Sources {
        cpu: usage.cpu,
        memory: usage.memory,
        pressure: usage.pressure,
        ..sources
    });
    samples.limits(limits, sources.detail);
    if let Some(report) = sources.guest {
        samples.guest(report);
    }
    v1::ContainerMetrics {
        container_id: row.id.to_string(),
        metrics: samples.all,
    }
}

impl Samples {
    fn new(at: i64, labels: [&str; BASE.len()]) -> Self {
        let labels = labels.map(str::to_owned);
        let all = Vec::with_capacity(ALL.len());
        Self { labels, at, all }
    }

    fn put(&mut self, name: &Name, value: impl Into<Option<u64>>) {
        self.put_with(name, [], value);
    }

    /// A metric with values of the labels that only it has; none without a value.
    fn put_with<const N: usize>(
        &mut self,
        name: &Name,
        extra: [&str; N],
        value: impl Into<Option<u64>>,
    ) {
        debug_assert_eq!(extra.len(), name.extra.len(), "{}", name.name);
        let Some(value) = value.into() else {
            return;
        };
        let own = extra.into_iter().map(str::to_owned);
        self.all.push(v1::Metric {
            name: name.name.to_owned(),
            timestamp: self.at,
            metric_type: name.kind.into(),
            label_values: self.labels.iter().cloned().chain(own).collect(),
            value: Some(v1::UInt64Value { value }),
        });
    }
}

#[cfg(test)]
mod tests;
