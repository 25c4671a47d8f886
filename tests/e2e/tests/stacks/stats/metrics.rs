//! The metrics of a real guest, as kubelet exports them.
//!
//! Invariant: each descriptor that must have a value has one, with a label for each key.
//! Failure: the metric that is missing or does not fit.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result, ensure};
use e2e::{Cri, v1};

use super::collected;

/// May be absent: what this node's cgroups count decides.
const MAY_BE_ABSENT: [&str; 4] = [
    "container_blkio_",
    "container_fs_reads_",
    "container_fs_writes_",
    "container_pressure_",
];
/// Absent without such a limit.
const LIMITS: [&str; 2] = [
    "container_spec_cpu_quota",
    "container_spec_memory_reservation_limit_bytes",
];

/// What the guest itself reports, maybe later: the test of the guest's agent awaits it.
const OF_GUEST: &str = "vmlet_guest_";

/// Metrics of a machine that has run for a while.
pub(super) async fn follow_the_machine(
    cri: &Cri,
    sandbox: &str,
    container: &str,
    pid: i32,
) -> Result<()> {
    let mut runtime = cri.runtime.clone();
    let request = v1::ListMetricDescriptorsRequest {};
    let described = runtime.list_metric_descriptors(request).await?.into_inner();
    let keys = described.descriptors.into_iter();
    let keys: BTreeMap<_, _> = keys.map(|d| (d.name, d.label_keys)).collect();
    let request = v1::StreamPodSandboxMetricsRequest {};
    let stream = runtime.stream_pod_sandbox_metrics(request).await?;
    let mut pods = collected(stream, |message| message.pod_sandbox_metrics).await?;
    ensure!(pods.len() == 1, "{} pods", pods.len());
    let pod = pods.pop().context("no pod")?;
    ensure!(pod.pod_sandbox_id == sandbox, "{}", pod.pod_sandbox_id);
    let [machine] = &*pod.container_metrics else {
        anyhow::bail!("{} containers", pod.container_metrics.len());
    };
    ensure!(machine.container_id == container);

    let mut series = HashSet::new();
    for metric in pod.metrics.iter().chain(&machine.metrics) {
        let keys = keys.get(&metric.name).context("not described")?;
        ensure!(keys.len() == metric.label_values.len(), "{metric:?}");
        let new = series.insert((&metric.name, &metric.label_values));
        ensure!(new, "twice: {metric:?}");
    }
    for name in keys.keys() {
        let may_be_absent = MAY_BE_ABSENT.iter().any(|begin| name.starts_with(begin));
        let found = |metrics: &[v1::Metric]| metrics.iter().any(|metric| metric.name == *name);
        let of_pod = found(&pod.metrics);
        let of_machine = found(&machine.metrics);
        let is_there = match name {
            name if name.starts_with("container_network_") => of_pod,
            name if name.starts_with(OF_GUEST) => !of_pod,
            _ => of_pod && of_machine,
        };
        ensure!(
            may_be_absent || LIMITS.contains(&name.as_str()) || is_there,
            "no {name}"
        );
    }

    let value = |name: &str| {
        let found = machine.metrics.iter().find(|metric| metric.name == name);
        let value = found
            .and_then(|metric| metric.value)
            .context(name.to_owned());
        value.map(|value| value.value)
    };
    let set = value("container_memory_working_set_bytes")?;
    ensure!(set <= value("container_memory_max_usage_bytes")?, "{set}");
    ensure!((20 << 20..1 << 30).contains(&set), "{set}");
    let user = value("container_cpu_user_seconds_total")?;
    let system = value("container_cpu_system_seconds_total")?;
    let both = value("container_cpu_usage_seconds_total")?;
    ensure!(
        user > 0 && user + system <= both + 2,
        "{user} {system} {both}"
    );
    ensure!(value("container_processes")? == 1, "processes");
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?.count() as u64;
    let counted = value("container_threads")?;
    ensure!(
        counted > 1 && counted.abs_diff(threads) < 20,
        "{counted} {threads}"
    );
    ensure!(value("container_file_descriptors")? > value("container_sockets")?);
    ensure!(value("container_fs_usage_bytes")? < value("container_fs_limit_bytes")?);
    let received = pod.metrics.iter().filter(|metric| {
        let sent = metric.value.is_some_and(|value| value.value > 0);
        metric.name == "container_network_receive_packets_total" && sent
    });
    ensure!(received.count() == 1, "no packets counted");
    Ok(())
}
