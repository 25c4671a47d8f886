//! Version 2 as the kernel has it, on a mount of our own, also where the controllers of a pod are
//! those of version 1.
//!
//! Invariant: the mount is removed with the process that made it; what a test makes below it has a
//! name of its own and is removed.
//! Failure: it panics where the kernel has no version 2. Figures of a controller that is not there
//! are to be absent.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::*;

/// Ends when its standard input does, and is waited for.
struct Process(Child, Option<ChildStdin>);

/// A mount of version 2 that only a child sees, and directories in it.
struct Mount {
    root: PathBuf,
    _mount_point: tempfile::TempDir,
    /// In the order in which they were made.
    made: Vec<PathBuf>,
    /// Whether the controller was enabled for the whole hierarchy here.
    enabled: bool,
    _keeper: Process,
}

/// The one controller that version 1 leaves to version 2 on most nodes.
const SPARE: &str = "hugetlb";

impl Process {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let stdin = child.stdin.take();
        Self(child, stdin)
    }

    /// One that burns time until it is killed.
    fn busy() -> Self {
        Self::start("sh", &["-c", "while :; do :; done"])
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    fn cgroups(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid())).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.1.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Mount {
    fn make() -> Self {
        let mount_point = tempfile::tempdir().unwrap();
        let at = mount_point.path().to_str().unwrap();
        let script = "mount -t cgroup2 none \"$0\" && echo mounted && exec cat";
        let mut keeper = Process::start("unshare", &["--mount", "sh", "-c", script, at]);
        let mut reported = [0; 8];
        let stdout = keeper.0.stdout.as_mut().unwrap();
        stdout
            .read_exact(&mut reported)
            .expect("a mount of version 2");
        Self {
            root: PathBuf::from(format!("/proc/{}/root{at}", keeper.pid())),
            _mount_point: mount_point,
            made: Vec::new(),
            enabled: false,
            _keeper: keeper,
        }
    }

    fn make_dir(&mut self, relative: &Path) -> PathBuf {
        let path = self.root.join(relative);
        fs::create_dir(&path).unwrap();
        self.made.push(path.clone());
        path
    }

    /// Hands the controller down to the directories below the root, if the kernel has it here.
    fn enable_spare(&mut self) -> bool {
        let has = |file: &str| {
            let words = fs::read_to_string(self.root.join(file)).unwrap();
            words.split_whitespace().any(|word| word == SPARE)
        };
        if !has("cgroup.controllers") {
            return false;
        }
        if !has("cgroup.subtree_control") {
            enable(&self.root, "+").unwrap();
            self.enabled = true;
        }
        true
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            let _ = fs::remove_dir(path.join(LEAF));
            let _ = fs::remove_dir(path);
        }
        if self.enabled {
            // Another one may use it by now.
            let _ = enable(&self.root, "-");
        }
    }
}

fn enable(directory: &Path, sign: &str) -> std::io::Result<()> {
    fs::write(
        directory.join("cgroup.subtree_control"),
        format!("{sign}{SPARE}"),
    )
}

#[test]
#[ignore = "needs root"]
fn the_kernel_places_and_counts_a_process_on_version_2() {
    let mut mount = Mount::make();
    let has_controller = mount.enable_spare();
    let name = PathBuf::from(format!("kubepods-vmlet-test-{}", std::process::id()));
    mount.make_dir(&name);
    if has_controller {
        enable(&mount.root.join(&name), "+").unwrap();
    }
    let directory = mount.make_dir(&name.join("pod1"));
    let pod = PodCgroup::parse(&format!("/{}/pod1", name.display())).unwrap();
    // kubelet hands its controllers down to the containers of a pod: the pod itself takes no
    // process then.
    let first = Process::start("cat", &[]);
    if has_controller {
        enable(&directory, "+").unwrap();
        let refused = fs::write(directory.join("cgroup.procs"), first.pid().to_string());
        assert!(refused.is_err(), "the pod's directory took a process");
    }
    let machine = Process::busy();
    pod.place(&mount.root, machine.pid()).unwrap();
    // Again, as after a restart of the machine: the leaf is there.
    pod.place(&mount.root, first.pid()).unwrap();

    let leaf = format!("0::/{}/pod1/{LEAF}", name.display());
    for process in [&machine, &first] {
        let shown = process.cgroups();
        assert!(shown.lines().any(|line| line == leaf), "{leaf} in {shown}");
    }
    let members = fs::read_to_string(directory.join(LEAF).join("cgroup.procs")).unwrap();
    assert_eq!(members.lines().count(), 2, "{members}");
    let container = ContainerPod::from_cgroups(&machine.cgroups()).expect("a pod of kubelet's");
    assert!(container.holds(&first.cgroups()));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(!container.holds(&own), "{own}");

    // The kernel counts time without any controller; a clock that stops hangs the test.
    let used = || pod.usage(&mount.root).cpu_nanoseconds.expect("CPU time");
    let before = used();
    while used() < before + 10_000_000 {
        std::thread::yield_now();
    }
    let usage = pod.usage(&mount.root);
    let counts_memory = directory.join("memory.current").exists();
    assert_eq!(usage.memory.is_some(), counts_memory, "{usage:?}");
    let killed = pod.oom_kills(&mount.root);
    assert_eq!(killed, counts_memory.then_some(0));

    // The end of all its processes is the end of its use.
    drop((machine, first));
    let events = fs::read_to_string(directory.join("cgroup.events")).unwrap();
    assert!(events.contains("populated 0"), "{events}");
    let gone = PodCgroup::parse(&format!("/{}/pod2", name.display())).unwrap();
    let other = Process::start("cat", &[]);
    let error = gone.place(&mount.root, other.pid()).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
}
