//! Metrics of a node with a planted cgroup, and the names that kubelet's conformance suite demands.
//!
//! Invariant: the list of names is the suite's own, in its order.
//! Failure: the names that are missing, or the metric that breaks an export.

use std::collections::{BTreeSet, HashMap, HashSet};

use cri_proto::v1;

use super::*;
use crate::sandbox::SandboxConfig;
use crate::testkit::Node;

/// Names that a runtime must serve, below `container_`.
const MANDATORY: &str = "\
    cpu_cfs_periods_total cpu_cfs_throttled_periods_total cpu_cfs_throttled_seconds_total \
    cpu_system_seconds_total cpu_usage_seconds_total cpu_user_seconds_total file_descriptors \
    fs_inodes_free fs_inodes_total fs_limit_bytes fs_usage_bytes last_seen memory_cache \
    memory_failcnt memory_failures_total memory_kernel_usage memory_mapped_file \
    memory_max_usage_bytes memory_rss memory_swap memory_usage_bytes memory_working_set_bytes \
    network_receive_bytes_total network_receive_errors_total \
    network_receive_packets_dropped_total network_receive_packets_total \
    network_transmit_bytes_total network_transmit_errors_total \
    network_transmit_packets_dropped_total network_transmit_packets_total oom_events_total \
    processes sockets spec_cpu_period spec_cpu_shares spec_memory_limit_bytes \
    spec_memory_swap_limit_bytes start_time_seconds threads threads_max";

/// Names whose descriptors must be there, and whose values may be absent.
const WITHOUT_VALUES: &str = "\
    blkio_device_usage_total fs_reads_bytes_total fs_reads_total fs_writes_bytes_total \
    fs_writes_total";

/// Names that may be missing altogether, of those that are served.
const OPTIONAL: &str = "\
    pressure_cpu_stalled_seconds_total pressure_cpu_waiting_seconds_total \
    pressure_io_stalled_seconds_total pressure_io_waiting_seconds_total \
    pressure_memory_stalled_seconds_total pressure_memory_waiting_seconds_total spec_cpu_quota \
    spec_memory_reservation_limit_bytes ulimits_soft";

/// Names that only guests with `vmlet-guest` have, below `vmlet_guest_`.
const OF_GUESTS: &str = "\
    uptime_seconds cpu_busy_seconds_total memory_bytes memory_available_bytes swap_bytes \
    swap_free_bytes filesystem_size_bytes filesystem_used_bytes filesystem_inodes \
    filesystem_inodes_used";

/// A guest that reports one mount point twice, and control characters.
fn report() -> Report {
    let fs = |mount_point: &str, used| guestapi::FileSystem {
        mount_point: mount_point.to_owned(),
        device: "/dev/vda1\u{1b}[2J".to_owned(),
        used,
        ..guestapi::FileSystem::default()
    };
    let facts = guestapi::Facts {
        cpu: 7 * SECOND,
        file_systems: vec![fs("/", 1), fs("/", 2), fs("/srv", 3)],
        ..guestapi::Facts::default()
    };
    Report {
        at: 1,
        version: "1".to_owned(),
        facts: facts.into(),
    }
}

fn of_guests() -> impl Iterator<Item = String> {
    let words = OF_GUESTS.split_whitespace();
    words.map(|word| format!("vmlet_guest_{word}"))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split_whitespace()
        .map(|word| format!("container_{word}"))
}

/// Files of a pod's cgroup of version 2 as the kernel writes them.
const CGROUP: [(&str, &str); 8] = [
    (
        "cpu.stat",
        "usage_usec 7000000\nuser_usec 4000000\nsystem_usec 3000000\nnr_periods 8\n\
         nr_throttled 2\nthrottled_usec 5000000\n",
    ),
    ("memory.current", "9000\n"),
    (
        "memory.stat",
        "anon 4000\nfile 700\ninactive_file 500\nkernel 60\npgfault 11\n",
    ),
    ("memory.events", "max 6\noom_kill 1\n"),
    ("memory.swap.current", "50\n"),
    ("io.stat", "4242:1 rbytes=10 wbytes=20 rios=1 wios=2\n"),
    (
        "io.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n",
    ),
    ("cgroup.procs", "1\n"),
];

async fn pod_metrics(node: &Node, pod: SandboxConfig) -> v1::PodSandboxMetrics {
    let sandbox = node.sandboxes.run(pod).await.unwrap();
    let created = node.containers.create(&sandbox, node.machine(0)).await;
    let id = created.unwrap();
    node.containers.start(&id).await.unwrap();
    node.hypervisor.burn(id.domain(), 5 * SECOND);
    node.network.transfer(&sandbox, 10, 20);
    let snapshot = node.containers.stats().await;
    let details = node.containers.details().await;
    let row = node.sandbox_rows.get(&sandbox).unwrap();
    let usage = snapshot.pod(&sandbox);
    let sources = Sources {
        cpu: usage.cpu,
        memory: usage.memory,
        pressure: usage.pressure,
        disk: usage.disk,
        detail: details.for_sandbox(&sandbox),
        room: details.room.as_ref(),
        guest: Some(&report()),
    };
    let machine = snapshot.machine(&id);
    let container = of_container(&node.row(&id), &row, &machine, sources, 9 * SECOND as i64);
    of_sandbox(&row, &usage, sources, 9 * SECOND as i64, vec![container])
}

