//! Conversions of the usage of containers and sandboxes.
//!
//! Invariant: attributes and metadata are always there; a figure that is not known is absent, never
//! zero. The mount point of a writable layer exists on the node.
//! Failure: none.

use std::path::Path;

use cri_proto::v1;
use tapmanager::wire::NicCounters;

use super::{container, sandbox};
use crate::sandbox::Sandbox;
use crate::vm::Container;
use crate::vm::stats::{Cpu, Disk, Memory, PodUsage, Pressure, Traffic, Usage};

/// The statistics of a container; `disk` is there for the one that has the sandbox's root disk.
pub(in crate::cri) fn of_container(
    row: &Container,
    usage: &Usage,
    disk: Option<Disk>,
    state_dir: &Path,
) -> v1::ContainerStats {
    let config = &row.spec.config;
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: row.id.to_string(),
            metadata: Some(container::metadata(&config.metadata)),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        }),
        cpu: usage.cpu.map(|used| cpu(used, usage.pressure)),
        memory: usage.memory.map(|used| memory(used, usage.pressure)),
        writable_layer: disk.map(|disk| v1::FilesystemUsage {
            timestamp: disk.at,
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: state_dir.to_string_lossy().into_owned(),
            }),
            used_bytes: number(disk.bytes),
            inodes_used: number(disk.inodes),
        }),
        swap: usage.memory.and_then(swap),
        io: usage.pressure.and_then(io),
    }
}

/// The statistics of a sandbox with its containers.
pub(in crate::cri) fn of_sandbox(
    row: &Sandbox,
    usage: &PodUsage,
    processes: u64,
    at: i64,
    containers: Vec<v1::ContainerStats>,
) -> v1::PodSandboxStats {
    v1::PodSandboxStats {
        attributes: Some(v1::PodSandboxAttributes {
            id: row.id.to_string(),
            metadata: Some(sandbox::wire_metadata(&row.config.metadata)),
            labels: row.config.labels.clone(),
            annotations: row.config.annotations.clone(),
        }),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu: usage.cpu.map(|used| cpu(used, usage.pressure)),
            memory: usage.memory.map(|used| memory(used, usage.pressure)),
            network: usage.network.as_ref().map(network),
            process: Some(v1::ProcessUsage {
                timestamp: at,
                process_count: number(processes),
            }),
            containers,
            io: usage.pressure.and_then(io),
        }),
        windows: None,
    }
}

fn cpu(cpu: Cpu, pressure: Option<Pressure>) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp: cpu.at,
        usage_core_nano_seconds: number(cpu.nanoseconds),
        usage_nano_cores: cpu.rate.and_then(number),
        psi: pressure.and_then(|found| found.now.cpu).map(psi),
    }
}

fn memory(memory: Memory, pressure: Option<Pressure>) -> v1::MemoryUsage {
    let now = memory.now;
    let left = now.limit.map(|limit| limit.saturating_sub(now.working_set));
    v1::MemoryUsage {
        timestamp: memory.at,
        working_set_bytes: number(now.working_set),
        available_bytes: left.and_then(number),
        usage_bytes: number(now.usage),
        rss_bytes: number(now.rss),
        page_faults: number(now.page_faults),
        major_page_faults: number(now.major_page_faults),
        psi: pressure.and_then(|found| found.now.memory).map(psi),
    }
}

/// Absent where the kernel does not count swap.
fn swap(memory: Memory) -> Option<v1::SwapUsage> {
    let used = memory.now.swap?;
    let left = memory
        .now
        .swap_limit
        .map(|limit| limit.saturating_sub(used));
    Some(v1::SwapUsage {
        timestamp: memory.at,
        swap_available_bytes: left.and_then(number),
        swap_usage_bytes: number(used),
    })
}

/// Absent where the kernel does not count waiting for disks.
fn io(pressure: Pressure) -> Option<v1::IoUsage> {
    Some(v1::IoUsage {
        timestamp: pressure.at,
        psi: Some(psi(pressure.now.io?)),
    })
}

fn psi(pressure: cgroup::Pressure) -> v1::PsiStats {
    let data = |stall: cgroup::Stall| v1::PsiData {
        total: stall.total_micros,
        avg10: f64::from(stall.avg10) / 100.0,
        avg60: f64::from(stall.avg60) / 100.0,
        avg300: f64::from(stall.avg300) / 100.0,
    };
    v1::PsiStats {
        full: pressure.full.map(data),
        some: Some(data(pressure.some)),
    }
}

fn network(traffic: &Traffic) -> v1::NetworkUsage {
    let mut nics = traffic.nics.iter().map(nic);
    v1::NetworkUsage {
        timestamp: traffic.at,
        default_interface: nics.next(),
        interfaces: nics.collect(),
    }
}

fn nic(nic: &NicCounters) -> v1::NetworkInterfaceUsage {
    v1::NetworkInterfaceUsage {
        name: nic.link.clone(),
        rx_bytes: number(nic.rx_bytes),
        rx_errors: number(nic.rx_errors),
        tx_bytes: number(nic.tx_bytes),
        tx_errors: number(nic.tx_errors),
    }
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "every number of these messages is optional"
)]
const fn number(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}
