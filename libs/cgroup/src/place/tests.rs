//! Placement in directories that look like cgroups, and in the kernel's own.
//!
//! Invariant: the real test makes one directory per hierarchy and removes it.
//! Failure: it is skipped in hierarchies that this machine does not have.

use proptest::prelude::*;

use super::*;

fn fake(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    root
}

fn content(root: &Path, file: &str) -> String {
    std::fs::read_to_string(root.join(file)).unwrap()
}

#[test]
fn version_1_places_in_every_hierarchy_that_knows_the_pod() {
    let root = fake(&[
        "memory/kubepods/pod1/cgroup.procs",
        "cpu,cpuacct/kubepods/pod1/cgroup.procs",
        "pids/cgroup.procs",
    ]);
    std::os::unix::fs::symlink("cpu,cpuacct", root.path().join("cpu")).unwrap();
    PodCgroup::parse("/kubepods/pod1")
        .unwrap()
        .place(root.path(), 77)
        .unwrap();
    assert_eq!(
        content(root.path(), "memory/kubepods/pod1/cgroup.procs"),
        "77"
    );
    assert_eq!(
        content(root.path(), "cpu,cpuacct/kubepods/pod1/cgroup.procs"),
        "77"
    );
}

#[test]
fn version_1_leaves_no_process_in_the_cgroup_of_its_starter() {
    let root = fake(&[
        "memory/kubepods/pod1/cgroup.procs",
        "devices/kubepods/cgroup.procs",
        "devices/kubepods/pod2/cgroup.procs",
        "misc/cgroup.procs",
        "no-hierarchy/file",
    ]);
    PodCgroup::parse("/kubepods/pod1")
        .unwrap()
        .place(root.path(), 77)
        .unwrap();
    assert_eq!(content(root.path(), "devices/kubepods/cgroup.procs"), "77");
    assert_eq!(
        content(root.path(), "devices/kubepods/pod2/cgroup.procs"),
        ""
    );
    assert_eq!(content(root.path(), "misc/cgroup.procs"), "77");
}

#[test]
fn version_2_places_in_a_leaf() {
    let root = fake(&["cgroup.controllers", "kubepods/pod1/vmlet/cgroup.procs"]);
    PodCgroup::parse("/kubepods/pod1")
        .unwrap()
        .place(root.path(), 77)
        .unwrap();
    assert_eq!(
        content(root.path(), "kubepods/pod1/vmlet/cgroup.procs"),
        "77"
    );
}

#[test]
fn a_pod_that_no_hierarchy_knows_is_an_error_with_its_name() {
    let root = fake(&["memory/cgroup.procs"]);
    let error = PodCgroup::parse("/kubepods/pod1")
        .unwrap()
        .place(root.path(), 77)
        .unwrap_err();
    assert!(error.to_string().contains("kubepods/pod1"), "{error}");
    assert_eq!(content(root.path(), "memory/cgroup.procs"), "");
}

#[test]
fn slices_are_found_by_their_last_name() {
    let expected = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice";
    for name in [
        "kubepods-burstable-pod1.slice",
        &format!("/{expected}"),
        "/x/kubepods-burstable-pod1.slice",
    ] {
        assert_eq!(
            PodCgroup::parse(name).unwrap(),
            PodCgroup(expected.into()),
            "{name}"
        );
    }
}

#[test]
fn paths_that_leave_the_mount_are_refused() {
    for name in [
        "",
        "/",
        "kubepods/pod1",
        "/kubepods/../..",
        "..",
        "/a\0b",
        "/a\nb",
        "/../x.slice",
    ] {
        assert!(PodCgroup::parse(name).is_err(), "{name:?}");
    }
    assert!(PodCgroup::parse(&format!("/{}", "x".repeat(2000))).is_err());
}

#[test]
#[ignore = "needs root"]
fn the_kernel_moves_a_process() {
    let root = Path::new("/sys/fs/cgroup");
    let name = format!("vmlet-test-{}", std::process::id());
    let memory = root.join("memory");
    let base = if root.join("cgroup.controllers").exists() {
        root
    } else {
        memory.as_path()
    };
    std::fs::create_dir(base.join(&name)).unwrap();
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let placed = PodCgroup::parse(&format!("/{name}"))
        .unwrap()
        .place(root, pid);
    let shown = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let _ = std::fs::remove_dir(base.join(&name).join(LEAF));
    std::fs::remove_dir(base.join(&name)).unwrap();
    placed.unwrap();
    assert!(shown.contains(&name), "{shown}");
}

#[test]
fn a_memory_limit_is_raised_and_never_lowered() {
    let files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
    let root = fake(&[
        "memory/pods/pod1/cgroup.procs",
        "cpu/pods/pod1/cgroup.procs",
    ]);
    let folder = root.path().join("memory/pods/pod1");
    for file in files {
        std::fs::write(folder.join(file), "134217728\n").unwrap();
    }
    let pod = PodCgroup::parse("/pods/pod1").unwrap();
    let limits = || files.map(|file| content(&folder, file).trim().to_owned());
    pod.allow_memory(root.path(), 1000).unwrap();
    assert_eq!(limits(), ["134217728", "134217728"]);
    pod.allow_memory(root.path(), 300_000_000).unwrap();
    assert_eq!(limits(), ["300000000", "300000000"]);

    let root = fake(&["cgroup.controllers", "pods/pod1/cgroup.procs"]);
    let folder = root.path().join("pods/pod1");
    for (before, after) in [("max\n", "max"), ("5\n", "7"), ("9\n", "9")] {
        std::fs::write(folder.join("memory.max"), before).unwrap();
        pod.allow_memory(root.path(), 7).unwrap();
        assert_eq!(content(&folder, "memory.max").trim(), after);
    }
}

proptest! {
    #[test]
    fn a_pod_is_below_the_mount_whatever_its_cgroup_is_called(
        name in prop_oneof![
            "/?[a-z.-]{0,8}(/[a-z.-]{0,8}){0,4}",
            "/?([a-z]{0,3}-?){0,4}\\.slice",
            any::<String>(),
        ],
    ) {
        if let Ok(pod) = PodCgroup::parse(&name) {
            let plain = |part| matches!(part, Component::Normal(_));
            prop_assert!(pod.path().components().all(plain), "{:?}", pod);
            prop_assert!(pod.path().components().count() > 0);
            // Its own path is its name, too.
            let absolute = format!("/{}", pod.path().display());
            if !absolute.ends_with(".slice") {
                prop_assert_eq!(PodCgroup::parse(&absolute).unwrap(), pod);
            }
        }
    }
}
