//! One snapshot of the usage of all machines.
//!
//! Invariant: libvirt, the tapmanager and the kernel are asked at the same time, each with a
//! deadline. A machine's memory is that of its pod's cgroup, which holds nothing else, because it
//! is what kubelet limits and evicts by; without a cgroup it is what its emulator has in memory.
//! Failure: without libvirt the CPU time is that of the emulator's process in `/proc`; without both
//! it is that of the last look, with its own time; without the tapmanager so is the traffic. So are
//! the figures of a disk or a cgroup that does not answer, and of no other.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cgroup::PodCgroup;
use libvirt::{DomainStats, Hypervisor};
use tapmanager::wire::NicCounters;
use tokio::time::Instant;
use uuid::Uuid;

use super::host::{Answers, Emulators, Pods};
use super::{Cpu, Memory, PodUsage, Pressure, Snapshot, Traffic, Usage};
use crate::clock;
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::sandbox::{Sandbox, state::Phase};
use crate::vm::host::process::Resident;
use crate::vm::{Container, Containers};

/// Time for each of those that are asked: less than `vmlet-criproxy` waits for a part of a list.
const DEADLINE: Duration = Duration::from_millis(1500);

/// Longest time that a client waits for a snapshot.
const TIMEOUT: Duration = Duration::from_millis(1800);

impl<P: Platform> Containers<P> {
    /// What all machines have used, as of now or a moment ago. Always answers within two seconds.
    pub async fn stats(self: &Arc<Self>) -> Arc<Snapshot> {
        let last = self.meter.last();
        if last.is_fresh() {
            return last;
        }
        let this = Arc::clone(self);
        let task = tokio::spawn(async move { this.snapshot_once().await });
        match tokio::time::timeout(TIMEOUT, task).await {
            Ok(Ok(snapshot)) => snapshot,
            _ => self.meter.last(),
        }
    }

    /// A snapshot, unless another task has just taken one.
    async fn snapshot_once(&self) -> Arc<Snapshot> {
        let _turn = self.meter.turn.lock().await;
        let last = self.meter.last();
        if last.is_fresh() {
            return last;
        }
        let snapshot = Arc::new(self.snapshot(&last).await);
        let mut published = self
            .meter
            .last
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *published = Arc::clone(&snapshot);
        snapshot
    }

    async fn snapshot(&self, last: &Snapshot) -> Snapshot {
        let taken = Some(Instant::now());
        let mut running = self.parts.table.all();
        running.retain(|row| row.phase.runs() && !row.is_process());
        let sandboxes = self.parts.sandboxes.all();
        let ready = sandboxes.iter().any(|s| s.phase == Phase::Ready);
        let (domains, traffic, host) = tokio::join!(
            answered(
                "libvirt",
                !running.is_empty(),
                self.parts.hypervisor.stats()
            ),
            answered("vmlet-tapmanager", ready, self.parts.network.counters()),
            self.ask_host(&running, &sandboxes),
        );
        let at = clock::now();
        let domains: HashMap<Uuid, DomainStats> = domains
            .into_iter()
            .flatten()
            .map(|d| (d.domain, d))
            .collect();
        let mut machines = HashMap::new();
        let mut of_sandbox = HashMap::new();
        for row in &running {
            let used = domains.get(&row.domain());
            let before = last.machine(&row.id).cpu;
            let cpu = used.and_then(|domain| domain.cpu_nanoseconds);
            let process = host.machines.get(&row.id).and_then(|(_, found)| *found);
            let cpu = cpu.or(process.map(|process| process.cpu_nanoseconds));
            let usage = Usage {
                cpu: cpu.map(|used| Cpu::after(before, at, used)).or(before),
                ..from_host(row, &host)
            };
            machines.insert(row.id.clone(), usage);
            of_sandbox.insert(row.sandbox.clone(), usage);
        }
        let traffic: Option<HashMap<_, _>> =
            traffic.map(|all| all.into_iter().map(|s| (s.id, s.nics)).collect());
        let pods = sandboxes.iter().map(|sandbox| {
            let machine = of_sandbox.get(&sandbox.id).copied().unwrap_or_default();
            let nics = traffic
                .as_ref()
                .and_then(|all| all.get(sandbox.id.as_str()));
            let before = last.pod(&sandbox.id);
            (
                sandbox.id.clone(),
                pod(sandbox, before, machine, nics, &host),
            )
        });
        Snapshot {
            pods: pods.collect(),
            machines,
            taken,
        }
    }

