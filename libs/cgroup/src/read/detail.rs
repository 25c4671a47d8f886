//! Figures of a pod beyond those of its statistics: for metrics.
//!
//! Invariant: as for [`Usage`](super::Usage), all figures include what is below the pod's
//! directory; a list of devices is bounded by the length of the file that is read.
//! Failure: none; what cannot be read is absent.

use std::path::Path;

use super::{bounded, field, is_unified, number, text};
use crate::{LEAF, PodCgroup};

/// Nanoseconds of a clock tick as the kernel shows them to processes.
const TICK: u64 = 10_000_000;

/// What metrics report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// CPU time by mode, and throttling.
    pub cpu: CpuTimes,
    /// kubelet's CPU settings of the pod.
    pub cpu_limits: CpuLimits,
    /// Parts and peaks of memory.
    pub memory: MemoryDetail,
    /// Traffic of block devices.
    pub io: Vec<DeviceIo>,
    /// Processes and threads.
    pub tasks: Tasks,
}

/// CPU time since the directory was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Nanoseconds in user mode.
    pub user_nanoseconds: Option<u64>,
    /// Nanoseconds in the kernel.
    pub system_nanoseconds: Option<u64>,
    /// Enforcement periods of the CPU limit.
    pub periods: Option<u64>,
    /// Periods in which the limit was reached.
    pub throttled_periods: Option<u64>,
    /// Nanoseconds for which the limit kept processes from running.
    pub throttled_nanoseconds: Option<u64>,
}

/// CPU settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuLimits {
    /// Enforcement period in microseconds.
    pub period_micros: Option<u64>,
    /// CPU time of a period in microseconds, if it is limited.
    pub quota_micros: Option<u64>,
    /// Relative share, in units of version 1: 1024 is one CPU's.
    pub shares: Option<u64>,
}

/// Parts of memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryDetail {
    /// Page cache.
    pub cache: Option<u64>,
    /// Files that are mapped.
    pub mapped_file: Option<u64>,
    /// Memory of the kernel on behalf of the pod.
    pub kernel: Option<u64>,
    /// Largest usage so far.
    pub max_usage: Option<u64>,
    /// How often usage has reached the limit.
    pub failures: Option<u64>,
    /// Memory that the kernel reclaims last, if any is set.
    pub reservation: Option<u64>,
}

/// Traffic of one block device since the directory was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
}

/// Processes and threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Processes.
    pub processes: Option<u64>,
    /// Threads of all processes.
    pub threads: Option<u64>,
    /// Limit of threads, if there is one.
    pub threads_max: Option<u64>,
}

impl PodCgroup {
    /// Figures for metrics. Blocks for some small reads.
    pub fn detail(&self, root: &Path) -> Detail {
        if is_unified(root) {
            version_2(&root.join(self.path()))
        } else {
            self.version_1(root)
        }
    }

    fn version_1(&self, root: &Path) -> Detail {
        let below = |controller| self.below(root, controller);
        let accounting = ["cpuacct", "cpu,cpuacct", "cpu"].map(below);
        let times = |file, name| {
            let exact = |pod: &std::path::PathBuf| number(pod, file);
            let ticks = |pod: &std::path::PathBuf| {
                field(&text(pod, "cpuacct.stat"), name)?.checked_mul(TICK)
            };
            let found = accounting.iter().find_map(exact);
            found.or_else(|| accounting.iter().find_map(ticks))
        };
        let cpu = ["cpu", "cpu,cpuacct"].map(below);
        let setting = |file| cpu.iter().find_map(|pod| number(pod, file));
        let throttling = cpu.iter().map(|pod| text(pod, "cpu.stat"));
        let throttling = throttling.collect::<String>();
        let memory = below("memory");
        let stat = text(&memory, "memory.stat");
        let blocks = below("blkio");
        let pids = below("pids");
        Detail {
            cpu: CpuTimes {
                user_nanoseconds: times("cpuacct.usage_user", "user"),
                system_nanoseconds: times("cpuacct.usage_sys", "system"),
                periods: field(&throttling, "nr_periods"),
                throttled_periods: field(&throttling, "nr_throttled"),
                throttled_nanoseconds: field(&throttling, "throttled_time"),
            },
            cpu_limits: CpuLimits {
                period_micros: setting("cpu.cfs_period_us"),
                quota_micros: setting("cpu.cfs_quota_us"),
                shares: setting("cpu.shares"),
            },
            memory: MemoryDetail {
                cache: field(&stat, "total_cache"),
                mapped_file: field(&stat, "total_mapped_file"),
                kernel: number(&memory, "memory.kmem.usage_in_bytes"),
                max_usage: number(&memory, "memory.max_usage_in_bytes"),
                failures: number(&memory, "memory.failcnt"),
                reservation: bounded(&memory, "memory.soft_limit_in_bytes"),
            },
            io: blkio(&blocks),
            tasks: Tasks {
                processes: processes(&memory),
                threads: number(&pids, "pids.current"),
                threads_max: number(&pids, "pids.max"),
            },
        }
    }
}

