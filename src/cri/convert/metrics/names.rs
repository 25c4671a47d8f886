//! Names, help texts and labels of metrics.
//!
//! Invariant: the list of descriptors and the constants are one table.
//! Failure: none.

use super::{BASE, MetricType};

/// The description of a metric.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    /// Labels besides those of every metric.
    pub(super) extra: &'static [&'static str],
}

impl Name {
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> {
        BASE.into_iter().chain(self.extra.iter().copied())
    }
}

macro_rules! names {
    ($( $constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal; )+) => {
        $(
            pub(super) const $constant: Name = Name {
                name: $name,
                help: $help,
                kind: MetricType::$kind,
                extra: &[$($label),*],
            };
        )+

        /// All of them.
        pub(super) const ALL: &[Name] = &[$($constant),+];
    };
}

names! {
    LAST_SEEN: Gauge "container_last_seen" [] "Time of the figures, in seconds since the epoch";
    START_TIME: Gauge "container_start_time_seconds" [] "Time of the start, in seconds since the epoch";

    CPU_USAGE: Counter "container_cpu_usage_seconds_total" [] "CPU time in seconds";
    CPU_USER: Counter "container_cpu_user_seconds_total" [] "CPU time in user mode in seconds";
    CPU_SYSTEM: Counter "container_cpu_system_seconds_total" [] "CPU time in the kernel in seconds";
    CPU_PERIODS: Counter "container_cpu_cfs_periods_total" [] "Enforcement periods of the CPU limit";
    CPU_THROTTLED: Counter "container_cpu_cfs_throttled_periods_total" [] "Periods in which the CPU limit was reached";
    CPU_THROTTLED_TIME: Counter "container_cpu_cfs_throttled_seconds_total" [] "Time for which the CPU limit held processes back, in seconds";

    MEMORY_USAGE: Gauge "container_memory_usage_bytes" [] "Memory in bytes, the page cache included";
    MEMORY_WORKING_SET: Gauge "container_memory_working_set_bytes" [] "Memory in bytes without the page cache that is dropped first";
    MEMORY_RSS: Gauge "container_memory_rss" [] "Anonymous memory in bytes";
    MEMORY_CACHE: Gauge "container_memory_cache" [] "Page cache in bytes";
    MEMORY_MAPPED_FILE: Gauge "container_memory_mapped_file" [] "Mapped files in memory in bytes";
    MEMORY_SWAP: Gauge "container_memory_swap" [] "Swapped memory in bytes";
    MEMORY_KERNEL: Gauge "container_memory_kernel_usage" [] "Memory of the kernel in bytes";
    MEMORY_MAX: Gauge "container_memory_max_usage_bytes" [] "Largest memory usage so far in bytes";
    MEMORY_FAILCNT: Counter "container_memory_failcnt" [] "How often memory usage reached the limit";
    MEMORY_FAILURES: Counter "container_memory_failures_total" ["failure_type", "scope"] "Page faults";
    OOM_EVENTS: Counter "container_oom_events_total" [] "Processes that the kernel killed for lack of memory";

    FS_USAGE: Gauge "container_fs_usage_bytes" ["device"] "Bytes of the root disk on the node";
    FS_LIMIT: Gauge "container_fs_limit_bytes" ["device"] "Size of the file system of root disks in bytes";
    FS_INODES: Gauge "container_fs_inodes_total" ["device"] "Inodes of the file system of root disks";
    FS_INODES_FREE: Gauge "container_fs_inodes_free" ["device"] "Free inodes of the file system of root disks";
    FS_READ_BYTES: Counter "container_fs_reads_bytes_total" ["device"] "Bytes read from a block device";
    FS_READS: Counter "container_fs_reads_total" ["device"] "Reads of a block device";
    FS_WRITTEN_BYTES: Counter "container_fs_writes_bytes_total" ["device"] "Bytes written to a block device";
    FS_WRITES: Counter "container_fs_writes_total" ["device"] "Writes to a block device";
    BLKIO: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"] "Bytes of a block device by operation";

    NET_RX_BYTES: Counter "container_network_receive_bytes_total" ["interface"] "Bytes that the guest received";
    NET_RX_PACKETS: Counter "container_network_receive_packets_total" ["interface"] "Packets that the guest received";
    NET_RX_DROPPED: Counter "container_network_receive_packets_dropped_total" ["interface"] "Packets for the guest that were dropped";
    NET_RX_ERRORS: Counter "container_network_receive_errors_total" ["interface"] "Packets for the guest that were lost by errors";
    NET_TX_BYTES: Counter "container_network_transmit_bytes_total" ["interface"] "Bytes that the guest sent";
    NET_TX_PACKETS: Counter "container_network_transmit_packets_total" ["interface"] "Packets that the guest sent";
    NET_TX_DROPPED: Counter "container_network_transmit_packets_dropped_total" ["interface"] "Packets of the guest that were dropped";
    NET_TX_ERRORS: Counter "container_network_transmit_errors_total" ["interface"] "Packets of the guest that were lost by errors";

    PROCESSES: Gauge "container_processes" [] "Processes on the node; those of the guest are not known";
    THREADS: Gauge "container_threads" [] "Threads on the node";
    THREADS_MAX: Gauge "container_threads_max" [] "Limit of threads on the node; 0 is none";
    FILES: Gauge "container_file_descriptors" [] "Open descriptors of the emulator";
    SOCKETS: Gauge "container_sockets" [] "Open sockets of the emulator";
    ULIMITS: Gauge "container_ulimits_soft" ["ulimit"] "Soft limits of the emulator";

    PRESSURE_CPU_SOME: Counter "container_pressure_cpu_waiting_seconds_total" [] "Time in which some processes waited for a CPU, in seconds";
    PRESSURE_CPU_FULL: Counter "container_pressure_cpu_stalled_seconds_total" [] "Time in which all processes waited for a CPU, in seconds";
    PRESSURE_MEMORY_SOME: Counter "container_pressure_memory_waiting_seconds_total" [] "Time in which some processes waited for memory, in seconds";
    PRESSURE_MEMORY_FULL: Counter "container_pressure_memory_stalled_seconds_total" [] "Time in which all processes waited for memory, in seconds";
    PRESSURE_IO_SOME: Counter "container_pressure_io_waiting_seconds_total" [] "Time in which some processes waited for a disk, in seconds";
    PRESSURE_IO_FULL: Counter "container_pressure_io_stalled_seconds_total" [] "Time in which all processes waited for a disk, in seconds";

    SPEC_CPU_PERIOD: Gauge "container_spec_cpu_period" [] "Enforcement period of the CPU limit in microseconds";
    SPEC_CPU_QUOTA: Gauge "container_spec_cpu_quota" [] "CPU time of a period in microseconds";
    SPEC_CPU_SHARES: Gauge "container_spec_cpu_shares" [] "CPU shares";
    SPEC_MEMORY: Gauge "container_spec_memory_limit_bytes" [] "Memory limit in bytes; 0 is none";
    SPEC_MEMORY_SWAP: Gauge "container_spec_memory_swap_limit_bytes" [] "Limit of memory and swap in bytes; 0 is none";
    GUEST_UPTIME: Gauge "vmlet_guest_uptime_seconds" [] "Time since the boot of the guest in seconds, as it reports";
    GUEST_CPU: Counter "vmlet_guest_cpu_busy_seconds_total" [] "CPU time that the guest was busy in seconds, as it reports";
    GUEST_MEMORY: Gauge "vmlet_guest_memory_bytes" [] "Memory of the guest in bytes, as it reports";
    GUEST_MEMORY_AVAILABLE: Gauge "vmlet_guest_memory_available_bytes" [] "Memory that programs of the guest can get without swapping, as it reports";
    GUEST_SWAP: Gauge "vmlet_guest_swap_bytes" [] "Swap space of the guest in bytes, as it reports";
    GUEST_SWAP_FREE: Gauge "vmlet_guest_swap_free_bytes" [] "Free swap space of the guest in bytes, as it reports";
    GUEST_FS_SIZE: Gauge "vmlet_guest_filesystem_size_bytes" ["mountpoint", "device", "fstype"] "Size of a file system of the guest in bytes, as it reports";
    GUEST_FS_USED: Gauge "vmlet_guest_filesystem_used_bytes" ["mountpoint", "device", "fstype"] "Bytes of a file system of the guest that are in use, as it reports";
    GUEST_FS_INODES: Gauge "vmlet_guest_filesystem_inodes" ["mountpoint", "device", "fstype"] "Inodes of a file system of the guest, as it reports";
    GUEST_FS_INODES_USED: Gauge "vmlet_guest_filesystem_inodes_used" ["mountpoint", "device", "fstype"] "Inodes of a file system of the guest that are in use, as it reports";

    SPEC_MEMORY_RESERVATION: Gauge "container_spec_memory_reservation_limit_bytes" [] "Memory that is reclaimed last, in bytes";
}
