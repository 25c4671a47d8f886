//! Finds the process of a machine.
//!
//! Invariant: a process is believed to be a domain's emulator when its command line shows it and
//! it runs as that machine's user; a number that was used again is noticed by the time of the process's start.
//! Nothing is ever killed by such a number. No lock is held while `/proc` is read; a process whose
//! command line does not come back, as one that hangs in its own page fault, is read by one thread
//! and left out by all others.
//! Failure: what is not found is absent: the machine has ended, or the daemon does not see the
//! node's processes.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgroup::ContainerPod;
use uuid::Uuid;

use crate::foreign::Foreign;

mod detail;

pub(in crate::vm) use detail::ProcessDetail;
#[cfg(test)]
pub(in crate::vm) use tests::plant;

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
    /// Of command lines, by process.
    reader: Foreign<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    /// Clock ticks from the node's boot to the process's start.
    started: u64,
}

/// The emulator to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vm) struct Emulator {
    /// Its domain.
    pub(in crate::vm) domain: Uuid,
    /// The user that it runs as.
    pub(in crate::vm) user: u32,
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
            reader: Foreign::default(),
        }
    }

    /// Forgets all emulators but these.
    pub(in crate::vm) fn keep(&self, wanted: &[Emulator]) {
        let domains: HashSet<Uuid> = wanted.iter().map(|one| one.domain).collect();
        self.known().retain(|domain, _| domains.contains(domain));
    }

    /// Whether the emulator of a domain was found before; it may have ended since.
    pub(in crate::vm) fn has_found(&self, domain: Uuid) -> bool {
        self.known().contains_key(&domain)
    }

    /// The emulators of these domains; others stay known. Blocks: looks at every process of the
    /// node when one of the domains has not been found before.
    pub(in crate::vm) fn find(&self, wanted: &[Emulator]) -> HashMap<Uuid, i32> {
        let mut found = HashMap::new();
        let mut missing = HashMap::new();
        for one in wanted {
            if let Some(pid) = self.find_again(one.domain) {
                found.insert(one.domain, pid);
            } else {
                missing.insert(one.domain, one.user);
            }
        }
        let mut pids = self.pids().into_iter();
        while !missing.is_empty()
            && let Some(pid) = pids.next()
        {
            let domain = self.domain_of(pid);
            let domain = domain.filter(|domain| missing.contains_key(domain));
            let domain = domain.filter(|domain| self.user_of(pid) == missing.get(domain).copied());
            if let Some(domain) = domain
                && let Some(started) = self.started(pid)
            {
                self.known().insert(domain, Process { pid, started });
                missing.remove(&domain);
                found.insert(domain, pid);
            }
        }
        found
    }

    /// The emulator of a domain, if it was found before and still runs. Blocks for a small read.
    pub(in crate::vm) fn find_again(&self, domain: Uuid) -> Option<i32> {
        let process = self.known().get(&domain).copied()?;
        if self.started(process.pid) == Some(process.started) {
            return Some(process.pid);
        }
        let mut known = self.known();
        // Another thread may have found its successor meanwhile.
        if known.get(&domain) == Some(&process) {
            known.remove(&domain);
        }
        None
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Uuid, Process>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process ends with the pod that this process runs in; none does outside of pods.
    /// Blocks for two small reads.
    pub(in crate::vm) fn is_bound(&self, pid: i32) -> bool {
        let cgroup = |process: &str| {
            let file = std::fs::File::open(self.proc.join(process).join("cgroup")).ok()?;
            let mut text = String::new();
            file.take(LONGEST).read_to_string(&mut text).ok()?;
            Some(text)
        };
        let own = cgroup("self").and_then(|text| ContainerPod::from_cgroups(&text));
        let its = cgroup(&pid.to_string());
        own.zip(its).is_some_and(|(own, its)| own.holds(&its))
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

    /// The user that the process runs as; its directory may belong to root instead.
    fn user_of(&self, pid: i32) -> Option<u32> {
        let status = self.read(pid, "status")?;
        let status = String::from_utf8_lossy(&status);
        let mut lines = status.lines().filter_map(|line| line.strip_prefix("Uid:"));
        lines.next()?.split_whitespace().nth(1)?.parse().ok()
    }

    fn domain_of(&self, pid: i32) -> Option<Uuid> {
        let line = self.reader.read_here(pid, || self.read(pid, "cmdline"))??;
        let mut arguments = line.split(|byte| *byte == 0);
        arguments.find(|argument| *argument == UUID_OPTION)?;
        std::str::from_utf8(arguments.next()?).ok()?.parse().ok()
    }

    /// When a process of this node started, in clock ticks from the node's boot. Blocks for a small
    /// read.
    pub(in crate::vm) fn started_at(pid: u32) -> Option<u64> {
        Self::default().started(i32::try_from(pid).ok()?)
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
mod tests;
