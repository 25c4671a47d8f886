//! Forbids system calls that QEMU does not need, for kernels without Landlock and beside it.
//!
//! A program of root that finds a socket of this machine by its name, as libvirtd does after a
//! restart, must not be led elsewhere: QEMU's user owns the directories of its sockets.
//!
//! Invariant: this process, and what it becomes, makes no link, no pipe and no device, and renames
//! nothing. io_uring, which could do the same, is not there: QEMU does without, as on a kernel that is
//! too old. A call of another architecture ends the process.
//! Failure: the library's error. QEMU that serves directories by 9p needs these calls for its guest;
//! its caller does not forbid them then.

use libseccomp::error::SeccompError;
use libseccomp::{ScmpAction, ScmpFilterContext, ScmpSyscall};
use nix::libc::{ENOSYS, EPERM};

/// Calls that fail as if the user had no right to them.
const REFUSED: [&str; 9] = [
    "link",
    "linkat",
    "mknod",
    "mknodat",
    "rename",
    "renameat",
    "renameat2",
    "symlink",
    "symlinkat",
];

/// A call that fails as if the kernel did not know it.
const UNKNOWN: &str = "io_uring_setup";

/// From here on this process and what it becomes cannot make these calls, nor gain privileges.
pub(crate) fn forbid() -> Result<(), SeccompError> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow)?;
    for name in REFUSED {
        filter.add_rule(ScmpAction::Errno(EPERM), ScmpSyscall::from_name(name)?)?;
    }
    // A library that is older than the kernel does not know it.
    if let Ok(call) = ScmpSyscall::from_name(UNKNOWN) {
        filter.add_rule(ScmpAction::Errno(ENOSYS), call)?;
    }
    filter.load()
}
