//! From figures to metrics.
//!
//! Invariant: a figure of the pod's cgroup comes first; the emulator's process stands in where
//! there is no cgroup.
//! Failure: none.

use tapmanager::wire::NicCounters;

use super::names::{self, Name};
use super::{Limits, SECOND, Samples, Sources};
use crate::vm::details::Detail;
use crate::vm::stats::Pressure;

/// The kernel's default, in microseconds.
const PERIOD: u64 = 100_000;

/// The kernel's default.
const SHARES: u64 = 1024;

const MICROS: u64 = 1_000_000;

impl Samples {
    /// When it began, and when it was looked at.
    pub(super) fn life(&mut self, begun: i64) {
        let seconds = |nanoseconds| u64::try_from(nanoseconds).unwrap_or(0) / SECOND;
        let now = seconds(self.at);
        self.put(&names::START_TIME, seconds(begun));
        self.put(&names::LAST_SEEN, now);
    }

    /// What a running machine uses; nothing where none runs, or nothing of it is known.
    pub(super) fn usage(&mut self, sources: Sources<'_>) {
        if sources.cpu.is_none() && sources.memory.is_none() {
            return;
        }
        let nothing = Detail::default();
        let detail = sources.detail.unwrap_or(&nothing);
        self.cpu(sources, detail);
        self.memory(sources, detail);
        self.disk(sources, detail);
        self.processes(detail);
        if let Some(pressure) = sources.pressure {
            self.pressure(pressure);
        }
    }

    fn cpu(&mut self, sources: Sources<'_>, detail: &Detail) {
        let pod = detail.cgroup.as_ref().map(|pod| pod.cpu);
        let process = detail.process;
        let pod = pod.unwrap_or_default();
        let process = process.unwrap_or_default();
        let seconds = |time: Option<u64>| time.unwrap_or(0) / SECOND;
        let used = sources.cpu.map(|cpu| cpu.nanoseconds);
        self.put(&names::CPU_USAGE, seconds(used));
        let user = pod.user_nanoseconds.or(process.user_nanoseconds);
        self.put(&names::CPU_USER, seconds(user));
        let system = pod.system_nanoseconds.or(process.system_nanoseconds);
        self.put(&names::CPU_SYSTEM, seconds(system));
        self.put(&names::CPU_PERIODS, pod.periods.unwrap_or(0));
        self.put(&names::CPU_THROTTLED, pod.throttled_periods.unwrap_or(0));
        self.put(
            &names::CPU_THROTTLED_TIME,
            seconds(pod.throttled_nanoseconds),
        );
    }

    fn memory(&mut self, sources: Sources<'_>, detail: &Detail) {
        let pod = detail.cgroup.as_ref().map(|pod| pod.memory);
        let pod = pod.unwrap_or_default();
        let process = detail.process.unwrap_or_default();
        let now = sources.memory.map(|memory| memory.now).unwrap_or_default();
        let mapped = process.mapped_file.unwrap_or(0);
        let peak = pod.max_usage.or(process.peak).unwrap_or(0).max(now.usage);
        for (name, value) in [
            (&names::MEMORY_USAGE, Some(now.usage)),
            (&names::MEMORY_WORKING_SET, Some(now.working_set)),
            (&names::MEMORY_RSS, Some(now.rss)),
            (
                &names::MEMORY_CACHE,
                pod.cache.or(process.shared.map(|shared| shared + mapped)),
            ),
            (&names::MEMORY_MAPPED_FILE, pod.mapped_file.or(Some(mapped))),
            (&names::MEMORY_SWAP, now.swap),
            (&names::MEMORY_KERNEL, pod.kernel.or(process.page_tables)),
            (&names::MEMORY_MAX, Some(peak)),
            (&names::MEMORY_FAILCNT, pod.failures),
            (&names::OOM_EVENTS, detail.oom_kills),
        ] {
            self.put(name, value.unwrap_or(0));
        }
        let faults = [
            ("pgfault", now.page_faults),
            ("pgmajfault", now.major_page_faults),
        ];
        for (kind, count) in faults {
            for scope in ["container", "hierarchy"] {
                self.put_with(&names::MEMORY_FAILURES, [kind, scope], count);
            }
        }
    }

