//! The file system of the node image, from unpacked packages and what their scripts would have
//! done.
//!
//! Invariant: no script of a package is run; users, links and certificates that the programs need
//! are written here.
//! Failure: names the package or file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::oci::Tree;
use crate::run;

/// Folders that distributions have moved below `/usr`.
const MERGED: &[&str] = &["bin", "lib", "lib64", "sbin"];

/// Documentation, translations, the means of an init system or desktop that is not there, and the
/// parts of libvirt that would look after the node's network and devices.
const LEFT_OUT: &[&str] = &[
    "etc/apparmor.d",
    "etc/cron.daily",
    "etc/default",
    "etc/init.d",
    "etc/libvirt",
    "etc/logrotate.d",
    "etc/xdg",
    "usr/include",
    "usr/lib/systemd",
    "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_interface.so",
    "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_network.so",
    "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_nodedev.so",
    "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_nwfilter.so",
    "usr/lib/tmpfiles.d",
    "usr/sbin/arpd",
    "usr/lib/sysusers.d",
    "usr/share/applications",
    "usr/share/apport",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/doc",
    "usr/share/doc-base",
    "usr/share/fish",
    "usr/share/gdb",
    "usr/share/icons",
    "usr/share/info",
    "usr/share/initramfs-tools",
    "usr/share/libvirt/test-screenshot.png",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/polkit-1",
    "usr/share/zsh",
    "var",
];

/// Programs at another path than in their package: a profile of AppArmor that the node has for
/// that path would hold in the container, too, and Debian's forbids libvirtd our emulator.
const MOVED: &[(&str, &str)] = &[("usr/sbin/libvirtd", "usr/libexec/vmlet/sbin/libvirtd")];

/// Where the image says which packages are in it.
pub(crate) const STATUS: &str = "var/lib/dpkg/status.d";

/// Names of the one program that stands behind all of iptables.
const IPTABLES: &[&str] = &[
    "iptables",
    "iptables-restore",
    "iptables-save",
    "ip6tables",
    "ip6tables-restore",
    "ip6tables-save",
];

/// QEMU's user has the number that Debian reserves for it; files on nodes belong to that number.
const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
libvirt-qemu:x:64055:64055:QEMU:/nonexistent:/bin/false
";

const GROUP: &str = "\
root:x:0:
tty:x:5:
kvm:x:104:libvirt-qemu
libvirt:x:108:
libvirt-qemu:x:64055:
nogroup:x:65534:
";

/// Unpacks packages into an empty folder.
pub(super) fn unpack(packages: &[PathBuf], root: &Path) -> Result<PathBuf> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("empty {}", root.display()))?;
    }
    fs::create_dir_all(root).with_context(|| format!("create {}", root.display()))?;
    for package in packages {
        let mut dpkg = run::command("dpkg-deb");
        run::output(dpkg.arg("--extract").arg(package).arg(root))?;
    }
    Ok(root.to_owned())
}

/// The tree of the image, without our own programs.
pub(super) fn tree(root: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    add(&mut tree, root, Path::new(""))?;
    for folder in MERGED {
        tree.link(folder, Path::new("usr").join(folder))?;
    }
    for folder in ["etc/vmlet", "root", "run", "proc", "sys", "dev", "var/lib"] {
        tree.folder(folder, 0o755)?;
    }
    tree.folder("tmp", 0o1777)?;
    tree.link("var/run", "../run")?;
    tree.bytes("etc/passwd", 0o644, PASSWD)?;
    tree.bytes("etc/group", 0o644, GROUP)?;
    names_and_certificates(root, &mut tree)?;
    for name in IPTABLES {
        tree.link(Path::new("usr/sbin").join(name), "xtables-nft-multi")?;
    }
    shell(&mut tree, root)?;
    Ok(tree)
}

/// How names of hosts are resolved, and who vouches for servers.
pub(super) fn names_and_certificates(root: &Path, tree: &mut Tree) -> Result<()> {
    tree.bytes("etc/nsswitch.conf", 0o644, "hosts: files dns\n")?;
    let bundle = certificates(root)?;
    tree.bytes("etc/ssl/certs/ca-certificates.crt", 0o644, bundle)
}

fn add(tree: &mut Tree, root: &Path, below: &Path) -> Result<()> {
    let folder = root.join(below);
    let context = || format!("list {}", folder.display());
    for entry in fs::read_dir(&folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let path = below.join(entry.file_name());
        if LEFT_OUT.iter().any(|left_out| path == Path::new(left_out)) {
            continue;
        }
        let metadata = entry.metadata().with_context(context)?;
        let place = place(&path);
        // No program of the image changes its user by being run.
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_dir() {
            tree.folder(&place, mode)?;
            add(tree, root, &path)?;
        } else if metadata.is_symlink() {
            let target = fs::read_link(entry.path()).with_context(context)?;
            tree.link(&place, target)?;
        } else {
            tree.copy(&place, mode, &entry.path())?;
        }
    }
    Ok(())
}

/// Where a file of a package is in the image, in which `/bin` and its kind are links.
fn place(path: &Path) -> PathBuf {
    if let Some((_, moved)) = MOVED.iter().find(|(from, _)| path == Path::new(from)) {
        PathBuf::from(moved)
    } else if MERGED.iter().any(|folder| path.starts_with(folder)) {
        Path::new("usr").join(path)
    } else {
        path.to_owned()
    }
}

/// Names the packages where programs that look for known flaws read them: a file of dpkg's for each.
pub(super) fn record(packages: &[PathBuf], tree: &mut Tree) -> Result<()> {
    for package in packages {
        let mut dpkg = run::command("dpkg-deb");
        let fields = run::output(dpkg.arg("--field").arg(package))?;
        let name = package.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.split('_').next());
        let name = name.with_context(|| format!("{} has no name", package.display()))?;
        tree.bytes(Path::new(STATUS).join(name), 0o644, fields)?;
    }
    Ok(())
}

/// What `update-ca-certificates` would have written.
fn certificates(root: &Path) -> Result<Vec<u8>> {
    let folder = root.join("usr/share/ca-certificates/mozilla");
    let context = || format!("read {}", folder.display());
    let mut files = fs::read_dir(&folder)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<Result<Vec<_>, _>>()
        })
        .with_context(context)?;
    files.sort();
    let mut bundle = Vec::new();
    for file in files {
        bundle.extend(fs::read(&file).with_context(context)?);
    }
    Ok(bundle)
}

/// busybox under every name that no package has taken.
fn shell(tree: &mut Tree, root: &Path) -> Result<()> {
    let applets = run::output(run::command(root.join("bin/busybox")).arg("--list"))?;
    for applet in applets.lines() {
        let taken = ["usr/bin", "usr/sbin"]
            .iter()
            .any(|folder| tree.holds(Path::new(folder).join(applet)));
        if !taken {
            tree.name(Path::new("usr/bin").join(applet), "usr/bin/busybox")?;
        }
    }
    Ok(())
}
