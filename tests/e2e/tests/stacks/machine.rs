//! A node as users have it: systemd, cgroup v2, AppArmor, the distribution's containerd and libvirt, in a virtual
//! machine of its own; installed by hand and by packages, upgraded, removed; and as a node of kubeadm.
//!
//! Invariant: each folder of steps begins with a machine on which Vmlet never was.
//! Failure: the step is named, with what it said.

#![allow(clippy::print_stdout, reason = "what steps said is part of the result")]

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PACKAGES: [&str; 3] = ["vmlet", "vmlet-criproxy", "vmletctl"];

/// The folders of steps.
const LIVES: [&str; 3] = ["install", "packages", "kubeadm"];

#[test]
#[ignore = "needs root"]
fn debian_12_is_installed_upgraded_and_removed() -> Result<()> {
    installed_upgraded_and_removed("debian-12")
}

#[test]
#[ignore = "needs root"]
fn debian_13_is_installed_upgraded_and_removed() -> Result<()> {
    installed_upgraded_and_removed("debian-13")
}

fn installed_upgraded_and_removed(os: &str) -> Result<()> {
    let root = Path::new(ROOT).canonicalize()?;
    let built = ["deb", "--debug", "--no-build"];
    print!("{}", e2e::xtask(&[&built[..], &PACKAGES].concat())?);
    let files = tempfile::tempdir()?;
    let collected = Command::new(root.join("tests/machine/files"))
        .arg(files.path())
        .status()
        .context("start tests/machine/files")?;
    ensure!(collected.success(), "tests/machine/files: {collected}");
    let files = files.path().to_str().context("the folder's name")?;
    print!("{}", e2e::xtask(&["machine", "kubeadm", files])?);
    for folder in LIVES {
        let steps = root.join("tests/machine").join(folder);
        let steps = steps.to_str().context("the folder's name")?;
        let run = [
            "machine", "--os", os, "run", "--files", files, "--steps", steps,
        ];
        print!("{}", e2e::xtask(&run).context(folder)?);
    }
    Ok(())
}
