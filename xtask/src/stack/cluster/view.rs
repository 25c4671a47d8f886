//! What a node sees of the machine's file system: folders of its own where Kubernetes has fixed
//! places.
//!
//! Invariant: mounts made in it reach neither the host nor another node, and propagate among all
//! programs and pods of the node; the host's files are never written.
//! Failure: each step that the kernel refuses is named.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use super::KUBELET_ROOT;
use crate::stack::{Layout, mounts};

/// Folders of the host that a node may change without changing the host's, and their layers' names.
const OVERLAID: &[(&str, &str)] = &[
    ("/etc", "etc"),
    ("/opt", "opt"),
    ("/usr/libexec", "usr-libexec"),
    ("/var/lib", "var-lib"),
    ("/var/log", "var-log"),
];

/// Folders with fixed places and their replacements below the node's directory: these hold much,
/// are measured, or are checked from outside.
const BINDS: &[(&str, &str)] = &[
    ("host/kubelet", KUBELET_ROOT),
    ("host/containerd", "/var/lib/containerd"),
    ("host/cni", "/var/lib/cni"),
    ("host/vmlet", "/var/lib/vmlet"),
    ("logs/pods", "/var/log/pods"),
];

/// The kernel's name of this boot, and the file that a node sees in its place.
const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_ID: &str = "boot-id";

/// Moves this process into a mount namespace as a node's programs need it.
pub(crate) fn enter(layout: &Layout) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("create a mount namespace")?;
    // First apart from the host, then shared among ourselves.
    propagate(MsFlags::MS_PRIVATE)?;
    forget_namespaces(layout)?;
    for (folder, name) in OVERLAID {
        if layout.dir().starts_with(folder) {
            bail!("a node's directory cannot lie below {folder}, which the node lays over");
        }
        overlay(layout, Path::new(folder), name)?;
    }
    for (ours, theirs) in BINDS {
        fs::create_dir_all(theirs).with_context(|| format!("create {theirs}"))?;
        let ours = layout.path(ours);
        fs::create_dir_all(&ours).with_context(|| format!("create {}", ours.display()))?;
        bind(&ours, Path::new(theirs))?;
    }
    replace_run(layout)?;
    if !layout.path(BOOT_ID).exists() {
        new_boot_id(layout)?;
    }
    bind(&layout.path(BOOT_ID), Path::new(KERNEL_BOOT_ID))?;
    propagate(MsFlags::MS_SHARED)
}

/// Makes the next programs believe that the machine was booted again.
pub(crate) fn new_boot_id(layout: &Layout) -> Result<()> {
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid").context("make a boot id")?;
    fs::write(layout.path(BOOT_ID), id).context("write the boot id")
}

/// Our copies of these mounts would keep the namespaces of others.
fn forget_namespaces(layout: &Layout) -> Result<()> {
    let own = layout.netns_path();
    for kept in mounts::all()? {
        if kept.kind == mounts::NAMESPACE && kept.point != own {
            mounts::detach(&kept.point)?;
        }
    }
    Ok(())
}

fn overlay(layout: &Layout, folder: &Path, name: &str) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let layer = |kind: &str| -> Result<PathBuf> {
        let path = layout.path(&format!("host/{name}/{kind}"));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(path)
    };
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        folder.display(),
        layer("upper")?.display(),
        layer("work")?.display()
    );
    mount(
        Some("overlay"),
        folder,
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .with_context(|| format!("lay over {}", folder.display()))
}

/// An empty `/run`, in which only the node's own network namespace has its usual place.
fn replace_run(layout: &Layout) -> Result<()> {
    let run = layout.path("host/run");
    for folder in ["lock", "netns"] {
        let folder = run.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let netns = run.join("netns").join(layout.netns_name());
    File::create(&netns).with_context(|| format!("create {}", netns.display()))?;
    bind(&layout.netns_path(), &netns)?;
    // Hidden by what follows, it could never be detached.
    umount2(&layout.netns_path(), MntFlags::MNT_DETACH).context("detach the usual place")?;
    bind(&run, Path::new("/run"))
}

fn propagate(kind: MsFlags) -> Result<()> {
    let flags = MsFlags::MS_REC | kind;
    mount(None::<&Path>, "/", None::<&Path>, flags, None::<&Path>)
        .with_context(|| format!("make mounts {kind:?}"))
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&Path>, flags, None::<&Path>)
        .with_context(|| format!("bind {} to {}", from.display(), to.display()))
}
