//! The systemd units of `deploy/systemd`.
//!
//! Invariant: every unit starts a program of ours, or a script of the node image, restarts whenever it ends, and systemd
//! understands it.
//! Failure: the test names the unit and the line.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde::Deserialize;

use crate::workspace::{metadata, root};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Starts a script, which is in the node image, too.
const LIBVIRTD: &str = "vmlet-libvirtd.service";

/// A unit's name and text.
struct Unit {
    name: String,
    text: String,
}

impl Unit {
    /// Every value of a key, in order.
    fn values(&self, key: &str) -> Vec<&str> {
        let value = |line: &'_ str| -> Option<usize> {
            let (name, _) = line.split_once('=')?;
            (name == key).then_some(name.len() + 1)
        };
        let lines = self.text.lines();
        lines
            .filter_map(|line| Some(&line[value(line)?..]))
            .collect()
    }

    fn program(&self) -> &str {
        let starts = self.values("ExecStart");
        assert_eq!(starts.len(), 1, "{}: {starts:?}", self.name);
        starts[0].split(' ').next().unwrap()
    }
}

fn units() -> Vec<Unit> {
    let folder = std::fs::read_dir(root().join("deploy/systemd")).unwrap();
    let units: Vec<_> = folder
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "service")
        })
        .map(|path| Unit {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            text: std::fs::read_to_string(path).unwrap(),
        })
        .collect();
    assert!(units.len() >= 3, "{} units", units.len());
    units
}

fn programs() -> BTreeSet<String> {
    let metadata: Metadata = metadata();
    let targets = metadata
        .packages
        .into_iter()
        .flat_map(|package| package.targets);
    targets
        .filter(|target| target.kind.iter().any(|kind| kind == "bin"))
        .map(|target| target.name)
        .collect()
}

#[test]
fn every_unit_starts_a_program_of_ours_that_has_its_name() {
    let programs = programs();
    for unit in units() {
        let (folder, program) = unit.program().rsplit_once('/').unwrap();
        if unit.name == LIBVIRTD {
            assert_eq!(folder, "/usr/libexec/vmlet");
            assert!(root().join("deploy/image").join(program).exists());
            continue;
        }
        assert_eq!(folder, "/usr/bin", "{}", unit.name);
        assert_eq!(unit.name, format!("{program}.service"));
        assert!(
            programs.contains(program),
            "{}: {program} is not in {programs:?}",
            unit.name
        );
    }
}

#[test]
fn every_unit_comes_back_and_leaves_the_others_their_sockets() {
    for unit in units() {
        let one = |key: &str| unit.values(key).join(" ");
        assert_eq!(one("Restart"), "always", "{}", unit.name);
        assert_eq!(one("StartLimitIntervalSec"), "0", "{}", unit.name);
        let folders = match unit.name.as_str() {
            LIBVIRTD => "vmlet vmlet/libvirt",
            _ => "vmlet",
        };
        assert_eq!(one("RuntimeDirectory"), folders, "{}", unit.name);
        assert_eq!(one("RuntimeDirectoryPreserve"), "yes", "{}", unit.name);
        assert!(one("Before").contains("kubelet.service"), "{}", unit.name);
    }
}

#[test]
fn nothing_but_the_program_is_stopped_where_others_may_be_below_it() {
    let names = ["vmlet.service", "vmlet-tapmanager.service", LIBVIRTD];
    for unit in units()
        .iter()
        .filter(|unit| names.contains(&unit.name.as_str()))
    {
        assert_eq!(unit.values("KillMode"), ["process"], "{}", unit.name);
    }
}

/// An option that implies a mount namespace would hide the pods' network namespaces from the node.
#[test]
fn the_tapmanager_stays_in_the_mount_namespace_of_the_node() {
    let units = units();
    let unit = units
        .iter()
        .find(|unit| unit.name == "vmlet-tapmanager.service")
        .unwrap();
    for line in unit.text.lines() {
        let hiding = [
            "Private",
            "Protect",
            "ReadWrite",
            "ReadOnly",
            "Inaccessible",
            "Bind",
            "Root",
        ];
        let hides = hiding.iter().any(|option| line.starts_with(option));
        assert!(!hides, "{line}");
    }
}

/// `vmlet-virtiofsd` confines itself in new ones, the daemon starts programs that read images in them, and enters those
/// of pods' networks.
#[test]
fn the_daemon_may_use_the_namespaces_that_its_helpers_confine_themselves_in() {
    let units = units();
    let unit = units
        .iter()
        .find(|unit| unit.name == "vmlet.service")
        .unwrap();
    let allowed = unit.values("RestrictNamespaces").join(" ");
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts"] {
        assert!(
            allowed.split(' ').any(|name| name == namespace),
            "{namespace} is not in {allowed}"
        );
    }
}

#[test]
fn systemd_understands_every_line() {
    let scratch = tempfile::tempdir().unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    for unit in units() {
        // It wants programs to exist: put empty ones in their place.
        let program = scratch.path().join(unit.program().trim_start_matches('/'));
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, "#!/bin/true\n").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let text = unit.text.replace(unit.program(), program.to_str().unwrap());
        let path = scratch.path().join(&unit.name);
        std::fs::write(&path, text).unwrap();
        verify.arg(path);
    }
    let output = verify.output().expect(
        "systemd-analyze cannot be started: install the package systemd, or run cargo xtask setup",
    );
    let reported = String::from_utf8_lossy(&output.stderr);
    // What it has to say about units of the distribution is not about ours.
    let ours: Vec<_> = reported
        .lines()
        .filter(|line| line.contains("vmlet"))
        .collect();
    assert!(
        ours.is_empty() && output.status.success(),
        "{}: {reported}",
        output.status
    );
}