/// Names of metrics, which are checked against their descriptors.
fn checked(metrics: &[v1::Metric], seen: &mut HashSet<(String, Vec<String>)>) -> BTreeSet<String> {
    let keys: HashMap<_, _> = descriptors()
        .into_iter()
        .map(|d| (d.name, d.label_keys))
        .collect();
    for metric in metrics {
        let keys = &keys[&metric.name];
        assert_eq!(metric.label_values.len(), keys.len(), "{metric:?}");
        assert!(metric.value.is_some() && metric.timestamp > 0, "{metric:?}");
        let series = (metric.name.clone(), metric.label_values.clone());
        assert!(seen.insert(series), "twice: {metric:?}");
    }
    metrics.iter().map(|metric| metric.name.clone()).collect()
}

#[test]
fn every_name_is_described_once_with_help_and_labels() {
    let described: Vec<_> = descriptors().into_iter().map(|d| d.name).collect();
    let expected: BTreeSet<_> = [MANDATORY, WITHOUT_VALUES, OPTIONAL]
        .into_iter()
        .flat_map(words)
        .chain(of_guests())
        .collect();
    assert_eq!(described.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(described.len(), expected.len());
    for descriptor in descriptors() {
        assert!(!descriptor.help.is_empty(), "{}", descriptor.name);
        let keys: HashSet<_> = descriptor.label_keys.iter().collect();
        assert_eq!(
            keys.len(),
            descriptor.label_keys.len(),
            "{}",
            descriptor.name
        );
    }
}

#[tokio::test]
async fn a_pod_and_its_machine_have_all_mandatory_metrics() {
    let mut seen = HashSet::new();
    for cgroup_parent in ["", "/kubepods/pod1"] {
        let node = Node::new().await;
        let mut pod = node.pod(&format!("pod at {cgroup_parent}"));
        pod.cgroup_parent = cgroup_parent.to_owned();
        let of_pod = pod_metrics(&node, pod).await;
        let pod = checked(&of_pod.metrics, &mut seen);
        let missing: Vec<_> = words(MANDATORY)
            .filter(|name| !pod.contains(name))
            .collect();
        assert!(missing.is_empty(), "{cgroup_parent}: {missing:?}");
        let container = checked(&of_pod.container_metrics[0].metrics, &mut seen);
        let missing = words(MANDATORY).filter(|name| !container.contains(name));
        let missing: Vec<_> = missing.filter(|name| !name.contains("_network_")).collect();
        assert!(missing.is_empty(), "{cgroup_parent}: {missing:?}");
        let missing: Vec<_> = of_guests()
            .filter(|name| !container.contains(name))
            .collect();
        assert!(missing.is_empty(), "{cgroup_parent}: {missing:?}");
    }
}

#[tokio::test]
async fn figures_of_the_cgroup_come_first_and_a_sandbox_without_a_machine_has_its_limits() {
    let node = Node::new().await;
    let directory = node.cgroup_root().join("kubepods/pod1");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(node.cgroup_root().join("cgroup.controllers"), "cpu").unwrap();
    for (file, text) in CGROUP {
        std::fs::write(directory.join(file), text).unwrap();
    }
    let mut pod = node.pod("pod");
    pod.cgroup_parent = "/kubepods/pod1".to_owned();
    let of_pod = pod_metrics(&node, pod).await;
    let value = |metrics: &[v1::Metric], name: &str, label: &str| {
        let mut found = metrics.iter().filter(|metric| {
            let plain = metric.label_values.len() == BASE.len();
            metric.name == name && (plain || metric.label_values.iter().any(|l| l == label))
        });
        let metric = found.next().unwrap_or_else(|| panic!("no {name}"));
        metric.value.unwrap().value
    };
    for metrics in [&of_pod.metrics, &of_pod.container_metrics[0].metrics] {
        let of = |name: &str, label: &str| value(metrics, &format!("container_{name}"), label);
        assert_eq!(of("cpu_user_seconds_total", ""), 4);
        assert_eq!(of("cpu_cfs_throttled_seconds_total", ""), 5);
        assert_eq!(of("memory_cache", ""), 700);
        assert_eq!(of("memory_max_usage_bytes", ""), 9000);
        assert_eq!(of("memory_failures_total", "pgfault"), 11);
        assert_eq!(of("memory_swap", ""), 50);
        assert_eq!(of("oom_events_total", ""), 1);
        assert_eq!(of("processes", ""), 1);
        assert_eq!(of("fs_writes_bytes_total", "4242:1"), 20);
        assert_eq!(of("blkio_device_usage_total", "Read"), 10);
        assert_eq!(of("pressure_io_waiting_seconds_total", ""), 2);
        assert_eq!(of("last_seen", ""), 9);
    }
    assert_eq!(
        value(&of_pod.metrics, "container_cpu_usage_seconds_total", ""),
        7
    );
    let machine = &of_pod.container_metrics[0].metrics;
    assert_eq!(value(machine, "container_cpu_usage_seconds_total", ""), 5);
    let received = value(
        &of_pod.metrics,
        "container_network_receive_bytes_total",
        "eth0",
    );
    assert_eq!(received, 10);
    let labels = &machine[0].label_values;
    let names = [&*labels[1], &*labels[3], &*labels[4], &*labels[5]];
    assert_eq!(names, ["vm", "vm", "pod", "default"]);

    let idle = node.sandboxes.run(node.pod("idle")).await.unwrap();
    let row = node.sandbox_rows.get(&idle).unwrap();
    let idle = of_sandbox(
        &row,
        &PodUsage::default(),
        Sources::default(),
        1,
        Vec::new(),
    );
    let names = checked(&idle.metrics, &mut HashSet::new());
    assert!(names.contains("container_spec_cpu_period"), "{names:?}");
    assert!(!names.contains("container_memory_usage_bytes"), "{names:?}");
}
