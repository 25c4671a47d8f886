//! Figures of machines for metrics, beyond their statistics.
//!
//! Invariant: one reading at a time, and at most one in [`FRESH`]: a client that finds one in
//! progress waits for it. Only files are read, on blocking threads, and a client waits at most
//! [`TIMEOUT`]. Each sandbox is a source of its own: one that does not answer hides no other.
//! Failure: what cannot be read, or not in time, is absent.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::foreign::Foreign;
use crate::vm::host::process::Emulator;
use cgroup::{DeviceIo, PodCgroup};
use nix::sys::statvfs::statvfs;
use podspec::SandboxId;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::clock;
use crate::platform::Platform;
use crate::sandbox::{Sandbox, state::Phase};
use crate::vm::host::process::{ProcessDetail, Processes};
use crate::vm::service::Containers;

/// Age up to which a reading serves again.
const FRESH: Duration = Duration::from_millis(500);

/// Longest time that a client waits.
const TIMEOUT: Duration = Duration::from_millis(1900);

/// Time for the search for new emulators.
const SEARCH: Duration = Duration::from_millis(400);

/// Time for a reading.
const READING: Duration = Duration::from_millis(1400);

/// What was read of all sandboxes that are ready.
#[derive(Debug, Clone, Default)]
pub struct Details {
    sandboxes: HashMap<SandboxId, Detail>,
    /// The file system of disks.
    pub room: Option<Room>,
}

/// What was read of one sandbox. Its cgroup holds nothing but its machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// Of its cgroup, where it has one.
    pub cgroup: Option<cgroup::Detail>,
    /// Processes that the kernel killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Of the emulator, where it runs and the daemon sees it.
    pub process: Option<ProcessDetail>,
    /// Traffic of block devices, with their names.
    pub devices: Vec<(String, DeviceIo)>,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Its device.
    pub device: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Files that it can have.
    pub inodes: u64,
    /// Files that it can have in addition.
    pub free_inodes: u64,
}

/// The last reading, and the turn for the next one.
#[derive(Debug, Default)]
pub(super) struct Reading {
    last: Mutex<Option<(Instant, Arc<Details>)>>,
    sandboxes: Foreign<SandboxId>,
    /// The node's file system.
    node: Foreign<()>,
}

/// What is to be read.
struct Plan {
    processes: Arc<Processes>,
    cgroup_root: PathBuf,
    state_dir: PathBuf,
    sandboxes: Vec<Wanted>,
}

struct Wanted {
    id: SandboxId,
    cgroup: Option<PodCgroup>,
    /// The domain of its machine, while it runs.
    emulator: Option<Emulator>,
}

impl Details {
    /// What was read of a sandbox.
    pub fn for_sandbox(&self, id: &SandboxId) -> Option<&Detail> {
        self.sandboxes.get(id)
    }
}

impl<P: Platform> Containers<P> {
    /// Details as of now or a moment ago. Answers within two seconds, with what answered.
    pub async fn details(&self) -> Arc<Details> {
        let reading = &self.meter.details;
        let read = async {
            let mut last = reading.last.lock().await;
            if let Some((taken, details)) = &*last
                && taken.elapsed() < FRESH
            {
                return Arc::clone(details);
            }
            let taken = Instant::now();
            let plan = self.plan();
            let emulators = plan.sandboxes.iter().filter_map(|wanted| wanted.emulator);
            self.meter.search(emulators.collect(), SEARCH).await;
            let details = Arc::new(plan.read(reading).await);
            *last = Some((taken, Arc::clone(&details)));
            details
        };
        timeout(TIMEOUT, read).await.unwrap_or_default()
    }

    fn plan(&self) -> Plan {
        let mut running = self.parts.table.all();
        running.retain(|row| row.phase.runs() && !row.is_process());
        let running: HashMap<_, _> = running.iter().map(|row| (&row.sandbox, row)).collect();
        let mut sandboxes = self.parts.sandboxes.all();
        sandboxes.retain(|sandbox| sandbox.phase == Phase::Ready);
        let one = |sandbox: &Arc<Sandbox>| Wanted {
            id: sandbox.id.clone(),
            cgroup: PodCgroup::parse(&sandbox.config.cgroup_parent).ok(),
            emulator: running.get(&sandbox.id).map(|row| self.emulator(row)),
        };
        Plan {
            processes: Arc::clone(&self.meter.processes),
            cgroup_root: self.settings.cgroup_root.clone(),
            state_dir: self.settings.state_dir.clone(),
            sandboxes: sandboxes.iter().map(one).collect(),
        }
    }
}

impl Plan {
    async fn read(self, reading: &Reading) -> Details {
        let root = Arc::new(self.cgroup_root);
        let one = |wanted: Wanted| {
            let processes = Arc::clone(&self.processes);
            let root = Arc::clone(&root);
            (wanted.id.clone(), move || wanted.read(&processes, &root))
        };
        let sandboxes: Vec<_> = self.sandboxes.into_iter().map(one).collect();
        let directory = self.state_dir;
        let (sandboxes, room) = tokio::join!(
            reading.sandboxes.read_each(sandboxes, READING),
            reading.node.read((), READING, move || room(&directory)),
        );
        Details {
            sandboxes,
            room: room.flatten(),
        }
    }
}

impl Wanted {
    fn read(&self, processes: &Processes, cgroup_root: &Path) -> Detail {
        let cgroup = self.cgroup.as_ref();
        let detail = cgroup.map(|pod| pod.detail(cgroup_root));
        // Nothing was found: there is no such directory.
        let detail = detail.filter(|found| *found != cgroup::Detail::default());
        let traffic = detail.iter().flat_map(|detail| &detail.io);
        let devices = traffic.map(|io| (device(io.major, io.minor), *io));
        let pid = self
            .emulator
            .and_then(|one| processes.find_again(one.domain));
        Detail {
            at: clock::now(),
            devices: devices.collect(),
            oom_kills: cgroup.and_then(|pod| pod.oom_kills(cgroup_root)),
            process: pid.map(|pid| processes.detail(pid)),
            cgroup: detail,
        }
    }
}

fn room(directory: &Path) -> Option<Room> {
    let found = statvfs(directory).ok()?;
    let number = std::fs::metadata(directory).ok()?.dev();
    let major = nix::sys::stat::major(number);
    let minor = nix::sys::stat::minor(number);
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Some(Room {
        device: device(number(major), number(minor)),
        bytes: found.blocks().saturating_mul(found.fragment_size()),
        inodes: found.files(),
        free_inodes: found.files_free(),
    })
}

/// `/dev/sda`; `8:0` when the kernel has no name for it, as for a file system without a device.
fn device(major: u32, minor: u32) -> String {
    let number = format!("{major}:{minor}");
    let event = std::fs::read_to_string(format!("/sys/dev/block/{number}/uevent"));
    let event = event.unwrap_or_default();
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map_or(number, |name| format!("/dev/{name}"))
}
