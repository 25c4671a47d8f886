//! Figures of machines for metrics, beyond their statistics.
//!
//! Invariant: one reading at a time, and at most one in [`FRESH`]: a client that finds one in
//! progress waits for it. Only files are read, on a blocking thread, and a client waits at most
//! [`TIMEOUT`].
//! Failure: what cannot be read, or not in time, is absent.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::vm::host::process::Emulator;
use cgroup::{DeviceIo, PodCgroup};
use nix::sys::statvfs::statvfs;
use podspec::SandboxId;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::clock;
use crate::platform::Platform;
use crate::sandbox::{Sandbox, state::Phase};
use crate::vm::host::process::{ProcessDetail, Processes};
use crate::vm::service::Containers;

/// Age up to which a reading serves again.
const FRESH: Duration = Duration::from_millis(500);

/// Longest time that a client waits.
const TIMEOUT: Duration = Duration::from_secs(4);

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

/// The last reading.
pub(super) type Reading = Arc<Mutex<Option<(Instant, Arc<Details>)>>>;

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
    pub fn of(&self, id: &SandboxId) -> Option<&Detail> {
        self.sandboxes.get(id)
    }
}

impl<P: Platform> Containers<P> {
    /// Details as of now or a moment ago. Answers within four seconds; with nothing, when a file
    /// system does not respond.
    pub async fn details(&self) -> Arc<Details> {
        let reading = Arc::clone(&self.meter.details);
        let read = async {
            // The thread keeps the turn, also when its client has gone.
            let mut turn = reading.lock_owned().await;
            if let Some((taken, details)) = &*turn
                && taken.elapsed() < FRESH
            {
                return Arc::clone(details);
            }
            let (taken, plan) = (Instant::now(), self.plan());
            let work = spawn_blocking(move || {
                let details = Arc::new(plan.read());
                *turn = Some((taken, Arc::clone(&details)));
                details
            });
            work.await.unwrap_or_default()
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
    fn read(&self) -> Details {
        let emulators = self.sandboxes.iter().filter_map(|wanted| wanted.emulator);
        let emulators: Vec<_> = emulators.collect();
        let pids = self.processes.find(&emulators);
        let mut names = HashMap::new();
        let sandboxes = self.sandboxes.iter().map(|wanted| {
            let cgroup = wanted.cgroup.as_ref();
            let detail = cgroup.map(|pod| pod.detail(&self.cgroup_root));
            // Nothing was found: there is no such directory.
            let detail = detail.filter(|found| *found != cgroup::Detail::default());
            let traffic = detail.iter().flat_map(|detail| &detail.io);
            let devices = traffic.map(|io| (name_of(&mut names, io.major, io.minor), *io));
            let emulator = wanted.emulator.as_ref();
            let pid = emulator.and_then(|emulator| pids.get(&emulator.domain));
            let of_pod = Detail {
                at: clock::now(),
                devices: devices.collect(),
                oom_kills: cgroup.and_then(|pod| pod.oom_kills(&self.cgroup_root)),
                process: pid.map(|pid| self.processes.detail(*pid)),
                cgroup: detail,
            };
            (wanted.id.clone(), of_pod)
        });
        Details {
            sandboxes: sandboxes.collect(),
            room: room(&self.state_dir),
        }
    }
}

fn room(directory: &Path) -> Option<Room> {
    let found = statvfs(directory).ok()?;
    let number = std::fs::metadata(directory).ok()?.dev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Some(Room {
        device: device(number(major), number(minor)),
        bytes: found.blocks().saturating_mul(found.fragment_size()),
        inodes: found.files(),
        free_inodes: found.files_free(),
    })
}

fn name_of(names: &mut HashMap<(u32, u32), String>, major: u32, minor: u32) -> String {
    let name = names.entry((major, minor));
    name.or_insert_with(|| device(major, minor)).clone()
}

/// `/dev/sda`; `8:0` when the kernel has no name for it, as for a file system without a device.
fn device(major: u32, minor: u32) -> String {
    let number = format!("{major}:{minor}");
    let event = std::fs::read_to_string(format!("/sys/dev/block/{number}/uevent"));
    let event = event.unwrap_or_default();
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map_or(number, |name| format!("/dev/{name}"))
}
