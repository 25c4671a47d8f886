//! The kernel's figures of machines, pods and disks.
//!
//! Invariant: only files are read, some per machine and none of a guest's making; all of it on
//! blocking threads. Each disk, cgroup and process is a source of its own: one that does not answer
//! keeps a thread and hides no other.
//! Failure: what cannot be read, or not in time, is absent.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cgroup::PodCgroup;
use podspec::{ContainerId, SandboxId};

use super::Disk;
use crate::clock;
use crate::foreign::Foreign;
use crate::vm::host::process::{Emulator, Processes, Resident};

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// Time for what is done at one process, and for the search for it.
const MOMENT: Duration = Duration::from_secs(2);

/// Readers of the kernel's files.
#[derive(Debug, Default)]
pub(super) struct Readers {
    disks: Foreign<SandboxId>,
    cgroups: Foreign<SandboxId>,
    machines: Foreign<ContainerId>,
    /// Looks for machines that have just started: of these there may be several, because each
    /// leaves out the processes that others hang at.
    searches: Foreign<u64>,
    last_search: AtomicU64,
}

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
    /// Every sandbox with the files of its root disk and, while its machine runs, its cgroup.
    pub(super) pods: Vec<(SandboxId, Vec<PathBuf>, Option<PodCgroup>)>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// When the reading ended, in nanoseconds since the epoch.
    pub(super) at: i64,
    pub(super) machines: Processed,
    pub(super) disks: HashMap<SandboxId, Disk>,
    pub(super) cgroups: HashMap<SandboxId, cgroup::Usage>,
}

/// Emulators that were found, and what they use.
pub(super) type Processed = HashMap<ContainerId, (i32, Option<Resident>)>;

impl Readers {
    /// Reads everything that answers within `time`.
    pub(super) async fn read(&self, emulators: Emulators, pods: Pods, time: Duration) -> Answers {
        let root = Arc::new(pods.cgroup_root);
        let mut disks = Vec::new();
        let mut cgroups = Vec::new();
        for (id, files, cgroup) in pods.pods {
            if let Some(pod) = cgroup {
                let root = Arc::clone(&root);
                cgroups.push((id.clone(), move || pod.usage(&root)));
            }
            disks.push((id, move || allocated(&files)));
        }
        let (machines, disks, cgroups) = tokio::join!(
            self.read_machines(emulators, time),
            self.disks.read_each(disks, time),
            self.cgroups.read_each(cgroups, time),
        );
        let disks = disks.into_iter();
        Answers {
            at: clock::now(),
            machines,
            disks: disks.filter_map(|(id, disk)| Some((id, disk?))).collect(),
            cgroups,
        }
    }

