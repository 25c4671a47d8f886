//! Shows a directory with other owners to the server that is about to enter it.
//!
//! Invariant: the directory is covered in the mount namespace of this process alone, before the
//! server gives its privileges up.
//! Failure: a node or a file system that cannot show other owners is a warning on standard error,
//! and the directory has the owners that it has; another failure is the caller's.

use std::fs::File;

use anyhow::{Context, Result};
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use rustix::mount::{MoveMountFlags, move_mount};

use crate::args::{Root, Serve};
use crate::ids::Swap;
use crate::mounts::Access;
use crate::{ids, tree};

/// Covers the directory with a copy in which root and the user of the server change places.
pub(crate) fn show(args: &Serve) -> Result<()> {
    let Root { root_uid, root_gid } = args.owners;
    if root_uid.is_none() && root_gid.is_none() {
        return Ok(());
    }
    let namespace = match ids::namespace(root_uid.map(with_root), root_gid.map(with_root)) {
        Ok(namespace) => namespace,
        Err(error) => {
            log::warn!("owners are shown as they are: {error:#}");
            return Ok(());
        }
    };
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
    let nothing = None::<&str>;
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(nothing, "/", nothing, slave, nothing).context("hide mounts from the node")?;
    cover(args, &namespace).with_context(|| args.directory.clone())
}

/// Root and this user change places.
pub(crate) const fn with_root(id: u32) -> Swap {
    Swap(0, id)
}

fn cover(args: &Serve, namespace: &File) -> Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(args.directory.as_str(), flags, Mode::empty())?;
    let copy = tree::copy(&directory)?;
    tree::set_propagation(&copy, true)?;
    if args.read_only {
        tree::set_access(&copy, Access::ReadOnly)?;
    }
    if let Err(errno) = tree::set_owners(&copy, namespace) {
        log::warn!("owners are shown as they are: {}", errno.desc());
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&copy, "", &directory, "", flags).context("mount it")?;
    Ok(())
}
