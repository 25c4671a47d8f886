//! Checks that every program of the node image finds its libraries there.
//!
//! Invariant: the machine's own libraries are never looked at.
//! Failure: names the programs and what they miss: a package was left out that is needed.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::PROGRAMS;
use crate::run;

/// What the containers run, besides our own programs.
const CHECKED: &[&str] = &[
    "sbin/ip",
    "usr/bin/qemu-img",
    "usr/bin/qemu-system-x86_64",
    "usr/bin/virsh",
    "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
    "usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
    "usr/sbin/libvirtd",
    "usr/sbin/nft",
    "usr/sbin/xtables-nft-multi",
];

/// Looks at the programs below `root`, where packages were unpacked, and at ours in `built`.
pub(super) fn check(root: &Path, built: &Path) -> Result<()> {
    let theirs = CHECKED.iter().map(|program| root.join(program));
    let ours = PROGRAMS.iter().map(|(program, _)| built.join(program));
    let mut missing = Vec::new();
    for program in theirs.chain(ours) {
        for library in unresolved(root, &program)? {
            missing.push(format!("{} misses {library}", program.display()));
        }
    }
    if !missing.is_empty() {
        bail!("{}", missing.join(", "));
    }
    Ok(())
}

fn unresolved(root: &Path, program: &Path) -> Result<Vec<String>> {
    let folders = ["lib", "usr/lib"].map(|folder| root.join(folder).join("x86_64-linux-gnu"));
    let folders = folders
        .each_ref()
        .map(|folder: &PathBuf| folder.display().to_string());
    let mut loader = run::command(root.join("lib64/ld-linux-x86-64.so.2"));
    loader.args(["--inhibit-cache", "--library-path", &folders.join(":")]);
    // It fails when something is missing, and reports it on stdout.
    let output = run::capture(loader.arg("--list").arg(program))?;
    let missing = not_found(&String::from_utf8_lossy(&output.stdout));
    if missing.is_empty() && !output.status.success() {
        let reported = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} cannot be loaded: {}",
            program.display(),
            reported.trim()
        );
    }
    Ok(missing)
}

fn not_found(listed: &str) -> Vec<String> {
    listed
        .lines()
        .filter_map(|line| line.trim().strip_suffix(" => not found"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_a_file_is_named() {
        let listed = "\tlibmd.so.0 => not found\n\tlibc.so.6 => /x/libc.so.6 (0x0)\n";
        assert_eq!(not_found(listed), ["libmd.so.0"]);
    }
}