    /// Does something at the cgroup of a sandbox.
    pub(super) async fn at_cgroup<T: Send + 'static>(
        &self,
        sandbox: SandboxId,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.cgroups.read(sandbox, time, work).await
    }

    /// Does something at the emulator of a machine, if it is found.
    pub(super) async fn at_machine<T: Send + 'static>(
        &self,
        processes: &Arc<Processes>,
        id: ContainerId,
        emulator: Emulator,
        work: impl FnOnce(i32) -> T + Send + 'static,
    ) -> Option<T> {
        let look = || {
            let processes = Arc::clone(processes);
            move || processes.find_again(emulator.domain)
        };
        let known = self.machines.read(id.clone(), MOMENT, look()).await;
        if known.flatten().is_none() {
            self.search(processes, vec![emulator], MOMENT).await;
        }
        let look = look();
        let at = move || look().map(work);
        self.machines.read(id, MOMENT, at).await.flatten()
    }

    /// How many of these machines' emulators end with the pod of this process.
    pub(super) async fn bound(&self, emulators: Emulators) -> usize {
        let Emulators {
            processes,
            machines,
        } = emulators;
        let wanted = machines.iter().map(|(_, emulator)| *emulator).collect();
        self.search(&processes, wanted, MOMENT).await;
        let reads = machines.into_iter().map(|(id, emulator)| {
            let processes = Arc::clone(&processes);
            let read = move || {
                let pid = processes.find_again(emulator.domain);
                pid.is_some_and(|pid| processes.is_bound(pid))
            };
            (id, read)
        });
        let read = self.machines.read_each(reads.collect(), MOMENT).await;
        read.into_values().filter(|is_bound| *is_bound).count()
    }

    #[cfg(test)]
    pub(super) fn hold_cgroup(&self, sandbox: SandboxId) -> impl Drop + use<> {
        self.cgroups.hold(sandbox)
    }

    #[cfg(test)]
    pub(super) fn hold_disk(&self, sandbox: SandboxId) -> impl Drop + use<> {
        self.disks.hold(sandbox)
    }

    async fn read_machines(&self, emulators: Emulators, time: Duration) -> Processed {
        let Emulators {
            processes,
            machines,
        } = emulators;
        let wanted: Vec<_> = machines.iter().map(|(_, emulator)| *emulator).collect();
        processes.keep(&wanted);
        self.search(&processes, wanted, time / 2).await;
        let reads = machines.into_iter().map(|(id, emulator)| {
            let processes = Arc::clone(&processes);
            let read = move || {
                let pid = processes.find_again(emulator.domain)?;
                Some((pid, processes.resident(pid)))
            };
            (id, read)
        });
        let read = self.machines.read_each(reads.collect(), time / 2).await;
        let read = read.into_iter();
        read.filter_map(|(id, found)| Some((id, found?))).collect()
    }

    /// Looks for those that have not been found before.
    pub(super) async fn search(
        &self,
        processes: &Arc<Processes>,
        mut machines: Vec<Emulator>,
        time: Duration,
    ) {
        machines.retain(|emulator| !processes.has_found(emulator.domain));
        if machines.is_empty() {
            return;
        }
        let processes = Arc::clone(processes);
        let number = self.last_search.fetch_add(1, Ordering::Relaxed);
        let search = move || drop(processes.find(&machines));
        self.searches.read(number, time, search).await;
    }
}

/// What the files of a disk take together.
fn allocated(files: &[PathBuf]) -> Option<Disk> {
    let mut disk = Disk {
        at: clock::now(),
        bytes: 0,
        inodes: 0,
    };
    for file in files {
        let file = std::fs::symlink_metadata(file).ok()?;
        let bytes = file.blocks().saturating_mul(BLOCK);
        disk.bytes = disk.bytes.saturating_add(bytes);
        disk.inodes += 1;
    }
    Some(disk)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::vm::host::process::plant;

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_answer_delays_what_is_done_at_it_and_at_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut machines = Vec::new();
        for number in [1, 2] {
            let domain = Uuid::from_u128(number);
            let pid = i32::try_from(number).unwrap();
            plant(dir.path(), pid, &format!("qemu\0-uuid\0{domain}"), 7);
            let emulator = Emulator { domain, user: 7 };
            machines.push((ContainerId::generate(), emulator));
        }
        let processes = Arc::new(Processes::below(dir.path()));
        let readers = Readers::default();
        let turn = readers.machines.hold(machines[0].0.clone());
        let mut found = Vec::new();
        for (id, emulator) in &machines {
            let at = readers.at_machine(&processes, id.clone(), *emulator, |pid| pid);
            found.push(at.await);
        }
        assert_eq!(found, [None, Some(2)]);
        drop(turn);
        let [first, second] = <[_; 2]>::try_from(machines).unwrap();
        let at = readers.at_machine(&processes, first.0, first.1, |pid| pid);
        assert_eq!(at.await, Some(1));

        // Its number is another process's now: the emulator is looked for again.
        plant(dir.path(), 2, "other", 8);
        let domain = second.1.domain;
        plant(dir.path(), 3, &format!("qemu\0-uuid\0{domain}"), 9);
        let at = readers.at_machine(&processes, second.0, second.1, |pid| pid);
        assert_eq!(at.await, Some(3));
    }
}
