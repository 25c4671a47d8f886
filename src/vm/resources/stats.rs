//! The resource usage of machines.
//!
//! Invariant: one look at a time, and at most one in [`FRESH`]: however many clients ask, libvirt
//! gets one request for all domains, the tapmanager one per few hundred sandboxes, and no call is
//! made for a single machine. A client waits at most two seconds.
//! Failure: what cannot be had is absent, or as old as its own time says; a look that takes too
//! long continues for the next client, and this one gets the last one.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use podspec::{ContainerId, SandboxId};
use tapmanager::wire::NicCounters;
use tokio::time::Instant;

use crate::foreign::Foreign;
use crate::vm::host::process::{Emulator, Processes};

mod host;
mod snapshot;

/// Age up to which a look serves again. Clients that compute rates look twice within a second.
const FRESH: Duration = Duration::from_millis(500);

/// What all machines had used at one time.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    machines: HashMap<ContainerId, Usage>,
    pods: HashMap<SandboxId, PodUsage>,
    /// When the look began.
    taken: Option<Instant>,
}

/// What one machine has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU of the emulator with all its threads.
    pub cpu: Option<Cpu>,
    /// Memory that the emulator takes on the node.
    pub memory: Option<Memory>,
    /// What its processes waited for, where the kernel counts it.
    pub pressure: Option<Pressure>,
    /// The emulator's process, where the daemon sees it.
    pub pid: Option<i32>,
}

/// What one sandbox has used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Of its cgroup, or of its machine where it has none.
    pub cpu: Option<Cpu>,
    /// Of its cgroup, or of its machine where it has none.
    pub memory: Option<Memory>,
    /// Of its cgroup.
    pub pressure: Option<Pressure>,
    /// Traffic of the guest's NICs, the primary one first.
    pub network: Option<Traffic>,
    /// What the root disk takes on the node.
    pub disk: Option<Disk>,
}

/// CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// Core-nanoseconds since the beginning.
    pub nanoseconds: u64,
    /// Core-nanoseconds per second since the look before; absent at the first one.
    pub rate: Option<u64>,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// The figures.
    pub now: cgroup::Memory,
}

/// Time lost to waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// The figures.
    pub now: cgroup::Pressures,
}

/// Traffic of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// As the guest sees it.
    pub nics: Vec<NicCounters>,
}

/// Space on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// Bytes that are allocated.
    pub bytes: u64,
    /// Files.
    pub inodes: u64,
}

impl Snapshot {
    /// What a machine has used; nothing for one that does not run.
    pub fn machine(&self, id: &ContainerId) -> Usage {
        self.machines.get(id).copied().unwrap_or_default()
    }

    /// What a sandbox has used.
    pub fn pod(&self, id: &SandboxId) -> PodUsage {
        self.pods.get(id).cloned().unwrap_or_default()
    }

    /// What the root disk of a sandbox takes.
    pub fn disk(&self, id: &SandboxId) -> Option<Disk> {
        self.pods.get(id)?.disk
    }

    fn is_fresh(&self) -> bool {
        self.taken.is_some_and(|taken| taken.elapsed() < FRESH)
    }
}

impl Cpu {
    /// A further sample after `last`; there is no rate across a new beginning.
    pub(in crate::vm) fn after(last: Option<Self>, at: i64, nanoseconds: u64) -> Self {
        let rate = last.and_then(|last| {
            let used = u128::from(nanoseconds.checked_sub(last.nanoseconds)?);
            let passed = u128::try_from(at - last.at)
                .ok()
                .filter(|passed| *passed > 0)?;
            u64::try_from(used * 1_000_000_000 / passed).ok()
        });
        Self {
            at,
            nanoseconds,
            rate,
        }
    }
}

/// The last look, and the turn for the next one.
#[derive(Debug, Default)]
pub(in crate::vm) struct Meter {
    last: RwLock<Arc<Snapshot>>,
    turn: tokio::sync::Mutex<()>,
    pub(in crate::vm) processes: Arc<Processes>,
    readers: host::Readers,
    pub(super) details: super::details::Reading,
    /// Of the programs of machines.
    pub(in crate::vm) programs: Foreign<()>,
    pub(super) disk_usage: super::usage::Meter,
}

impl Meter {
    fn last(&self) -> Arc<Snapshot> {
        Arc::clone(&self.last.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A look at a cgroup that does not come back until it is dropped.
    #[cfg(test)]
    pub(in crate::vm) fn hold_cgroup(&self, sandbox: SandboxId) -> impl Drop + use<> {
        self.readers.hold_cgroup(sandbox)
    }

    /// A read of a disk that does not come back until it is dropped.
    #[cfg(test)]
    pub(super) fn hold_disk(&self, sandbox: SandboxId) -> impl Drop + use<> {
        self.readers.hold_disk(sandbox)
    }

    /// Does something at the cgroup of a sandbox, in its turn among the reads of it. Without an
    /// answer in time what began goes on, and its result is dropped.
    pub(in crate::vm) async fn at_cgroup<T: Send + 'static>(
        &self,
        sandbox: SandboxId,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.readers.at_cgroup(sandbox, time, work).await
    }

    /// Does something at the emulator of a machine, as [`Self::at_cgroup`]; nothing if it does not
    /// run or the daemon does not see it.
    pub(in crate::vm) async fn at_machine<T: Send + 'static>(
        &self,
        id: ContainerId,
        emulator: Emulator,
        work: impl FnOnce(i32) -> T + Send + 'static,
    ) -> Option<T> {
        let processes = &self.processes;
        self.readers.at_machine(processes, id, emulator, work).await
    }

    /// How many of these machines' emulators end with the pod of this process; those that do not
    /// answer count as others.
    pub(super) async fn bound(&self, machines: Vec<(ContainerId, Emulator)>) -> usize {
        let processes = Arc::clone(&self.processes);
        let emulators = host::Emulators {
            processes,
            machines,
        };
        self.readers.bound(emulators).await
    }

    /// Looks for the processes of those of these machines of which they are not known.
    pub(super) async fn search(&self, machines: Vec<Emulator>, time: Duration) {
        self.readers.search(&self.processes, machines, time).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_samples_of_one_run() {
        let first = Cpu::after(None, 1_000_000_000, 500);
        assert_eq!(first.rate, None);
        let second = Cpu::after(Some(first), 3_000_000_000, 1_000_000_500);
        assert_eq!(second.rate, Some(500_000_000));
        for (at, nanoseconds) in [(4_000_000_000, 7), (3_000_000_000, 2_000_000_000)] {
            assert_eq!(Cpu::after(Some(second), at, nanoseconds).rate, None);
        }
    }
}
