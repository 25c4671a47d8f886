//! A node: a copy of a platform's files, with what answers for kubelet and for the proxy.
//!
//! Invariant: [`Node::files`] has every file, link and folder but those of the kernel and of running programs.
//! Failure: a panic with what the program has printed.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::servers;

/// SIGKILL.
const KILLED: i32 = 9;

/// What the tests know of a platform.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Platform {
    pub(crate) name: &'static str,
    pub(crate) fixture: &'static str,
    pub(crate) service: &'static str,
    /// A file that names kubelet's endpoint when the proxy is installed.
    pub(crate) file: &'static str,
    pub(crate) primary: &'static str,
}

pub(crate) const KUBEADM: Platform = Platform {
    name: "kubeadm",
    fixture: "kubeadm",
    service: "kubelet.service",
    file: "var/lib/kubelet/kubeadm-flags.env",
    primary: "/var/run/containerd/containerd.sock",
};

pub(crate) const INSTANCE: Platform = Platform {
    fixture: "kubeadm-instance",
    file: "var/lib/kubelet/instance-config.yaml",
    ..KUBEADM
};

pub(crate) const K3S: Platform = Platform {
    name: "k3s",
    fixture: "k3s",
    service: "k3s-agent.service",
    file: "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/99-vmlet.conf",
    primary: "/run/k3s/containerd/containerd.sock",
};

pub(crate) const RKE2: Platform = Platform {
    name: "rke2",
    fixture: "rke2",
    service: "rke2-agent.service",
    file: "var/lib/rancher/rke2/agent/etc/kubelet.conf.d/99-vmlet.conf",
    primary: "/run/k3s/containerd/containerd.sock",
};

pub(crate) const K0S: Platform = Platform {
    name: "k0s",
    fixture: "k0s",
    service: "k0sworker.service",
    file: "etc/systemd/system/k0sworker.service.d/50-vmlet.conf",
    primary: "/run/k0s/containerd.sock",
};

pub(crate) const MICROK8S: Platform = Platform {
    name: "microk8s",
    fixture: "microk8s",
    service: "snap.microk8s.daemon-kubelite.service",
    file: "var/snap/microk8s/7000/args/kubelet",
    primary: "/var/snap/microk8s/common/run/containerd.sock",
};

/// What is at a path: mode and bytes, or the target of a link.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Folder(u32),
    File(u32, Vec<u8>),
    Link(PathBuf),
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(mode) => write!(f, "folder {mode:o}"),
            Self::File(mode, bytes) => {
                write!(f, "file {mode:o} {}", String::from_utf8_lossy(bytes))
            }
            Self::Link(target) => write!(f, "link to {}", target.display()),
        }
    }
}

pub(crate) type Files = BTreeMap<PathBuf, Entry>;

/// A node.
pub(crate) struct Node {
    folder: TempDir,
    pub(crate) platform: Platform,
    healthz: SocketAddr,
    _proxy: Runtime,
}

impl Node {
    /// In memory where there is such a folder: each write is followed by a sync.
    pub(crate) fn new(platform: Platform) -> Self {
        let memory = tempfile::tempdir_in("/dev/shm");
        Self::at(memory.or_else(|_| tempfile::tempdir()).unwrap(), platform)
    }

    /// Where programs may be executed.
    pub(crate) fn on_disk(platform: Platform) -> Self {
        Self::at(tempfile::tempdir().unwrap(), platform)
    }

