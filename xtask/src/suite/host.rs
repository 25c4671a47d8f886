//! What a run of the suite says nothing about without it: the machine, its kernel, and the versions of
//! the programs which are not ours.
//!
//! Invariant: it is the first line of a run, and part of the report.
//! Failure: what cannot be found out is `unknown`.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::{run, stack, workspace};

const UNKNOWN: &str = "unknown";

/// The host of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Host {
    accelerator: &'static str,
    cgroup: &'static str,
    cgroup_driver: &'static str,
    lsm: String,
    kernel: String,
    libvirt: String,
    qemu: String,
    kubernetes: String,
    containerd: String,
}

impl Host {
    /// The one that this program runs on.
    pub(super) fn here() -> Self {
        let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        Self {
            accelerator: accelerator(),
            cgroup: if is_v2 { "v2" } else { "v1" },
            cgroup_driver: stack::CGROUP_DRIVER,
            lsm: text("/sys/kernel/security/lsm"),
            kernel: text("/proc/sys/kernel/osrelease"),
            libvirt: version_of("libvirtd"),
            qemu: version_of("qemu-system-x86_64"),
            kubernetes: module("kubernetes", "k8s.io/kubernetes"),
            containerd: module("containerd", "github.com/containerd/containerd/v2"),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            accelerator,
            cgroup,
            cgroup_driver,
            lsm,
            kernel,
            libvirt,
            qemu,
            kubernetes,
            containerd,
        } = self;
        write!(
            formatter,
            "host: accelerator {accelerator}, cgroup {cgroup} (driver {cgroup_driver}), LSM {lsm}, kernel \
             {kernel}, libvirt {libvirt}, QEMU {qemu}, Kubernetes {kubernetes}, containerd {containerd}"
        )
    }
}

/// What the guests of stacks run with, as far as it is known: the first stack boots a guest to find out.
fn accelerator() -> &'static str {
    match stack::known_kvm().ok().flatten() {
        Some(true) => "kvm",
        Some(false) => "tcg",
        None => "not probed yet",
    }
}

fn text(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    known(text.trim())
}

fn version_of(program: &str) -> String {
    let printed = run::output(run::command(program).arg("--version"));
    known(version(&printed.unwrap_or_default()).unwrap_or_default())
}

/// The first word that begins with a digit.
fn version(printed: &str) -> Option<&str> {
    let mut words = printed.split_whitespace();
    words.find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))
}

/// The version of a module that the tools are built of.
fn module(folder: &str, name: &str) -> String {
    let file = workspace::root().join("tests/tools").join(folder);
    let text = fs::read_to_string(file.join("go.mod")).unwrap_or_default();
    known(required(&text, name).unwrap_or_default())
}

fn required<'a>(go_mod: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = go_mod.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix("require ").unwrap_or(line)
    });
    lines.find_map(|line| {
        let version = line.strip_prefix(name)?.strip_prefix(' ')?;
        version.split_whitespace().next()
    })
}

fn known(text: &str) -> String {
    match text {
        "" => UNKNOWN.to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_that_programs_and_modules_state() {
        assert_eq!(version("libvirtd (libvirt) 9.0.0\n"), Some("9.0.0"));
        let qemu = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright 2003\n";
        assert_eq!(version(qemu), Some("7.2.22"));
        assert_eq!(version("no version"), None);
        let go_mod = "module x\n\nrequire k8s.io/kubernetes v1.37.2\n\nrequire (\n\tk8s.io/api v0.37.2 \
                      // indirect\n)\n";
        assert_eq!(required(go_mod, "k8s.io/kubernetes"), Some("v1.37.2"));
        assert_eq!(required(go_mod, "k8s.io/api"), Some("v0.37.2"));
        assert_eq!(required(go_mod, "k8s.io"), None);
    }

    #[test]
    fn the_versions_of_kubernetes_and_containerd_are_known() {
        let host = Host::here();
        for version in [&host.kubernetes, &host.containerd, &host.kernel] {
            assert_ne!(version, UNKNOWN, "{host}");
        }
    }
}
