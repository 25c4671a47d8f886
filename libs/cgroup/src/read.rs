//! The kernel's resource counters of a pod.
//!
//! Invariant: all figures are of the pod's own directory, which includes what is below it: on
//! version 2 our leaf has no controllers of its own.
//! Failure: none; a file that is missing or has other content makes its figure absent. kubelet
//! removes the directory when the pod no longer exists.

use std::io::Read;
use std::path::{Path, PathBuf};

mod detail;
mod pressure;

pub use detail::{CpuLimits, CpuTimes, Detail, DeviceIo, MemoryDetail, Tasks};
pub use pressure::{Pressure, Pressures, Stall};

use super::PodCgroup;

/// Longest file that is read, in bytes; the longest real one has some 4 KiB.
const LONGEST: u64 = 64 * 1024;

/// Limits from here on mean "none": version 1 shows the largest number of pages that fits.
const UNLIMITED: u64 = 1 << 62;

/// What a pod has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in nanoseconds since the directory was made.
    pub cpu_nanoseconds: Option<u64>,
    /// Memory now.
    pub memory: Option<Memory>,
    /// Time lost to waiting, where the kernel counts it.
    pub pressure: Pressures,
}

/// The memory of a pod, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Everything charged, the page cache included.
    pub usage: u64,
    /// Usage less the page cache that the kernel would drop first; what kubelet evicts by.
    pub working_set: u64,
    /// Anonymous memory: the guest's memory as far as it was touched, and QEMU's own.
    pub rss: u64,
    /// Page faults since the directory was made.
    pub page_faults: u64,
    /// Page faults that had to wait for a disk.
    pub major_page_faults: u64,
    /// kubelet's limit, if there is one.
    pub limit: Option<u64>,
    /// Memory that was swapped out, where the kernel counts it.
    pub swap: Option<u64>,
    /// Limit of swap alone, if there is one.
    pub swap_limit: Option<u64>,
}

impl PodCgroup {
    /// What the processes of the pod have used. Blocks for some small reads.
    pub fn usage(&self, root: &Path) -> Usage {
        if is_unified(root) {
            let pod = root.join(self.path());
            return Usage {
                cpu_nanoseconds: field(&text(&pod, "cpu.stat"), "usage_usec")
                    .and_then(|usec| usec.checked_mul(1000)),
                memory: memory(&pod, &VERSION_2),
                pressure: pressure::read(&pod),
            };
        }
        let accounting = ["cpuacct", "cpu,cpuacct", "cpu"].iter();
        let mut accounting = accounting.map(|controller| self.below(root, controller));
        Usage {
            cpu_nanoseconds: accounting.find_map(|pod| number(&pod, "cpuacct.usage")),
            memory: memory(&self.below(root, "memory"), &VERSION_1),
            // Only the unified hierarchy has it.
            pressure: Pressures::default(),
        }
    }

    /// How many processes of the pod the kernel has killed for lack of memory.
    pub fn oom_kills(&self, root: &Path) -> Option<u64> {
        let (pod, file) = if is_unified(root) {
            (root.join(self.path()), "memory.events")
        } else {
            (self.below(root, "memory"), "memory.oom_control")
        };
        field(&text(&pod, file), "oom_kill")
    }

    fn below(&self, root: &Path, controller: &str) -> PathBuf {
        root.join(controller).join(self.path())
    }
}

fn is_unified(root: &Path) -> bool {
    root.join("cgroup.controllers").exists()
}

/// How a version spells things.
struct Names {
    usage: &'static str,
    limit: &'static str,
    inactive_file: &'static str,
    anonymous: &'static str,
    faults: &'static str,
    major_faults: &'static str,
}

const VERSION_1: Names = Names {
    usage: "memory.usage_in_bytes",
    limit: "memory.limit_in_bytes",
    inactive_file: "total_inactive_file",
    anonymous: "total_rss",
    faults: "total_pgfault",
    major_faults: "total_pgmajfault",
};

const VERSION_2: Names = Names {
    usage: "memory.current",
    limit: "memory.max",
    inactive_file: "inactive_file",
    anonymous: "anon",
    faults: "pgfault",
    major_faults: "pgmajfault",
};

fn memory(pod: &Path, names: &Names) -> Option<Memory> {
    let usage = number(pod, names.usage)?;
    let stat = text(pod, "memory.stat");
    let of = |name| field(&stat, name);
    let limit = bounded(pod, names.limit);
    let (swap, swap_limit) = swap(pod, &stat, limit);
    Some(Memory {
        usage,
        working_set: usage.saturating_sub(of(names.inactive_file)?),
        rss: of(names.anonymous)?,
        page_faults: of(names.faults).unwrap_or(0),
        major_page_faults: of(names.major_faults).unwrap_or(0),
        limit,
        swap,
        swap_limit,
    })
}

/// Swapped memory and its limit: version 2 has files for them, version 1 counts it in `stat` and
/// limits it together with memory.
fn swap(pod: &Path, stat: &str, limit: Option<u64>) -> (Option<u64>, Option<u64>) {
    if let Some(swap) = number(pod, "memory.swap.current") {
        return (Some(swap), bounded(pod, "memory.swap.max"));
    }
    let both = bounded(pod, "memory.memsw.limit_in_bytes");
    let alone = both
        .zip(limit)
        .map(|(both, limit)| both.saturating_sub(limit));
    (field(stat, "total_swap"), alone)
}

/// A limit; `None` is no limit.
fn bounded(directory: &Path, file: &str) -> Option<u64> {
    number(directory, file).filter(|limit| *limit < UNLIMITED)
}

fn number(directory: &Path, file: &str) -> Option<u64> {
    text(directory, file).trim().parse().ok()
}

/// The value of a line `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    value.trim().parse().ok()
}

/// Empty when there is no such file.
fn text(directory: &Path, file: &str) -> String {
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open(directory.join(file)) {
        // What cannot be read says nothing.
        let _ = file.take(LONGEST).read_to_string(&mut text);
    }
    text
}

#[cfg(test)]
mod tests;
