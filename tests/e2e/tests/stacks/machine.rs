//! A node as users have it: systemd, cgroup v2, AppArmor, the distribution's containerd and libvirt, in a virtual
//! machine of its own; installed by hand and by packages, upgraded, also from an earlier version, removed; and as a node
//! of kubeadm, with other versions of Kubernetes and of containerd, too.
//!
//! Invariant: each folder of steps begins with a machine on which Vmlet never was. Tests with the same distribution run
//! one after the other (`alone` in `weights.tsv`): there is one machine of each.
//! Failure: the step is named, with what it said.

#![allow(clippy::print_stdout, reason = "what steps said is part of the result")]

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::program;
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PACKAGES: [&str; 3] = ["vmlet", "vmlet-criproxy", "vmletctl"];

/// The folders of steps.
const LIVES: [&str; 4] = ["install", "packages", "earlier", "kubeadm"];

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

#[test]
#[ignore = "needs root"]
fn debian_12_is_a_node_of_kubernetes_1_36() -> Result<()> {
    let files = files()?;
    kubeadm(files.path(), &["--kubernetes", "1.36"])?;
    run("debian-12", files.path(), "kubeadm")
}

#[test]
#[ignore = "needs root"]
fn debian_13_is_a_node_of_kubernetes_1_35_with_its_own_containerd() -> Result<()> {
    let files = files()?;
    let options = ["--kubernetes", "1.35", "--containerd", "distribution"];
    kubeadm(files.path(), &options)?;
    run("debian-13", files.path(), "kubeadm")
}

fn installed_upgraded_and_removed(os: &str) -> Result<()> {
    print!("{}", e2e::xtask(&["earlier"])?);
    let files = files()?;
    kubeadm(files.path(), &[])?;
    for folder in LIVES {
        run(os, files.path(), folder)?;
    }
    Ok(())
}

/// A folder with the programs of this build, packages and settings.
fn files() -> Result<TempDir> {
    let built = ["deb", "--debug", "--no-build"];
    print!("{}", e2e::xtask(&[&built[..], &PACKAGES].concat())?);
    let files = tempfile::tempdir()?;
    let mut collect = Command::new(Path::new(ROOT).join("tests/machine/files"));
    let collected = program::output(collect.arg(files.path()))?;
    ensure!(
        collected.status.success(),
        "tests/machine/files: {collected:?}"
    );
    Ok(files)
}

/// Adds what kubeadm needs to `files`.
fn kubeadm(files: &Path, options: &[&str]) -> Result<()> {
    let arguments = [&["machine", "kubeadm", name(files)?], options].concat();
    print!("{}", e2e::xtask(&arguments)?);
    Ok(())
}

/// Runs the steps of a folder of `tests/machine`.
fn run(os: &str, files: &Path, folder: &str) -> Result<()> {
    let steps = Path::new(ROOT).join("tests/machine").join(folder);
    let steps = name(&steps)?;
    let files = name(files)?;
    let run = [
        "machine", "--os", os, "run", "--files", files, "--steps", steps,
    ];
    print!("{}", e2e::xtask(&run).context(folder.to_owned())?);
    Ok(())
}

fn name(path: &Path) -> Result<&str> {
    path.to_str().context("the folder's name")
}
