//! The kernel's figures of machines, pods and disks.
//!
//! Invariant: only files are read, some per machine and none of a guest's making; all of it on a
//! blocking thread.
//! Failure: what cannot be read is absent.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::vm::host::process::Emulator;
use cgroup::PodCgroup;
use podspec::{ContainerId, SandboxId};

use super::Disk;
use crate::clock;
use crate::vm::host::process::{Processes, Resident};

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// Which processes are looked for.
#[derive(Debug)]
pub(super) struct Emulators {
    pub(super) processes: Arc<Processes>,
    /// Machines that run.
    pub(super) machines: Vec<(ContainerId, Emulator)>,
}

/// Which pods are checked.
#[derive(Debug)]
pub(super) struct Pods {
    pub(super) cgroup_root: PathBuf,
    /// Every sandbox with its root disk and, while its machine runs, its cgroup.
    pub(super) pods: Vec<(SandboxId, PathBuf, Option<PodCgroup>)>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// When the reading ended, in nanoseconds since the epoch.
    pub(super) at: i64,
    pub(super) machines: Processed,
    pub(super) pods: HashMap<SandboxId, (Option<Disk>, cgroup::Usage)>,
}

/// Emulators that were found, and what they use.
pub(super) type Processed = HashMap<ContainerId, (i32, Option<Resident>)>;

impl Emulators {
    /// Reads everything. Blocks, also on a process that is that does not respond.
    pub(super) fn read(&self) -> Processed {
        let wanted: Vec<_> = self
            .machines
            .iter()
            .map(|(_, emulator)| *emulator)
            .collect();
        let pids = self.processes.find(&wanted);
        let found = self.machines.iter().filter_map(|(id, emulator)| {
            let pid = *pids.get(&emulator.domain)?;
            Some((id.clone(), (pid, self.processes.resident(pid))))
        });
        found.collect()
    }
}

impl Pods {
    /// Reads everything. Blocks, also on a disk that is that does not respond.
    pub(super) fn read(&self) -> HashMap<SandboxId, (Option<Disk>, cgroup::Usage)> {
        let pods = self.pods.iter().map(|(id, disk, cgroup)| {
            let usage = cgroup.as_ref().map(|pod| pod.usage(&self.cgroup_root));
            (id.clone(), (allocated(disk), usage.unwrap_or_default()))
        });
        pods.collect()
    }
}

fn allocated(disk: &PathBuf) -> Option<Disk> {
    let file = std::fs::symlink_metadata(disk).ok()?;
    Some(Disk {
        at: clock::now(),
        bytes: file.blocks().saturating_mul(BLOCK),
        inodes: 1,
    })
}