    fn at(folder: TempDir, platform: Platform) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let root = folder.path().join("root");
        copy(&fixtures.join(platform.fixture), &root);
        for made in [
            "opt",
            "run/vmlet",
            "proc/1/net",
            "etc/systemd/system/multi-user.target.wants",
        ] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        let wants = root.join("etc/systemd/system/multi-user.target.wants");
        symlink("/usr/lib/systemd/system/x", wants.join(platform.service)).unwrap();
        if root.join("var/snap/microk8s").exists() {
            symlink("7000", root.join("var/snap/microk8s/current")).unwrap();
        }
        for file in [
            "var/lib/kubelet/config.yaml",
            "var/snap/microk8s/7000/args/kubelet",
        ] {
            if root.join(file).exists() {
                fs::set_permissions(root.join(file), fs::Permissions::from_mode(0o640)).unwrap();
            }
        }
        for (file, text) in [("1/net/unix", ""), ("4711/comm", "vmlet-criproxy\n")] {
            let file = root.join("proc").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let state = folder.path().join("state");
        fs::create_dir_all(state.join("faults")).unwrap();
        let healthz = servers::healthz(&state);
        let proxy = servers::proxy(&root.join("run/vmlet/criproxy.sock"), &state);
        let node = Self {
            folder,
            platform,
            healthz,
            _proxy: proxy,
        };
        node.set_program("first");
        node
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn state(&self, name: &str) -> PathBuf {
        self.folder.path().join("state").join(name)
    }

    pub(crate) fn set(&self, name: &str) {
        fs::write(self.state(name), "").unwrap();
    }

    pub(crate) fn unset(&self, name: &str) {
        fs::remove_file(self.state(name)).unwrap();
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.state(name).exists()
    }

    /// The program of the proxy that is installed next.
    pub(crate) fn set_program(&self, text: &str) {
        fs::write(self.folder.path().join("vmlet-criproxy"), text).unwrap();
    }

    /// The program of the proxy that runs.
    pub(crate) fn running(&self) -> Option<String> {
        fs::read_to_string(self.state("active")).ok()
    }

    /// The calls of the service manager since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.state("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.state("calls"));
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn command(&self, command: &str) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_vmlet-installer"));
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        program
            .arg(command)
            .arg("--root")
            .arg(self.path(""))
            .arg("--healthz")
            .arg(self.healthz.to_string())
            .arg("--systemctl")
            .arg(fixtures.join("systemctl"))
            .env("ROOT", self.path(""))
            .env("STATE", self.state(""))
            .env("SERVICE", self.platform.service)
            .env("VMLET_FAULT_DIR", self.state("faults"));
        if command == "install" {
            program
                .arg("--proxy")
                .arg(self.folder.path().join("vmlet-criproxy"));
        }
        program
    }

    /// Runs a command that must succeed; returns what it has printed.
    pub(crate) fn run(&self, command: &str) -> String {
        self.run_with(command, &[])
    }

    pub(crate) fn run_with(&self, command: &str, arguments: &[&str]) -> String {
        let output = self.command(command).args(arguments).output().unwrap();
        let printed = text(&output);
        assert!(output.status.success(), "{command}: {printed}");
        assert!(!self.has("accidents"), "{command}: {printed}");
        printed
    }

    /// Runs a command that must fail.
    pub(crate) fn fail(&self, command: &str, arguments: &[&str]) -> String {
        let output = self.command(command).args(arguments).output().unwrap();
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {printed}");
        assert!(!self.has("accidents"), "{command}: {printed}");
        printed
    }

    /// Runs a command that is killed at a crash point; returns whether it has passed that many.
    pub(crate) fn crash(&self, command: &str, point: u32) -> bool {
        let armed = self.state("faults").join(format!("installer.{point}"));
        fs::write(&armed, "").unwrap();
        let output = self.command(command).output().unwrap();
        let printed = text(&output);
        assert!(
            !self.has("accidents"),
            "{command}, point {point}: {printed}"
        );
        if output.status.signal() == Some(KILLED) {
            return true;
        }
        assert!(
            output.status.success(),
            "{command}, point {point}: {printed}"
        );
        fs::remove_file(armed).unwrap();
        false
    }

    /// Runs an installation that fails, and kills it at a crash point.
    pub(crate) fn crash_failing(&self, point: u32) -> bool {
        let armed = self.state("faults").join(format!("installer.{point}"));
        fs::write(&armed, "").unwrap();
        let mut command = self.command("install");
        let output = command.args(["--timeout", "300ms"]).output().unwrap();
        let is_killed = output.status.signal() == Some(KILLED);
        if !is_killed {
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            fs::remove_file(armed).unwrap();
        }
        is_killed
    }

    /// Everything that the installer may have changed.
    pub(crate) fn files(&self) -> Files {
        let mut files = Files::new();
        collect(&self.path(""), Path::new(""), &mut files);
        files
    }

    pub(crate) fn is_behind_proxy(&self) -> bool {
        self.has("behind") && self.running().is_some()
    }
}

/// Fails with the entries that differ.
#[track_caller]
pub(crate) fn assert_same(found: &Files, expected: &Files, when: &str) {
    let paths = found.keys().chain(expected.keys());
    for path in paths {
        assert_eq!(
            found.get(path),
            expected.get(path),
            "{when}: {}",
            path.display()
        );
    }
}

fn collect(root: &Path, below: &Path, files: &mut Files) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        if [Path::new("proc"), Path::new("run")].contains(&path.as_path()) {
            continue;
        }
        let place = root.join(&path);
        let metadata = place.symlink_metadata().unwrap();
        let mode = metadata.permissions().mode() & 0o7777;
        let entry = if metadata.is_symlink() {
            Entry::Link(fs::read_link(&place).unwrap())
        } else if metadata.is_dir() {
            collect(root, &path, files);
            Entry::Folder(mode)
        } else {
            Entry::File(mode, fs::read(&place).unwrap())
        };
        files.insert(path, entry);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{out}{err}")
}
