//! The distribution packages that building, testing and running a node stack need.
//!
//! Invariant: only what is missing is installed, and only from the machine's own package sources.
//! Failure: a package that is still missing after apt-get ran is named in the error.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::run;

/// QEMU and libvirt: these must come from one release of the distribution.
const VIRTUALISATION: &[&str] = &[
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "libvirt-dev",
    "ovmf",
    "qemu-guest-agent",
    "qemu-system-x86",
    "qemu-utils",
];

/// Everything else: build tools, networking, and the parts of the guest images.
const OTHERS: &[&str] = &[
    "btrfs-progs",
    "busybox-static",
    "ca-certificates",
    "containernetworking-plugins",
    "cpio",
    "curl",
    "debian-archive-keyring",
    "docker-registry",
    "dosfstools",
    "dropbear-bin",
    "e2fsprogs",
    "fdisk",
    "gcc",
    "iproute2",
    "iptables",
    "isc-dhcp-client",
    "libc6-dev",
    "libcap-ng-dev",
    "libseccomp-dev",
    "lz4",
    "mmdebstrap",
    "mtools",
    "nftables",
    "openssh-client",
    "pkg-config",
    "runc",
    "syslinux",
    "syslinux-common",
    "systemd",
    "systemd-boot-efi",
    "util-linux",
    "xz-utils",
    "zstd",
];

/// Packages that some of the supported releases fold into another package.
const OPTIONAL: &[&str] = &["libvirt-daemon-driver-qemu"];

/// Installed packages and their versions.
pub(crate) type Installed = BTreeMap<String, String>;

/// Queries dpkg which of `names` are installed.
pub(crate) fn installed(names: &[&str]) -> Result<Installed> {
    let mut query = run::command("dpkg-query");
    query.args([
        "--show",
        "--showformat",
        "${Package}\\t${db:Status-Status}\\t${Version}\\n",
    ]);
    // The exit code is 1 as soon as one of them is unknown; the list is complete all the same.
    let output = run::capture(query.args(names)).context("is this a Debian or Ubuntu machine")?;
    Ok(parse_query(&String::from_utf8_lossy(&output.stdout)))
}

/// The packages of the list that are missing, in two groups: QEMU and libvirt, and the others.
pub(crate) fn missing() -> Result<(Vec<&'static str>, Vec<&'static str>)> {
    let all: Vec<&str> = VIRTUALISATION.iter().chain(OTHERS).copied().collect();
    let installed = installed(&all)?;
    let absent = |group: &[&'static str]| -> Vec<&'static str> {
        group
            .iter()
            .copied()
            .filter(|name| !installed.contains_key(*name))
            .collect()
    };
    Ok((absent(VIRTUALISATION), absent(OTHERS)))
}

/// Leaves out packages that this release does not know and that we can do without.
pub(crate) fn available(names: Vec<&'static str>) -> Result<Vec<&'static str>> {
    let mut kept = Vec::new();
    for name in names {
        if !OPTIONAL.contains(&name) || candidate(name)?.is_some() {
            kept.push(name);
        }
    }
    Ok(kept)
}

/// The version apt would install, if it knows the package.
pub(crate) fn candidate(name: &str) -> Result<Option<String>> {
    let policy = run::output(
        run::command("apt-cache")
            .env("LC_ALL", "C")
            .args(["policy", name]),
    )?;
    Ok(parse_candidate(&policy))
}

/// Refreshes the package lists.
pub(crate) fn update() -> Result<()> {
    run::check(apt_get().arg("update"))
}

/// Installs `names`; from the backports of this release when `backports` names them.
pub(crate) fn install(names: &[&str], backports: Option<&str>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut apt = apt_get();
    apt.args(["install", "--yes", "--no-install-recommends"]);
    apt.args(["-o", "Dpkg::Options::=--force-confold"]);
    if let Some(release) = backports {
        apt.args(["--target-release", release]);
    }
    let outcome = run::check(apt.args(names));
    // A service that does not start here (no systemd, say) is no reason to stop; a package that is
    // not installed is.
    let present = installed(names)?;
    let absent: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| !present.contains_key(*name))
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    match outcome {
        Err(error) => Err(error.context(format!("not installed: {}", absent.join(" ")))),
        Ok(()) => bail!(
            "apt-get succeeded but did not install: {}",
            absent.join(" ")
        ),
    }
}

/// The backports release to take QEMU and libvirt from, if this machine already took one of them
/// there.
pub(crate) fn backports() -> Result<Option<String>> {
    let from_backports = installed(VIRTUALISATION)?
        .values()
        .any(|version| version.contains("~bpo"));
    if !from_backports {
        return Ok(None);
    }
    let release = os_release()?;
    Ok(field(&release, "VERSION_CODENAME").map(|name| format!("{name}-backports")))
}

/// The distribution of this machine and its version, such as `debian-12`.
pub(crate) fn distribution() -> Result<String> {
    let release = os_release()?;
    let fields = ["ID", "VERSION_ID"].map(|name| field(&release, name));
    let fields: Option<Vec<_>> = fields.into_iter().collect();
    let fields = fields.context("/etc/os-release has no ID or VERSION_ID")?;
    Ok(fields.join("-"))
}

fn os_release() -> Result<String> {
    std::fs::read_to_string("/etc/os-release").context("read /etc/os-release")
}

fn apt_get() -> std::process::Command {
    let mut apt = run::root_command("env");
    apt.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]);
    apt.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]);
    apt
}

fn parse_query(text: &str) -> Installed {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let name = fields.next()?;
            let state = fields.next()?;
            let version = fields.next()?;
            (state == "installed").then(|| (name.to_owned(), version.to_owned()))
        })
        .collect()
}

fn parse_candidate(policy: &str) -> Option<String> {
    let line = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (line != "(none)").then(|| line.to_owned())
}

fn field<'a>(os_release: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = os_release.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.map(|value| value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fully_installed_packages_count() {
        let text =
            "qemu-utils\tinstalled\t1:7.2\nmtools\tconfig-files\t4.0\nfdisk\tnot-installed\t\n";
        let installed = parse_query(text);
        assert_eq!(installed.len(), 1);
        assert_eq!(installed["qemu-utils"], "1:7.2");
    }

    #[test]
    fn a_package_without_a_candidate_is_unknown() {
        assert_eq!(
            parse_candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"),
            None
        );
        let policy = "x:\n  Installed: (none)\n  Candidate: 1.2-3\n  Version table:\n";
        assert_eq!(parse_candidate(policy).as_deref(), Some("1.2-3"));
        assert_eq!(parse_candidate(""), None);
    }

    #[test]
    fn fields_of_os_release_are_found_by_their_whole_name() {
        let text = "NAME=\"Debian\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(field(text, "VERSION_CODENAME"), Some("bookworm"));
        assert_eq!(field(text, "ID"), Some("debian"));
        assert_eq!(field(text, "VERSION_ID"), Some("12"));
        assert_eq!(field("ID=void\n", "VERSION_CODENAME"), None);
    }
}
