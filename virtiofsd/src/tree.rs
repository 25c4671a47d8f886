//! Copies of mounts that are mounted nowhere yet.
//!
//! Invariant: a copy has its access, its propagation and its owners before anything reaches it.
//! Failure: the kernel's error; a file system that cannot show other owners is none.
#![allow(unsafe_code)] // mount_setattr has no safe form; a comment states why the call is sound.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::libc;
use nix::sys::stat::Mode;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::mounts::Access;

/// The directory that is the root of paths.
pub(crate) fn root(path: &Path) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(path, flags, Mode::empty()).with_context(|| path.display().to_string())
}

/// What is at a path below the root; links lead to what they name below it.
pub(crate) fn find(root: &OwnedFd, path: &Path) -> nix::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how).map(File::from)
}

/// A copy of what is mounted at an open file or directory, with all that is mounted below.
pub(crate) fn copy(of: &impl AsFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(of, "", flags).context("copy the mount")
}

/// Whether mounts of the node appear in the copy later.
pub(crate) fn set_propagation(tree: &impl AsRawFd, follows: bool) -> Result<()> {
    let mut change = unchanged();
    change.propagation = if follows {
        libc::MS_SLAVE
    } else {
        libc::MS_PRIVATE
    };
    set(tree, &change, true).context("set the propagation")
}

/// Takes the right to write away.
pub(crate) fn set_access(tree: &impl AsRawFd, access: Access) -> Result<()> {
    let mut change = unchanged();
    change.attr_set = libc::MOUNT_ATTR_RDONLY;
    match access {
        Access::Write => Ok(()),
        Access::ReadOnly => set(tree, &change, false),
        Access::AllReadOnly => set(tree, &change, true),
    }
    .context("make the mount read-only")
}

/// Takes the right away to run programs and to open devices, here and below.
pub(crate) fn set_inert(tree: &impl AsRawFd) -> Result<()> {
    let mut change = unchanged();
    change.attr_set = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    set(tree, &change, true).context("forbid programs and devices")
}

/// Shows owners as they are in this user namespace.
pub(crate) fn set_owners(tree: &impl AsRawFd, namespace: &File) -> nix::Result<()> {
    let mut change = unchanged();
    change.attr_set = libc::MOUNT_ATTR_IDMAP;
    change.userns_fd = u64::from(namespace.as_raw_fd().unsigned_abs());
    // A file system below may have no such owners.
    set(tree, &change, true).or_else(|_| set(tree, &change, false))
}

const fn unchanged() -> libc::mount_attr {
    libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    }
}

fn set(tree: &impl AsRawFd, change: &libc::mount_attr, below: bool) -> nix::Result<()> {
    let below = if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a string with an end, the structure is the kernel's and as long as stated,
    // and both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | below,
            std::ptr::from_ref(change),
            size_of::<libc::mount_attr>(),
        )
    };
    nix::errno::Errno::result(done).map(drop)
}
