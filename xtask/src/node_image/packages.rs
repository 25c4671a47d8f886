//! The packages of the node image: which, in which version, and their files.
//!
//! Invariant: the list is what apt would install on a machine without any package, so it does not
//! depend on the machine that builds; it is sorted by name.
//! Failure: apt's own message.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::packages::backports;
use crate::run;

/// What the image is for; their dependencies come with them.
const WANTED: &[&str] = &[
    "busybox-static",
    "ca-certificates",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "nftables",
    "ovmf",
    "qemu-system-x86",
    "qemu-utils",
];

/// Dependencies of maintainer scripts, of documentation and of what a node never does.
const UNWANTED: &[&str] = &[
    "adduser",
    "debconf",
    "dpkg",
    "iso-codes",
    "libasound2-data",
    "libaudit-common",
    "libcap2-bin",
    "libdb5.3",
    "libdrm-common",
    "libpam-modules",
    "libpam-modules-bin",
    "libsasl2-modules-db",
    "libsemanage-common",
    "libsemanage2",
    "libsepol2",
    "openssl",
    "passwd",
    "readline-common",
    "sensible-utils",
    "tar",
];

/// One package in one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
}

/// What the list follows from, besides the package lists and the settings of apt.
pub(super) fn requirements() -> Result<String> {
    let release = backports()?.unwrap_or_default();
    Ok(format!("{WANTED:?} {UNWANTED:?} {release}"))
}

/// Everything that goes into the image, as apt-get computes it.
pub(super) fn computed() -> Result<Vec<Package>> {
    let mut apt = run::command("apt-get");
    apt.env("LC_ALL", "C");
    apt.args(["--simulate", "--no-install-recommends"]);
    apt.args([
        "-o",
        "Dir::State::status=/dev/null",
        "-o",
        "Debug::NoLocking=1",
    ]);
    if let Some(release) = backports()? {
        apt.args(["--target-release", &release]);
    }
    let plan = run::output(apt.arg("install").args(WANTED))?;
    let mut packages = planned(&plan);
    packages.retain(|package| !UNWANTED.contains(&package.name.as_str()));
    packages.sort();
    if packages.len() < WANTED.len() {
        bail!("apt-get plans only {} packages", packages.len());
    }
    Ok(packages)
}

/// Fetches the files of `packages` into `folder`; what is there already is kept, other versions are
/// not.
pub(super) fn download(packages: &[Package], folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let absent: Vec<String> = packages
        .iter()
        .filter(|package| file_of(package, folder).is_err())
        .map(|package| format!("{}={}", package.name, package.version))
        .collect();
    if !absent.is_empty() {
        let mut apt = run::command("apt-get");
        apt.current_dir(folder).args(["--quiet", "download"]);
        // The download needs no user of its own: the folder is below ours.
        apt.args(["-o", "APT::Sandbox::User=root"]);
        run::output(apt.args(absent))?;
    }
    let mut files = packages
        .iter()
        .map(|package| file_of(package, folder))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    remove_others(&files, folder)?;
    Ok(files)
}

fn remove_others(files: &[PathBuf], folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let file = entry?.path();
        if !files.contains(&file) {
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
    }
    Ok(())
}

fn file_of(package: &Package, folder: &Path) -> Result<PathBuf> {
    // A colon would be read as the name of a host by some programs.
    let version = package.version.replace(':', "%3a");
    ["amd64", "all"]
        .iter()
        .map(|arch| folder.join(format!("{}_{version}_{arch}.deb", package.name)))
        .find(|file| file.exists())
        .with_context(|| format!("{} was not downloaded", package.name))
}

/// The lines `Inst NAME (VERSION …)` of a simulated installation.
fn planned(plan: &str) -> Vec<Package> {
    plan.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("Inst ")?.split_whitespace();
            Some(Package {
                name: words.next()?.to_owned(),
                version: words.next()?.strip_prefix('(')?.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_packages_that_would_be_installed_count() {
        let plan = "Reading package lists...\n\
                    Inst libc6 (2.36-9 Debian:12.15/oldstable [amd64]) []\n\
                    Conf libc6 (2.36-9 Debian:12.15/oldstable [amd64])\n";
        let packages = planned(plan);
        assert_eq!(packages.len(), 1);
        assert_eq!(packages[0].name, "libc6");
        assert_eq!(packages[0].version, "2.36-9");
    }
}
