//! Checks that every program of the node image finds its libraries there.
//!
//! Invariant: the machine's own libraries are never looked at.
//! Failure: names the programs and what they miss: a package was left out that is needed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

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

/// Where packages have libraries.
fn folders(root: &Path) -> [PathBuf; 2] {
    ["lib", "usr/lib"].map(|folder| root.join(folder).join("x86_64-linux-gnu"))
}

/// A library below `root`, where packages were unpacked.
pub(super) fn find(root: &Path, name: &str) -> Result<PathBuf> {
    let mut places = folders(root).map(|folder| folder.join(name)).into_iter();
    let found = places.find(|place| place.exists());
    found.with_context(|| format!("no package has {name}"))
}

/// Names of the libraries that a program needs, those of its libraries among them.
pub(super) fn used(root: &Path, program: &Path) -> Result<Vec<String>> {
    let listed = listed(root, program)?;
    let missing = not_found(&listed);
    if !missing.is_empty() {
        bail!("{} misses {}", program.display(), missing.join(", "));
    }
    Ok(resolved(&listed))
}

fn unresolved(root: &Path, program: &Path) -> Result<Vec<String>> {
    Ok(not_found(&listed(root, program)?))
}

/// What the loader prints of a program's libraries.
fn listed(root: &Path, program: &Path) -> Result<String> {
    let folders = folders(root).map(|folder| folder.display().to_string());
    let mut loader = run::command(root.join("lib64/ld-linux-x86-64.so.2"));
    loader.args(["--inhibit-cache", "--library-path", &folders.join(":")]);
    // It fails when something is missing, and reports it on stdout.
    let output = run::capture(loader.arg("--list").arg(program))?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    if not_found(&listed).is_empty() && !output.status.success() {
        let reported = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} cannot be loaded: {}",
            program.display(),
            reported.trim()
        );
    }
    Ok(listed)
}

/// Names of libraries that were found; the loader itself has a path in place of a name.
fn resolved(listed: &str) -> Vec<String> {
    let names = listed.lines().filter_map(|line| {
        let (name, _) = line.trim().split_once(" => ")?;
        (!name.contains('/')).then(|| name.to_owned())
    });
    names.collect()
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
        let listed = "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /x/libc.so.6 (0x0)\n\t/lib64/ld.so => /x/ld.so (0x0)\n";
        assert_eq!(resolved(listed), ["libc.so.6"]);
    }
}
