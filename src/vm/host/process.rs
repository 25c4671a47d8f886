//! Finds the process of a machine.
//!
//! Invariant: a process is believed to be a domain's emulator when its command line shows it and
//! its user is QEMU's; a number that was used again is noticed by the time of the process's start.
//! Nothing is ever killed by such a number.
//! Failure: what is not found is absent: the machine has ended, or the daemon does not see the
//! node's processes.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cgroup::ContainerPod;
use uuid::Uuid;

mod detail;

pub(in crate::vm) use detail::ProcessDetail;

/// Longest command line that is read, in bytes; libvirt's have some 4 KiB.
const LONGEST: u64 = 128 * 1024;

/// Nanoseconds of a clock tick as the kernel shows them to processes: always a hundredth of a
/// second on Linux.
const TICK: u64 = 10_000_000;

/// The option by which libvirt passes the domain's UUID to QEMU.
const UUID_OPTION: &[u8] = b"-uuid";

/// Emulators that were found.
#[derive(Debug)]
pub(in crate::vm) struct Processes {
    proc: PathBuf,
    known: Mutex<HashMap<Uuid, Process>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    /// Clock ticks from the node's boot to the process's start.
    started: u64,
}

/// What one process uses; memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vm) struct Resident {
    /// CPU time of all threads in nanoseconds, as libvirt reports it, too.
    pub(in crate::vm) cpu_nanoseconds: u64,
    /// Pages that are in memory.
    pub(in crate::vm) bytes: u64,
    /// Pages that were swapped out.
    pub(in crate::vm) swapped: u64,
    /// Page faults so far.
    pub(in crate::vm) faults: u64,
    /// Page faults that had to wait for a disk.
    pub(in crate::vm) major_faults: u64,
}

impl Default for Processes {
    fn default() -> Self {
        Self::below("/proc")
    }
}

impl Processes {
    /// Reads process facts below `proc`.
    pub(in crate::vm) fn below(proc: impl Into<PathBuf>) -> Self {
        Self {
            proc: proc.into(),
            known: Mutex::default(),
        }
    }

