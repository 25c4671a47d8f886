//! Labels of SELinux that the scripts of the cloud-init disk give to files of a guest.
//!
//! Invariant: the scripts are those of the disk, with their paths below a directory of the test;
//! programs that would change this system are functions that record their arguments.
//! Failure: the calls that were made, in their order.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

const INSTALL: &str = include_str!("../src/vm/disks/seed/install-agent.sh");
const BOOT: &str = include_str!("../src/vm/disks/seed/boot.sh");

/// Absolute paths of the scripts.
const PATHS: [&str; 6] = [
    "/dev/virtio-ports",
    "/sys/fs/selinux",
    "/usr/sbin/vmlet-guest",
    "/var/lib/vmlet",
    "/run/systemd/system",
    "/run/vmlet",
];

/// A guest with systemd and the port of the agent.
fn guest() -> tempfile::TempDir {
    let guest = tempfile::tempdir().unwrap();
    for folder in ["dev/virtio-ports", "run/systemd/system", "seed/vmlet/files"] {
        fs::create_dir_all(guest.path().join(folder)).unwrap();
    }
    let port = "dev/virtio-ports/dev.vmlet.guest.0";
    fs::write(guest.path().join(port), "").unwrap();
    guest
}

/// Runs a script of the disk; returns the calls, with paths of the guest.
fn calls(guest: &Path, script: &str, programs: &[&str]) -> Vec<String> {
    let root = guest.to_str().unwrap();
    let mut script = script.to_owned();
    for path in PATHS {
        script = script.replace(path, &format!("{root}{path}"));
    }
    let recorded = programs
        .iter()
        .map(|name| format!("{name}() {{ echo \"{name} $*\" >>'{root}/calls'; }}\n"));
    let recorded: String = recorded.collect();
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("{recorded}{script}"))
        .arg("script")
        .arg(guest.join("seed"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let calls = fs::read_to_string(guest.join("calls")).unwrap_or_default();
    let calls = calls.replace(root, "");
    calls.lines().map(str::to_owned).collect()
}

fn installed(has_selinux: bool) -> Vec<String> {
    let guest = guest();
    if has_selinux {
        fs::create_dir_all(guest.path().join("sys/fs/selinux")).unwrap();
    }
    let agent = guest.path().join("seed/vmlet-guest");
    fs::write(agent, "agent").unwrap();
    let calls = calls(guest.path(), INSTALL, &["chcon", "systemctl", "mv"]);
    let program = guest.path().join("var/lib/vmlet/vmlet-guest.new");
    assert_eq!(fs::read_to_string(program).unwrap(), "agent");
    calls
}

#[test]
fn with_selinux_the_agent_is_a_program_before_it_has_its_name() {
    let named = "mv /var/lib/vmlet/vmlet-guest.new /var/lib/vmlet/vmlet-guest";
    let started = [
        "systemctl daemon-reload",
        "systemctl --no-block restart vmlet-guest.service",
    ];
    let label = "chcon -t bin_t /var/lib/vmlet/vmlet-guest.new";
    let [reload, restart] = started;
    assert_eq!(installed(true), [label, named, reload, restart]);
    assert_eq!(installed(false), [named, reload, restart]);
}

#[test]
fn a_file_gets_the_label_of_its_place() {
    let guest = guest();
    let seed = guest.path().join("seed/vmlet");
    let place = guest.path().join("etc/app.conf");
    fs::write(seed.join("files/0"), "content").unwrap();
    fs::write(seed.join("shares.sh"), "").unwrap();
    let put = format!("put 0 0644 '{}'\n", place.display());
    fs::write(seed.join("files.sh"), put).unwrap();
    let calls = calls(guest.path(), BOOT, &["restorecon"]);
    assert_eq!(fs::read_to_string(place).unwrap(), "content");
    assert_eq!(calls, ["restorecon /etc/app.conf"]);
}
