//! Details from files as both versions write them.
//!
//! Invariant: each expected figure is in one planted file only.
//! Failure: the differing figures.

use super::super::tests::{pod, tree};
use super::*;

#[test]
fn version_1_has_a_hierarchy_for_each_part() {
    let stat = "cache 1\ntotal_cache 900\ntotal_mapped_file 80\n";
    let bytes = "8:0 Read 100\n8:0 Write 200\n8:0 Total 300\n254:1 Read 7\nTotal 307\n";
    let root = tree(&[
        ("cpuacct/kubepods/pod1/cpuacct.usage_user", "11\n"),
        ("cpuacct/kubepods/pod1/cpuacct.stat", "user 5\nsystem 3\n"),
        (
            "cpu/kubepods/pod1/cpu.stat",
            "nr_periods 20\nnr_throttled 4\nthrottled_time 5000\n",
        ),
        ("cpu/kubepods/pod1/cpu.cfs_period_us", "100000\n"),
        ("cpu/kubepods/pod1/cpu.cfs_quota_us", "-1\n"),
        ("cpu/kubepods/pod1/cpu.shares", "1024\n"),
        ("memory/kubepods/pod1/memory.stat", stat),
        ("memory/kubepods/pod1/memory.kmem.usage_in_bytes", "4096\n"),
        ("memory/kubepods/pod1/memory.max_usage_in_bytes", "9999\n"),
        ("memory/kubepods/pod1/memory.failcnt", "2\n"),
        (
            "memory/kubepods/pod1/memory.soft_limit_in_bytes",
            "9223372036854771712\n",
        ),
        ("memory/kubepods/pod1/cgroup.procs", "17\n18\n"),
        (
            "blkio/kubepods/pod1/blkio.throttle.io_service_bytes_recursive",
            bytes,
        ),
        (
            "blkio/kubepods/pod1/blkio.throttle.io_serviced_recursive",
            "8:0 Read 3\n8:0 Write x\n8:0 Sync 9\n",
        ),
        ("pids/kubepods/pod1/pids.current", "12\n"),
        ("pids/kubepods/pod1/pids.max", "max\n"),
    ]);
    let detail = pod().detail(root.path());
    let cpu = CpuTimes {
        user_nanoseconds: Some(11),
        system_nanoseconds: Some(3 * TICK),
        periods: Some(20),
        throttled_periods: Some(4),
        throttled_nanoseconds: Some(5000),
    };
    assert_eq!(detail.cpu, cpu);
    let limits = CpuLimits {
        period_micros: Some(100_000),
        quota_micros: None,
        shares: Some(1024),
    };
    assert_eq!(detail.cpu_limits, limits);
    let memory = MemoryDetail {
        cache: Some(900),
        mapped_file: Some(80),
        kernel: Some(4096),
        max_usage: Some(9999),
        failures: Some(2),
        reservation: None,
    };
    assert_eq!(detail.memory, memory);
    let of = |major, minor, read_bytes, written_bytes, reads| DeviceIo {
        major,
        minor,
        read_bytes,
        written_bytes,
        reads,
        writes: 0,
    };
    assert_eq!(detail.io, [of(8, 0, 100, 200, 3), of(254, 1, 7, 0, 0)]);
    let tasks = Tasks {
        processes: Some(2),
        threads: Some(12),
        threads_max: None,
    };
    assert_eq!(detail.tasks, tasks);
}

#[test]
fn version_2_has_one_directory_and_our_leaf_below_it() {
    let cpu = "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 8\nnr_throttled 2\n\
               throttled_usec 3\n";
    let root = tree(&[
        ("cgroup.controllers", "cpu io memory pids\n"),
        ("kubepods/pod1/cpu.stat", cpu),
        ("kubepods/pod1/cpu.max", "20000 100000\n"),
        ("kubepods/pod1/cpu.weight", "39\n"),
        (
            "kubepods/pod1/memory.stat",
            "anon 1\nfile 700\nkernel 60\nfile_mapped 50\n",
        ),
        ("kubepods/pod1/memory.peak", "4000\n"),
        ("kubepods/pod1/memory.events", "low 0\nmax 6\noom 1\n"),
        ("kubepods/pod1/memory.min", "0\n"),
        (
            "kubepods/pod1/io.stat",
            "254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n7:1 \n8:0 rbytes=x\n",
        ),
        ("kubepods/pod1/pids.current", "9\n"),
        ("kubepods/pod1/pids.max", "4096\n"),
        ("kubepods/pod1/cgroup.procs", ""),
        ("kubepods/pod1/vmlet/cgroup.procs", "17\n"),
        (
            "kubepods/pod1/io.pressure",
            "some avg10=0.50 avg60=0.00 avg300=0.00 total=900\n",
        ),
    ]);
    let detail = pod().detail(root.path());
    let cpu = CpuTimes {
        user_nanoseconds: Some(5000),
        system_nanoseconds: Some(4000),
        periods: Some(8),
        throttled_periods: Some(2),
        throttled_nanoseconds: Some(3000),
    };
    assert_eq!(detail.cpu, cpu);
    let limits = CpuLimits {
        period_micros: Some(100_000),
        quota_micros: Some(20_000),
        shares: Some(998),
    };
    assert_eq!(detail.cpu_limits, limits);
    let memory = MemoryDetail {
        cache: Some(700),
        mapped_file: Some(50),
        kernel: Some(60),
        max_usage: Some(4000),
        failures: Some(6),
        reservation: None,
    };
    assert_eq!(detail.memory, memory);
    let traffic = DeviceIo {
        major: 254,
        minor: 0,
        read_bytes: 10,
        written_bytes: 20,
        reads: 1,
        writes: 2,
    };
    let idle = DeviceIo {
        major: 7,
        minor: 1,
        ..DeviceIo::default()
    };
    assert_eq!(detail.io, [traffic, idle]);
    let tasks = Tasks {
        processes: Some(1),
        threads: Some(9),
        threads_max: Some(4096),
    };
    assert_eq!(detail.tasks, tasks);
    let pressure = pod().usage(root.path()).pressure;
    assert_eq!(pressure.io.unwrap().some.avg10, 50);
    assert_eq!((pressure.cpu, pressure.memory), (None, None));
}

#[test]
fn a_pod_that_is_gone_has_no_details() {
    for files in [
        &[("memory/cgroup.procs", "")][..],
        &[("cgroup.controllers", "")],
    ] {
        assert_eq!(pod().detail(tree(files).path()), Detail::default());
    }
}