    /// The emulators of these domains; forgets all others. Blocks: looks at every process of the
    /// node when one of the domains has not been found before.
    pub(in crate::vm) fn find(&self, domains: &[Uuid], user: u32) -> HashMap<Uuid, i32> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|domain, process| {
            domains.contains(domain) && self.started(process.pid) == Some(process.started)
        });
        if domains.iter().any(|domain| !known.contains_key(domain)) {
            for pid in self.pids() {
                let found = self.domain_of(pid, user).filter(|d| domains.contains(d));
                if let (Some(domain), Some(started)) = (found, self.started(pid)) {
                    known.insert(domain, Process { pid, started });
                }
            }
        }
        known.iter().map(|(domain, p)| (*domain, p.pid)).collect()
    }

    /// The emulator of one domain; others stay known. Blocks like [`Self::find`].
    pub(in crate::vm) fn locate(&self, domain: Uuid, user: u32) -> Option<i32> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = known.get(&domain)
            && self.started(process.pid) == Some(process.started)
        {
            return Some(process.pid);
        }
        known.remove(&domain);
        let mut pids = self.pids().into_iter();
        let pid = pids.find(|pid| self.domain_of(*pid, user) == Some(domain))?;
        let started = self.started(pid)?;
        known.insert(domain, Process { pid, started });
        Some(pid)
    }

    /// How many of these domains' emulators end with the pod that this process runs in; none
    /// outside of pods. Blocks like [`Self::find`].
    pub(in crate::vm) fn bound(&self, domains: &[Uuid], user: u32) -> usize {
        let cgroup = |process: &str| {
            let file = std::fs::File::open(self.proc.join(process).join("cgroup")).ok()?;
            let mut text = String::new();
            file.take(LONGEST).read_to_string(&mut text).ok()?;
            Some(text)
        };
        let Some(own) = cgroup("self").and_then(|text| ContainerPod::of(&text)) else {
            return 0;
        };
        let found = self.find(domains, user).into_values();
        let theirs = found.filter_map(|pid| cgroup(&pid.to_string()));
        theirs.filter(|text| own.holds(text)).count()
    }

    /// What a process has in memory. Blocks for two small reads.
    pub(in crate::vm) fn resident(&self, pid: i32) -> Option<Resident> {
        let status = self.read(pid, "status")?;
        let status = String::from_utf8_lossy(&status);
        let ticks = self.stat(pid, 14)?.checked_add(self.stat(pid, 15)?)?;
        Some(Resident {
            cpu_nanoseconds: ticks.checked_mul(TICK)?,
            bytes: detail::size(&status, "VmRSS:")?,
            swapped: detail::size(&status, "VmSwap:").unwrap_or(0),
            faults: self.stat(pid, 10)?,
            major_faults: self.stat(pid, 12)?,
        })
    }

    fn pids(&self) -> Vec<i32> {
        let entries = std::fs::read_dir(&self.proc).into_iter().flatten();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    fn domain_of(&self, pid: i32, user: u32) -> Option<Uuid> {
        let owner = std::fs::metadata(self.directory(pid)).ok()?.uid();
        if owner != user && owner != 0 {
            return None;
        }
        let line = self.read(pid, "cmdline")?;
        let mut arguments = line.split(|byte| *byte == 0);
        arguments.find(|argument| *argument == UUID_OPTION)?;
        std::str::from_utf8(arguments.next()?).ok()?.parse().ok()
    }

    fn started(&self, pid: i32) -> Option<u64> {
        self.stat(pid, 22)
    }

    /// A field of `stat`, counted from one; those before the command's end cannot be had.
    fn stat(&self, pid: i32, field: usize) -> Option<u64> {
        let stat = self.read(pid, "stat")?;
        let stat = String::from_utf8_lossy(&stat);
        // The command is in brackets and may hold anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(field - 3)?.trim().parse().ok()
    }

    fn read(&self, pid: i32, file: &str) -> Option<Vec<u8>> {
        let file = std::fs::File::open(self.directory(pid).join(file)).ok()?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn directory(&self, pid: i32) -> PathBuf {
        Path::new(&self.proc).join(pid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(proc: &Path, pid: i32, command: &str, started: u64) {
        let dir = proc.join(pid.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cmdline"), command).unwrap();
        let stat = format!(
            "{pid} (qemu) x) S 1 2 3 4 5 6 70 8 9 10 11 12 13 14 15 16 17 18 {started} 1\n"
        );
        std::fs::write(dir.join("stat"), stat).unwrap();
        std::fs::write(
            dir.join("status"),
            "Name:\tx\nVmRSS:\t     12 kB\nVmSwap: 3 kB\n",
        )
        .unwrap();
    }

    #[test]
    fn an_emulator_is_found_by_its_uuid_and_forgotten_when_its_number_is_used_again() {
        let scratch = tempfile::tempdir().unwrap();
        let user = std::fs::metadata(scratch.path()).unwrap().uid();
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        plant(scratch.path(), 10, &format!("qemu\0-uuid\0{one}\0-no"), 500);
        plant(scratch.path(), 11, "qemu\0-uuid", 500);
        plant(scratch.path(), 12, "sh\0-uuid\0nothing\0", 500);
        std::fs::create_dir(scratch.path().join("self")).unwrap();
        let processes = Processes::below(scratch.path());
        assert_eq!(processes.find(&[one, two], user), [(one, 10)].into());
        plant(scratch.path(), 10, "somebody else", 501);
        assert_eq!(processes.find(&[one, two], user), HashMap::new());
        plant(scratch.path(), 13, &format!("q\0-uuid\0{one}\0"), 600);
        assert_eq!(processes.find(&[one], user), [(one, 13)].into());
        assert_eq!(processes.find(&[two], user), HashMap::new());
    }

    #[test]
    fn emulators_in_the_cgroup_of_our_own_pod_are_counted() {
        let scratch = tempfile::tempdir().unwrap();
        let user = std::fs::metadata(scratch.path()).unwrap().uid();
        let domains = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let tell = |process: &str, cgroup: &str| {
            let dir = scratch.path().join(process);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        };
        for (pid, domain) in [(10, domains[0]), (11, domains[1])] {
            plant(scratch.path(), pid, &format!("q\0-uuid\0{domain}\0"), 5);
        }
        tell("10", "/kubepods/podvm/vmlet");
        tell("11", "/kubepods/podours/libvirt");
        let processes = Processes::below(scratch.path());
        tell("self", "/system.slice/vmlet.service");
        assert_eq!(processes.bound(&domains, user), 0);
        tell("self", "/kubepods/podours/daemon");
        assert_eq!(processes.bound(&domains, user), 1);
        assert_eq!(processes.bound(&domains[..1], user), 0);
    }

    #[test]
    fn what_a_process_has_in_memory_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        plant(scratch.path(), 10, "", 5);
        let resident = Processes::below(scratch.path()).resident(10).unwrap();
        assert_eq!((resident.bytes, resident.swapped), (12 * 1024, 3 * 1024));
        assert_eq!((resident.faults, resident.major_faults), (70, 9));
        assert_eq!(resident.cpu_nanoseconds, (11 + 12) * TICK);
        let own = Processes::default().resident(std::process::id().cast_signed());
        assert!(own.unwrap().bytes > 100_000);
        assert_eq!(Processes::below("/nonexistent").resident(1), None);
    }
}