fn version_2(pod: &Path) -> Detail {
    let cpu = text(pod, "cpu.stat");
    let nanoseconds = |name| field(&cpu, name).and_then(|usec| usec.checked_mul(1000));
    let max = text(pod, "cpu.max");
    let mut max = max.split_whitespace().map(|word| word.parse().ok());
    let quota = max.next().flatten();
    let period = max.next().flatten();
    let memory = text(pod, "memory.stat");
    Detail {
        cpu: CpuTimes {
            user_nanoseconds: nanoseconds("user_usec"),
            system_nanoseconds: nanoseconds("system_usec"),
            periods: field(&cpu, "nr_periods"),
            throttled_periods: field(&cpu, "nr_throttled"),
            throttled_nanoseconds: nanoseconds("throttled_usec"),
        },
        cpu_limits: CpuLimits {
            period_micros: period,
            quota_micros: quota,
            shares: number(pod, "cpu.weight").map(shares_of),
        },
        memory: MemoryDetail {
            cache: field(&memory, "file"),
            mapped_file: field(&memory, "file_mapped"),
            kernel: field(&memory, "kernel"),
            max_usage: number(pod, "memory.peak"),
            failures: field(&text(pod, "memory.events"), "max"),
            reservation: number(pod, "memory.min").filter(|bytes| *bytes > 0),
        },
        io: text(pod, "io.stat").lines().filter_map(io_line).collect(),
        tasks: Tasks {
            processes: processes(pod),
            threads: number(pod, "pids.current"),
            threads_max: number(pod, "pids.max"),
        },
    }
}

/// The inverse of kubelet's conversion, which maps 2..262144 to 1..10000.
const fn shares_of(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

/// Processes of a pod: in its directory, and in ours below it.
fn processes(pod: &Path) -> Option<u64> {
    pod.join("cgroup.procs").exists().then(|| {
        let count = |directory: &Path| text(directory, "cgroup.procs").lines().count() as u64;
        count(pod) + count(&pod.join(LEAF))
    })
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn io_line(line: &str) -> Option<DeviceIo> {
    let mut words = line.split_whitespace();
    let (major, minor) = numbers(words.next()?)?;
    let mut device = DeviceIo {
        major,
        minor,
        ..DeviceIo::default()
    };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let slot = match key {
            "rbytes" => &mut device.read_bytes,
            "wbytes" => &mut device.written_bytes,
            "rios" => &mut device.reads,
            "wios" => &mut device.writes,
            _ => continue,
        };
        *slot = value.parse().ok()?;
    }
    Some(device)
}

/// Lines `8:0 Read 123` of two files.
fn blkio(pod: &Path) -> Vec<DeviceIo> {
    let mut devices: Vec<DeviceIo> = Vec::new();
    let mut each = |file: &str, set: fn(&mut DeviceIo, bool, u64)| {
        let text = text(pod, file);
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let &[device, direction @ ("Read" | "Write"), value] = &*words else {
                continue;
            };
            let Some((major, minor)) = numbers(device) else {
                continue;
            };
            let Ok(value) = value.parse() else {
                continue;
            };
            let same = |found: &DeviceIo| (found.major, found.minor) == (major, minor);
            let place = devices.iter().position(same).unwrap_or_else(|| {
                devices.push(DeviceIo {
                    major,
                    minor,
                    ..DeviceIo::default()
                });
                devices.len() - 1
            });
            set(&mut devices[place], direction == "Read", value);
        }
    };
    each(
        "blkio.throttle.io_service_bytes_recursive",
        |device, reads, value| {
            if reads {
                device.read_bytes = value;
            } else {
                device.written_bytes = value;
            }
        },
    );
    each(
        "blkio.throttle.io_serviced_recursive",
        |device, reads, value| {
            if reads {
                device.reads = value;
            } else {
                device.writes = value;
            }
        },
    );
    devices
}

/// `8:0`.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
