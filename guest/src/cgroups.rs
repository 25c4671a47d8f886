//! The cgroups of kept sessions: limits, the end and the usage of all that a session has started.
//!
//! Invariant: a group has the processes of one session, wherever they have moved in the process
//! table. It is removed when the first process has ended, after all others were killed. Groups of an
//! earlier agent are killed: no host knows their sessions.
//! Failure: a guest without cgroup v2 has no groups; limits are refused there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guestapi::{LONGEST_NAME, SETTINGS, Setting};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::facts::mounts;

/// Where the agent mounts the hierarchy in a guest that does not.
const OWN_MOUNT: &str = "/run/vmlet-guest/cgroup";
/// The group of all groups.
const BASE: &str = "vmlet-guest";
const CONTROLLERS: [&str; 4] = ["cpu", "memory", "pids", "io"];
/// Time for killed processes to end: one that waits for a disk ends late.
const END: Duration = Duration::from_secs(5);
/// Passes over a group on kernels before 5.14.
const PASSES: usize = 100;

/// All groups.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    /// `None` in a guest without cgroup v2.
    base: Option<PathBuf>,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group(PathBuf);

/// What the processes of a group use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// Nanoseconds.
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
    /// Bytes of files in the page cache that were not used for some time.
    pub(crate) inactive_file: u64,
    pub(crate) anonymous: u64,
    /// `None` without their controller.
    pub(crate) processes: Option<u32>,
}

/// Why there is no group, or a limit is not set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "the name {0:?} of a session is not made of 1 to {LONGEST_NAME} letters, digits, - and _"
    )]
    Name(String),
    #[error("{0} limits are more than {SETTINGS}")]
    TooMany(usize),
    #[error("{0:?} is no limit of cgroup v2")]
    Limit(String),
    #[error(
        "the guest has no cgroup v2, which limits need: mount it, or omit the limits of the container"
    )]
    NoCgroups,
    #[error("make the cgroup {0}: {1}")]
    Make(PathBuf, io::Error),
    #[error("write {value:?} to {}: {error}: has the kernel of the guest this controller?", path.display())]
    Write {
        path: PathBuf,
        value: String,
        error: io::Error,
    },
}

impl Cgroups {
    /// Those of the guest; the hierarchy is mounted when it is not.
    pub(crate) fn of_guest() -> Self {
        let base = hierarchy().map(|root| root.join(BASE));
        let groups = base.and_then(|base| Self::below(base).ok());
        groups.unwrap_or_default()
    }

    /// Groups below this one, which is made. What an earlier agent left there ends.
    pub(crate) fn below(base: PathBuf) -> io::Result<Self> {
        match fs::create_dir(&base) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for entry in fs::read_dir(&base)?.flatten() {
            if entry.path().is_dir() {
                let left = Group(entry.path());
                left.kill();
                left.remove();
            }
        }
        for folder in base.parent().into_iter().chain([base.as_path()]) {
            for controller in CONTROLLERS {
                // A guest may have the controller in a hierarchy of version 1, or not at all.
                let value = format!("+{controller}");
                let _ = fs::write(folder.join("cgroup.subtree_control"), value);
            }
        }
        Ok(Self { base: Some(base) })
    }

    /// Makes the group of a session.
    pub(crate) fn make(&self, name: &str, limits: &[Setting]) -> Result<Option<Group>, Error> {
        let Some(base) = &self.base else {
            return match limits {
                [] => Ok(None),
                _ => Err(Error::NoCgroups),
            };
        };
        let group = Group(base.join(name));
        if group.0.exists() {
            // The last one of this name could not be removed in time.
            group.kill();
            group.remove();
        }
        fs::create_dir(&group.0).map_err(|error| Error::Make(group.0.clone(), error))?;
        group.set(limits).inspect_err(|_| group.remove())?;
        Ok(Some(group))
    }

    /// The group of a session whose first process runs.
    pub(crate) fn find(&self, name: &str) -> Option<Group> {
        let folder = self.base.as_ref()?.join(name);
        folder.is_dir().then_some(Group(folder))
    }

    pub(crate) const fn are_available(&self) -> bool {
        self.base.is_some()
    }
}

impl Group {
    /// Writes limits.
    pub(crate) fn set(&self, limits: &[Setting]) -> Result<(), Error> {
        if limits.len() > SETTINGS {
            return Err(Error::TooMany(limits.len()));
        }
        for Setting { name, value } in limits {
            if !is_limit(name) {
                return Err(Error::Limit(name.clone()));
            }
            let path = self.0.join(name);
            fs::write(&path, value).map_err(|error| Error::Write {
                path,
                value: value.clone(),
                error,
            })?;
        }
        Ok(())
    }

