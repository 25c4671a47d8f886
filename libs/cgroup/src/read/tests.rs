//! Figures from files as both versions write them, and from the kernel's own.
//!
//! Invariant: the real test makes one directory per hierarchy and removes it.
//! Failure: it panics in hierarchies that this machine does not have.

use std::process::{Command, Stdio};

use super::*;

pub(super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

pub(super) fn pod() -> PodCgroup {
    PodCgroup::parse("/kubepods/pod1").unwrap()
}

#[test]
fn version_1_is_read_from_its_hierarchies() {
    let root = tree(&[
        ("cpu,cpuacct/kubepods/pod1/cpuacct.usage", "12345678\n"),
        ("memory/kubepods/pod1/memory.usage_in_bytes", "1000\n"),
        (
            "memory/kubepods/pod1/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        (
            "memory/kubepods/pod1/memory.stat",
            "rss 1\ninactive_file 2\ntotal_rss 600\ntotal_inactive_file 300\ntotal_pgfault 7\n\
             total_pgmajfault 3\ntotal_swap 50\n",
        ),
        (
            "memory/kubepods/pod1/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
    ]);
    let usage = pod().usage(root.path());
    assert_eq!(usage.cpu_nanoseconds, Some(12_345_678));
    let expected = Memory {
        usage: 1000,
        working_set: 700,
        rss: 600,
        page_faults: 7,
        major_page_faults: 3,
        limit: None,
        swap: Some(50),
        swap_limit: None,
    };
    assert_eq!(usage.memory, Some(expected));
    assert_eq!(pod().oom_kills(root.path()), Some(2));
}

#[test]
fn version_2_is_read_from_the_pods_own_directory() {
    let root = tree(&[
        ("cgroup.controllers", "cpu memory pids\n"),
        (
            "kubepods/pod1/cpu.stat",
            "usage_usec 42\nuser_usec 40\nsystem_usec 2\n",
        ),
        ("kubepods/pod1/memory.current", "5000\n"),
        ("kubepods/pod1/memory.max", "8000\n"),
        ("kubepods/pod1/memory.swap.current", "70\n"),
        ("kubepods/pod1/memory.swap.max", "1000\n"),
        (
            "kubepods/pod1/memory.stat",
            "anon 4000\nfile 1000\ninactive_file 500\npgfault 9\npgmajfault 0\n",
        ),
        (
            "kubepods/pod1/memory.events",
            "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\noom_group_kill 0\n",
        ),
        ("kubepods/pod1/vmlet/cgroup.procs", ""),
    ]);
    let usage = pod().usage(root.path());
    assert_eq!(usage.cpu_nanoseconds, Some(42_000));
    let expected = Memory {
        usage: 5000,
        working_set: 4500,
        rss: 4000,
        page_faults: 9,
        major_page_faults: 0,
        limit: Some(8000),
        swap: Some(70),
        swap_limit: Some(1000),
    };
    assert_eq!(usage.memory, Some(expected));
    assert_eq!(pod().oom_kills(root.path()), Some(1));
}

#[test]
fn what_is_gone_or_garbled_is_absent() {
    let gone = tree(&[("memory/cgroup.procs", "")]);
    assert_eq!(pod().usage(gone.path()), Usage::default());
    assert_eq!(pod().oom_kills(gone.path()), None);
    let garbled = tree(&[
        ("cgroup.controllers", ""),
        ("kubepods/pod1/cpu.stat", "usage_usec -1\n"),
        ("kubepods/pod1/memory.current", "max\n"),
        ("kubepods/pod1/memory.events", "oom_kill\n"),
    ]);
    assert_eq!(pod().usage(garbled.path()), Usage::default());
    assert_eq!(pod().oom_kills(garbled.path()), None);
}

/// Bytes that the hungry process may have.
const LIMIT: &str = "8388608";

#[test]
#[ignore = "needs root"]
fn the_kernels_own_counters_see_a_process_that_is_killed_for_want_of_memory() {
    let root = Path::new("/sys/fs/cgroup");
    let name = format!("vmlet-test-oom-{}", std::process::id());
    let pod = PodCgroup::parse(&format!("/{name}")).unwrap();
    let unified = is_unified(root);
    let base = if unified {
        root.into()
    } else {
        root.join("memory")
    };
    let directory = base.join(&name);
    std::fs::create_dir(&directory).unwrap();
    let limits: &[(&str, &str)] = if unified {
        &[("memory.max", LIMIT), ("memory.swap.max", "0")]
    } else {
        &[
            ("memory.limit_in_bytes", LIMIT),
            ("memory.memsw.limit_in_bytes", LIMIT),
        ]
    };
    for (file, limit) in limits {
        // A machine without swap accounting has no limit for it.
        let _ = std::fs::write(directory.join(file), limit);
    }
    // It waits for a line, then fills its memory without end.
    let mut hungry = Command::new("sh")
        .args(["-c", "read go; exec tail /dev/zero"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let placed = pod.place(root, i32::try_from(hungry.id()).unwrap());
    let before = pod.oom_kills(root);
    drop(hungry.stdin.take());
    let ended = hungry.wait().unwrap();
    let after = pod.oom_kills(root);
    let usage = pod.usage(root);
    let _ = std::fs::remove_dir(directory.join(crate::LEAF));
    std::fs::remove_dir(&directory).unwrap();
    placed.unwrap();
    assert_eq!(before, Some(0));
    assert_eq!(after, Some(1), "{ended}");
    let memory = usage.memory.expect("figures of the memory");
    assert!(memory.page_faults > 0, "{memory:?}");
    assert_eq!(memory.limit, LIMIT.parse().ok());
}
