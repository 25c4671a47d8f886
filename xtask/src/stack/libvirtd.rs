//! libvirtd without systemd: its paths bound to the stack's folders, and a private `/dev`.
//!
//! Invariant: it reads and writes nothing of a libvirtd that the machine may run itself, and keeps
//! no network namespace of a pod alive.
//! Failure: each step that the kernel refuses is named.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod, umask};

use super::{Layout, Record, mounts};
use crate::run;

const PROGRAM: &str = "/usr/sbin/libvirtd";

/// libvirt calls systemd here to move a new QEMU into a scope of its own. QEMU must not be moved:
/// its cgroup is its pod's.
const SYSTEM_BUS: &str = "/run/dbus";

/// Folders with fixed places in libvirt, and their replacements below `DIR/libvirt`.
const BINDS: &[(&str, &str)] = &[
    ("etc", "/etc/libvirt"),
    ("run", "/run/libvirt"),
    ("lib", "/var/lib/libvirt"),
    ("cache", "/var/cache/libvirt"),
    ("log", "/var/log/libvirt"),
];

/// Character devices of the private `/dev`. No `kvm`, unless it has proved that it runs guests: a
/// device that only opens makes libvirt probe QEMU again at every call.
const DEVICES: &[(&str, u64, u64)] = &[
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
    ("net/tun", 10, 200),
];
const KVM: (&str, u64, u64) = ("kvm", 10, 232);

/// The command line of the stack's libvirtd.
pub(crate) fn command(layout: &Layout) -> Command {
    let mut command = run::command(program(layout));
    command.arg("-f").arg(layout.path("libvirt/libvirtd.conf"));
    command.arg("-p").arg(layout.path("libvirt/libvirtd.pid"));
    command
}

/// Copies libvirtd into the stack: the AppArmor profile that distributions tie to its usual path
/// would not let it run an emulator below the stack's directory.
pub(crate) fn install(layout: &Layout) -> Result<()> {
    let from = Path::new(PROGRAM);
    let to = program(layout);
    fs::copy(from, &to).with_context(|| format!("copy {PROGRAM} to {}", to.display()))?;
    Ok(())
}

fn program(layout: &Layout) -> PathBuf {
    layout.path("bin/libvirtd")
}

/// Moves this process, and so every QEMU, into a network namespace that has no link but an inactive
/// loopback.
pub(crate) fn leave_network() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("create libvirtd's network namespace")
}

/// Moves this process into a mount namespace as libvirtd needs it.
pub(crate) fn enter_mount_namespace(layout: &Layout) -> Result<()> {
    let kvm = Record::read(layout)?.kvm;
    unshare(CloneFlags::CLONE_NEWNS).context("create a mount namespace")?;
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&Path>, "/", None::<&Path>, flags, None::<&Path>)
        .context("make mounts private")?;
    // Our copies of these mounts would keep the namespaces of deleted pods.
    for kept in mounts::all()?
        .into_iter()
        .filter(|mount| mount.kind == mounts::NAMESPACE)
    {
        mounts::detach(&kept.point)?;
    }
    for (ours, theirs) in BINDS {
        fs::create_dir_all(theirs).with_context(|| format!("create {theirs}"))?;
        bind(&layout.path("libvirt").join(ours), Path::new(theirs))?;
    }
    if Path::new(SYSTEM_BUS).exists() {
        bind(&layout.path("libvirt/no-bus"), Path::new(SYSTEM_BUS))?;
    }
    let dev = layout.path("libvirt/dev");
    build_dev(&dev, kvm)?;
    bind(&dev, Path::new("/dev"))
}

fn build_dev(dev: &Path, kvm: bool) -> Result<()> {
    mount(
        Some("dev"),
        dev,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=755"),
    )
    .with_context(|| format!("mount {}", dev.display()))?;
    let before = umask(Mode::empty());
    for folder in ["net", "pts"] {
        DirBuilder::new()
            .mode(0o755)
            .create(dev.join(folder))
            .with_context(|| format!("create {folder}"))?;
    }
    DirBuilder::new()
        .mode(0o1777)
        .create(dev.join("shm"))
        .context("create shm")?;
    for (name, major, minor) in DEVICES.iter().chain(kvm.then_some(&KVM)) {
        let mode = Mode::from_bits_truncate(0o666);
        mknod(
            &dev.join(name),
            SFlag::S_IFCHR,
            mode,
            makedev(*major, *minor),
        )
        .with_context(|| format!("create the device {name}"))?;
    }
    umask(before);
    for (target, name) in [
        ("pts/ptmx", "ptmx"),
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ] {
        symlink(target, dev.join(name)).with_context(|| format!("link {name}"))?;
    }
    bind(Path::new("/dev/pts"), &dev.join("pts"))
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&Path>, flags, None::<&Path>)
        .with_context(|| format!("bind {} to {}", from.display(), to.display()))
}