    /// A process that writes `0` to it joins the group.
    pub(crate) fn members(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .open(self.0.join("cgroup.procs"))
    }

    /// Kills all processes.
    pub(crate) fn kill(&self) {
        if fs::write(self.0.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        for _ in 0..PASSES {
            let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            let pids: Vec<i32> = members.lines().filter_map(|pid| pid.parse().ok()).collect();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                // It may have ended since.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Removes the group when its killed processes have ended; a later session of this name, or a
    /// later agent, removes it otherwise.
    pub(crate) fn remove(&self) {
        self.await_empty();
        remove(&self.0);
    }

    /// Whether the kernel has killed one of the processes because of the limit of memory.
    pub(crate) fn was_out_of_memory(&self) -> bool {
        let events = self.read("memory.events");
        field(&events, "oom_kill").is_some_and(|count| count > 0)
    }

    /// `None` without the controller of memory.
    pub(crate) fn used(&self) -> Option<Used> {
        let cpu = self.read("cpu.stat");
        let memory = self.read("memory.stat");
        Some(Used {
            cpu: field(&cpu, "usage_usec")?.saturating_mul(1000),
            memory: self.read("memory.current").trim().parse().ok()?,
            inactive_file: field(&memory, "inactive_file")?,
            anonymous: field(&memory, "anon")?,
            processes: self.read("pids.current").trim().parse().ok(),
        })
    }

    /// The kernel announces a change of `cgroup.events`.
    fn await_empty(&self) {
        let path = self.0.join("cgroup.events");
        let until = Instant::now() + END;
        let Ok(file) = File::open(&path) else {
            return;
        };
        loop {
            let events = fs::read_to_string(&path).unwrap_or_default();
            let left = until.saturating_duration_since(Instant::now());
            if field(&events, "populated") != Some(1) || left.is_zero() {
                return;
            }
            let mut watched = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
            // It ends by itself when the call fails.
            let time = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut watched, time);
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

/// Refuses a name that is not the name of one folder.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_plain) {
        Ok(())
    } else {
        Err(Error::Name(name.to_owned()))
    }
}

/// The files of controllers: those of the kernel's own core move processes and groups.
fn is_limit(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let has_controller = name.split_once('.').is_some_and(|(controller, rest)| {
        !controller.is_empty() && !rest.is_empty() && controller != "cgroup"
    });
    has_controller && name.chars().all(is_plain)
}

/// A line `NAME NUMBER`.
fn field(text: &str, name: &str) -> Option<u64> {
    let fields = text.lines().filter_map(|line| line.split_once(' '));
    let mut values = fields.filter(|(key, _)| *key == name);
    values.next()?.1.trim().parse().ok()
}

/// Removes a group and those that its processes have made.
fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    // It goes when it has no process.
    let _ = fs::remove_dir(folder);
}

/// Where the hierarchy is mounted.
fn hierarchy() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts(&table);
    let mut mounted = mounts.iter().filter(|mount| mount.kind == "cgroup2");
    if let Some(mount) = mounted.next() {
        return Some(PathBuf::from(&mount.point));
    }
    fs::create_dir_all(OWN_MOUNT).ok()?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let kind = Some(c"cgroup2");
    let nothing = None::<&str>;
    mount(kind, OWN_MOUNT, kind, flags, nothing).ok()?;
    Some(PathBuf::from(OWN_MOUNT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_limits_stay_in_their_folder() {
        assert!(check_name("0a-b_C").is_ok());
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a.b",
            "é",
            &"x".repeat(LONGEST_NAME + 1),
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [
            "memory.max",
            "cpu.max",
            "hugetlb.2MB.max",
            "memory.swap.max",
        ] {
            assert!(is_limit(name), "{name}");
        }
        for name in [
            "cgroup.procs",
            "memory",
            ".max",
            "memory.",
            "../x.max",
            "a/b.c",
            "",
        ] {
            assert!(!is_limit(name), "{name:?}");
        }
    }

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let text = "oom 3\noom_kill 1\noom_group_kill x\n";
        assert_eq!(field(text, "oom_kill"), Some(1));
        assert_eq!(field(text, "oom"), Some(3));
        assert_eq!(field(text, "oom_group_kill"), None);
        assert_eq!(field(text, "max"), None);
    }

    #[test]
    fn limits_need_groups() {
        let limit = Setting {
            name: "memory.max".to_owned(),
            value: "1".to_owned(),
        };
        let none = Cgroups::default();
        assert!(none.make("a", &[]).unwrap().is_none());
        assert!(matches!(none.make("a", &[limit]), Err(Error::NoCgroups)));
    }
}