    fn disk(&mut self, sources: Sources<'_>, detail: &Detail) {
        if let Some(room) = sources.room {
            let device = [room.device.as_str()];
            let used = sources.disk.map_or(0, |disk| disk.bytes);
            self.put_with(&names::FS_USAGE, device, used);
            self.put_with(&names::FS_LIMIT, device, room.bytes);
            self.put_with(&names::FS_INODES, device, room.inodes);
            self.put_with(&names::FS_INODES_FREE, device, room.free_inodes);
        }
        for (device, io) in &detail.devices {
            let label = [device.as_str()];
            self.put_with(&names::FS_READ_BYTES, label, io.read_bytes);
            self.put_with(&names::FS_READS, label, io.reads);
            self.put_with(&names::FS_WRITTEN_BYTES, label, io.written_bytes);
            self.put_with(&names::FS_WRITES, label, io.writes);
            let major = io.major.to_string();
            let minor = io.minor.to_string();
            for (operation, bytes) in [("Read", io.read_bytes), ("Write", io.written_bytes)] {
                let labels = [device, &major, &minor, operation];
                self.put_with(&names::BLKIO, labels, bytes);
            }
        }
        if detail.devices.is_empty() {
            // The sum over all devices is what the kernel knows of a process.
            let process = detail.process.unwrap_or_default();
            self.put_with(&names::FS_READ_BYTES, [""], process.read_bytes);
            self.put_with(&names::FS_WRITTEN_BYTES, [""], process.written_bytes);
        }
    }

    fn processes(&mut self, detail: &Detail) {
        let pod = detail.cgroup.as_ref().map(|pod| pod.tasks);
        let pod = pod.unwrap_or_default();
        let process = detail.process.unwrap_or_default();
        let alone = detail.process.map(|_| 1);
        let processes = pod.processes.or(alone).unwrap_or(0);
        self.put(&names::PROCESSES, processes);
        let threads = pod.threads.or(process.threads).unwrap_or(0);
        self.put(&names::THREADS, threads);
        self.put(&names::THREADS_MAX, pod.threads_max.unwrap_or(0));
        self.put(&names::FILES, process.files.unwrap_or(0));
        self.put(&names::SOCKETS, process.sockets.unwrap_or(0));
        let limit = process.files_limit;
        self.put_with(&names::ULIMITS, ["max_open_files"], limit);
    }

    fn pressure(&mut self, pressure: Pressure) {
        let now = pressure.now;
        let mut both = |found: Option<cgroup::Pressure>, some: &Name, full: &Name| {
            let seconds = |stall: cgroup::Stall| stall.total_micros / MICROS;
            self.put(some, found.map(|found| seconds(found.some)));
            self.put(full, found.and_then(|found| found.full).map(seconds));
        };
        both(
            now.cpu,
            &names::PRESSURE_CPU_SOME,
            &names::PRESSURE_CPU_FULL,
        );
        let some = &names::PRESSURE_MEMORY_SOME;
        let full = &names::PRESSURE_MEMORY_FULL;
        both(now.memory, some, full);
        both(now.io, &names::PRESSURE_IO_SOME, &names::PRESSURE_IO_FULL);
    }

    /// What kubelet allows; the cgroup shows it where the request did not.
    pub(super) fn limits(&mut self, limits: Limits, detail: Option<&Detail>) {
        let given = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
        let pod = detail.and_then(|detail| detail.cgroup.as_ref());
        let cpu = pod.map(|pod| pod.cpu_limits);
        let memory = pod.map(|pod| pod.memory);
        let cpu = cpu.unwrap_or_default();
        let memory = memory.unwrap_or_default();
        let period = given(limits.cpu_period).or(cpu.period_micros);
        self.put(&names::SPEC_CPU_PERIOD, period.unwrap_or(PERIOD));
        let quota = given(limits.cpu_quota).or(cpu.quota_micros);
        self.put(&names::SPEC_CPU_QUOTA, quota);
        let shares = given(limits.cpu_shares).or(cpu.shares);
        self.put(&names::SPEC_CPU_SHARES, shares.unwrap_or(SHARES));
        self.put(&names::SPEC_MEMORY, given(limits.memory).unwrap_or(0));
        let both = given(limits.memory_and_swap).unwrap_or(0);
        self.put(&names::SPEC_MEMORY_SWAP, both);
        self.put(&names::SPEC_MEMORY_RESERVATION, memory.reservation);
    }

    /// Traffic of a NIC.
    pub(super) fn nic(&mut self, nic: &NicCounters) {
        let link = [nic.link.as_str()];
        for (name, value) in [
            (&names::NET_RX_BYTES, Some(nic.rx_bytes)),
            (&names::NET_RX_PACKETS, nic.rx_packets),
            (&names::NET_RX_DROPPED, nic.rx_dropped),
            (&names::NET_RX_ERRORS, Some(nic.rx_errors)),
            (&names::NET_TX_BYTES, Some(nic.tx_bytes)),
            (&names::NET_TX_PACKETS, nic.tx_packets),
            (&names::NET_TX_DROPPED, nic.tx_dropped),
            (&names::NET_TX_ERRORS, Some(nic.tx_errors)),
        ] {
            self.put_with(name, link, value);
        }
    }
}
