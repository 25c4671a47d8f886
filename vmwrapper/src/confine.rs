//! Confines QEMU to the files of its machine.
//!
//! Invariant: after [`restrict`] this process, and what it becomes, opens only what every emulator
//! needs (libraries, firmware, devices), what its own command line names, and what is in the
//! directories that it serves, and in that of the layers of its root disk; it listens on and
//! connects to no TCP port, and signals no process that is not confined with it, as far as the
//! kernel's Landlock can. After [`close_directories`] the directories of the machine are closed to
//! the group that all machines share.
//! Failure: a kernel without Landlock confines nothing, and that is an error only if it is required;
//! everything else that fails is an error of the start.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use crate::files::Directory;

/// The newest version of Landlock that the rules are written for; older kernels do a part of it.
const VERSION: ABI = ABI::V6;

/// Programs, libraries, firmware, and what the C library and QEMU look up about the system.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/etc",
    "/sys/devices",
    "/sys/module",
    "/sys/fs/cgroup",
    "/proc/self",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
];

/// Devices that emulators open by themselves.
const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/kvm",
    "/dev/net/tun",
    "/dev/vhost-net",
    "/dev/vhost-vsock",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("close {path} to other machines")]
    Close {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("confine the emulator by Landlock")]
    Landlock(#[from] RulesetError),
    #[error(
        "vm.landlock is \"require\", and the kernel of this node has no Landlock: boot a kernel with it, with \
         landlock in its parameter lsm="
    )]
    Missing,
}

/// Whether a kernel without Landlock will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// It is used where the kernel has it.
    Available,
    /// The emulator does not start without.
    Required,
}

/// What a machine needs that its command line does not name.
#[derive(Debug)]
pub(crate) struct Granted<'a> {
    /// The directories that it serves.
    pub(crate) served: &'a [Directory],
    /// The directory of the layers of its root disk.
    pub(crate) layers: Option<&'a Path>,
}

/// Closes the machine's directories that these arguments name to other machines.
pub(crate) fn close_directories(arguments: &[OsString]) -> Result<(), Error> {
    directories(&named(arguments))
        .iter()
        .try_for_each(|directory| close(directory))
}

/// Restricts this process to what `emulator` needs with these arguments, and to what it is granted, by
/// Landlock.
pub(crate) fn restrict(
    emulator: &Path,
    arguments: &[OsString],
    granted: &Granted<'_>,
    need: Need,
) -> Result<(), Error> {
    let named = named(arguments);
    let own = directories(&named);
    let all = AccessFs::from_all(VERSION);
    let execute: BitFlags<AccessFs> = AccessFs::Execute | AccessFs::ReadFile;
    let program = execute | AccessFs::ReadDir;
    let file = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let socket = file | AccessFs::MakeSock | AccessFs::RemoveFile;
    // Paths that do not exist get no rule.
    let restricted = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM, program))?
        .add_rules(path_beneath_rules([emulator], execute))?
        .add_rules(path_beneath_rules(DEVICES, file))?
        .add_rules(path_beneath_rules(named, file))?
        .add_rules(path_beneath_rules(own, socket))?
        .add_rules(path_beneath_rules(granted.layers, file))?
        .add_rules(
            granted
                .served
                .iter()
                .map(|of| Ok::<_, RulesetError>(rule(of))),
        )?
        .restrict_self()?;
    match restricted.ruleset {
        RulesetStatus::NotEnforced if need == Need::Required => Err(Error::Missing),
        _ => Ok(()),
    }
}

/// What QEMU may do in a directory that it serves: all that files, directories and links need.
fn rule(directory: &Directory) -> PathBeneath<BorrowedFd<'_>> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let change = AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::Refer
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    let access = if directory.read_only {
        read
    } else {
        read | change
    };
    PathBeneath::new(directory.file.as_fd(), access)
}

/// The files that a command line names: whole arguments, values of options, and strings of JSON
/// objects that begin with a slash. libvirt composes the line; no part of it is a guest's.
fn named(arguments: &[OsString]) -> Vec<PathBuf> {
    let parts = arguments.iter().flat_map(|argument| {
        let bytes = argument.as_bytes();
        let is_json = bytes.first() == Some(&b'{');
        bytes.split(move |byte| {
            if is_json {
                *byte == b'"'
            } else {
                matches!(byte, b'=' | b',')
            }
        })
    });
    let mut paths: Vec<_> = parts
        .filter(|part| part.len() > 1 && part[0] == b'/')
        .map(|part| PathBuf::from(OsStr::from_bytes(part)))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The directories of this machine alone: those around its files that belong to its user.
fn directories(named: &[PathBuf]) -> Vec<PathBuf> {
    let own = nix::unistd::geteuid().as_raw();
    let is_own = |path: &PathBuf| {
        let found = std::fs::symlink_metadata(path);
        own != 0 && found.is_ok_and(|found| found.is_dir() && found.uid() == own)
    };
    let mut around: Vec<_> = named
        .iter()
        .filter_map(|path| path.parent().map(Path::to_owned))
        .filter(is_own)
        .collect();
    around.dedup();
    around
}

/// libvirt makes them accessible for the group.
fn close(directory: &Path) -> Result<(), Error> {
    std::fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(|source| {
        let path = directory.to_owned();
        Error::Close { path, source }
    })
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn the_files_of_a_command_line_are_found_in_every_notation() {
        let line = [
            "-object",
            r#"{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/q/domain-1/master-key.aes"}"#,
            "-blockdev",
            r#"{"driver":"file","filename":"/p/root,x=1.qcow2","node-name":"n"}"#,
            "-chardev",
            "socket,id=charserial0,path=/c/serial,server=on,logfile=/c/a.raw,logappend=on",
            "-kernel",
            "/boot/vmlinuz",
            "-name",
            "guest=vmlet-1,debug-threads=on",
            "/",
        ];
        let line: Vec<_> = line.iter().map(Into::into).collect();
        let found: Vec<_> = named(&line)
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        assert_eq!(
            found,
            [
                "/boot/vmlinuz",
                "/c/a.raw",
                "/c/serial",
                "/p/root,x=1.qcow2",
                "/q/domain-1/master-key.aes"
            ]
        );
    }
}
