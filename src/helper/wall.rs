//! What a helper may open, by Landlock.
//!
//! Invariant: it opens for writing only the files that it inherits, and for reading also what every
//! program needs of the system; it connects to no TCP port, and to no abstract socket outside. So a
//! file that names another one, as a qcow2 header can, leads nowhere.
//! Failure: a kernel without Landlock has no wall: namespaces, users and permissions are what is left then.
//! Everything else that fails keeps the helper from running.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

/// The newest version of Landlock that the rules are written for; older kernels do a part of it.
const VERSION: ABI = ABI::V6;

/// Programs and libraries, and what the C library looks up about the system.
const SYSTEM: [&str; 6] = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/sys/devices"];

/// Devices without content. `qemu-img` tries its locks with one.
pub(super) const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// Rules for a program that inherits `files`; `None` where the kernel has no Landlock.
pub(super) fn around(
    program: (&Path, Option<&File>),
    files: &[impl AsFd],
    within_reach: &[PathBuf],
) -> io::Result<Option<OwnedFd>> {
    rules(program, files, within_reach).map_err(io::Error::other)
}

fn rules(
    (program, executable): (&Path, Option<&File>),
    files: &[impl AsFd],
    within_reach: &[PathBuf],
) -> Result<Option<OwnedFd>, RulesetError> {
    let run = AccessFs::Execute | AccessFs::ReadFile;
    let own = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let inherited = files
        .iter()
        .map(|file| Ok::<_, RulesetError>(PathBeneath::new(file, own)));
    let executable = executable.map(|file| Ok::<_, RulesetError>(PathBeneath::new(file, run)));
    // Paths that do not exist get no rule. A name without a slash is looked up in the system.
    let program = Some(program).filter(|program| program.is_absolute());
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM, run | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(DEVICES, own))?
        .add_rules(path_beneath_rules(program, run))?
        .add_rules(executable)?
        .add_rules(path_beneath_rules(within_reach, own | AccessFs::ReadDir))?
        .add_rules(inherited)?;
    Ok(rules.into())
}
