//! What the node's kernel says of machines, pods and disks.
//!
//! Invariant: only files are read, some per machine and none of a guest's making; all of it on a blocking thread.
//! Failure: what cannot be read is absent.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use cgroup::PodCgroup;
use podspec::{ContainerId, SandboxId};

use super::Disk;
use crate::clock;
use crate::vm::process::{Processes, Resident};

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// What is to be read.
#[derive(Debug)]
pub(super) struct Questions {
    pub(super) processes: Arc<Processes>,
    pub(super) cgroup_root: PathBuf,
    /// The user that QEMU runs as.
    pub(super) user: u32,
    /// Machines that run.
    pub(super) machines: Vec<ContainerId>,
    /// Every sandbox with its root disk and, while its machine runs, its cgroup.
    pub(super) pods: Vec<(SandboxId, PathBuf, Option<PodCgroup>)>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// When the reading ended, in nanoseconds since the epoch.
    pub(super) at: i64,
    pub(super) machines: HashMap<ContainerId, (i32, Option<Resident>)>,
    pub(super) pods: HashMap<SandboxId, (Option<Disk>, cgroup::Usage)>,
}

impl Questions {
    /// Reads everything. Blocks.
    pub(super) fn answer(&self) -> Answers {
        let domains: Vec<_> = self.machines.iter().map(|id| id.domain()).collect();
        let pids = self.processes.find(&domains, self.user);
        let machines = self.machines.iter().filter_map(|id| {
            let pid = *pids.get(&id.domain())?;
            Some((id.clone(), (pid, self.processes.resident(pid))))
        });
        let pods = self.pods.iter().map(|(id, disk, cgroup)| {
            let usage = cgroup.as_ref().map(|pod| pod.usage(&self.cgroup_root));
            (id.clone(), (allocated(disk), usage.unwrap_or_default()))
        });
        let (machines, pods) = (machines.collect(), pods.collect());
        Answers {
            at: clock::now(),
            machines,
            pods,
        }
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