    async fn ask_host(&self, running: &[Arc<Container>], all: &[Arc<Sandbox>]) -> Answers {
        let of_running: HashMap<_, _> = running.iter().map(|row| (&row.sandbox, row)).collect();
        let pod = |sandbox: &Arc<Sandbox>| {
            let row = of_running.get(&sandbox.id);
            let cgroup = PodCgroup::parse(&sandbox.config.cgroup_parent).ok();
            let files = match row {
                Some(row) => self.root_files(row),
                None => vec![self.paths.root_disk(&sandbox.id)],
            };
            (sandbox.id.clone(), files, cgroup.filter(|_| row.is_some()))
        };
        let emulators = Emulators {
            processes: Arc::clone(&self.meter.processes),
            machines: running
                .iter()
                .map(|row| (row.id.clone(), self.emulator(row)))
                .collect(),
        };
        let pods = Pods {
            cgroup_root: self.settings.cgroup_root.clone(),
            pods: all.iter().map(pod).collect(),
        };
        self.meter.readers.read(emulators, pods, DEADLINE).await
    }
}

/// The answer, if it comes in time and is needed at all.
async fn answered<T, E: std::error::Error>(
    whom: &str,
    needed: bool,
    request: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    if !needed {
        return None;
    }
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(e)) => {
            tracing::debug!(
                whom,
                error = crate::one_line(&e),
                "statistics not available"
            );
            None
        }
        Err(_) => {
            tracing::debug!(
                whom,
                error = "no answer in time",
                "statistics not available"
            );
            None
        }
    }
}

/// Process and memory of a machine.
fn from_host(row: &Container, host: &Answers) -> Usage {
    let of_pod = host.cgroups.get(&row.sandbox).copied().unwrap_or_default();
    let process = host.machines.get(&row.id);
    let resident = process.and_then(|(_, resident)| *resident).map(plain);
    Usage {
        cpu: None,
        memory: of_pod
            .memory
            .or(resident)
            .map(|now| Memory { at: host.at, now }),
        pressure: pressure(host.at, of_pod.pressure),
        pid: process.map(|(pid, _)| *pid),
    }
}

/// Absent where the kernel counts none.
fn pressure(at: i64, now: cgroup::Pressures) -> Option<Pressure> {
    (now != cgroup::Pressures::default()).then_some(Pressure { at, now })
}

/// The memory of a process that no cgroup accounts for.
const fn plain(resident: Resident) -> cgroup::Memory {
    cgroup::Memory {
        usage: resident.bytes,
        working_set: resident.bytes,
        rss: resident.bytes,
        page_faults: resident.faults,
        major_page_faults: resident.major_faults,
        limit: None,
        swap: Some(resident.swapped),
        swap_limit: None,
    }
}

fn pod(
    sandbox: &Sandbox,
    before: PodUsage,
    machine: Usage,
    nics: Option<&Vec<NicCounters>>,
    host: &Answers,
) -> PodUsage {
    let disk = host.disks.get(&sandbox.id).copied();
    let of_cgroup = host.cgroups.get(&sandbox.id).copied().unwrap_or_default();
    let cpu = of_cgroup.cpu_nanoseconds;
    let network = nics.map(|nics| Traffic {
        at: clock::now(),
        nics: nics.clone(),
    });
    PodUsage {
        cpu: cpu
            .map(|used| Cpu::after(before.cpu, host.at, used))
            .or(machine.cpu),
        memory: machine.memory,
        pressure: pressure(host.at, of_cgroup.pressure),
        network: network.or(before.network.filter(|_| sandbox.phase == Phase::Ready)),
        disk: disk.or(before.disk),
    }
}
