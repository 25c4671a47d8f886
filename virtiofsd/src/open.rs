//! Opens a directory for an emulator that serves it itself.
//!
//! Invariant: the descriptor is that of a copy of the mount which is mounted nowhere: nothing is
//! above the directory, the user and group of the emulator have the place of the wanted ones, programs
//! and devices are forbidden, and a read-only copy is read-only in all that is mounted below. Mounts
//! of the node appear in it no more.
//! Failure: the step that the kernel refused. A node or a file system that cannot show other owners
//! is a part of the message, and the directory has the owners that it has.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context, Result, ensure};
use fdpass::Connection;

use crate::args::Open;
use crate::ids::Swap;
use crate::mounts::Access;
use crate::{ids, tree};

/// Sends the directory to standard output, a socket.
pub(crate) fn open(args: &Open) -> Result<()> {
    let socket = io::stdout().as_fd().try_clone_to_owned();
    let socket = Connection::from(socket.context("take the socket")?);
    let copy = prepare(args).with_context(|| args.directory.display().to_string())?;
    let note = show_owners(args, &copy)?;
    let sent = socket.send(format!("{note}\n").as_bytes(), &[copy.as_fd()]);
    sent.context("hand the directory over")
}

fn prepare(args: &Open) -> Result<File> {
    let source = tree::find(&tree::root(&args.root)?, &args.directory)?;
    ensure!(source.metadata()?.is_dir(), "it is no directory");
    let copy = tree::copy(&source)?;
    tree::set_propagation(&copy, false)?;
    tree::set_inert(&copy)?;
    if args.read_only {
        tree::set_access(&copy, Access::AllReadOnly)?;
    }
    Ok(copy.into())
}

/// Why the owners are shown as they are, if they are.
fn show_owners(args: &Open, copy: &File) -> Result<String> {
    let group = copy.metadata().context("read the group")?.gid();
    let as_gid = if args.groups.contains(&group) {
        group
    } else {
        args.as_gid
    };
    let users = Swap(args.uid, args.as_uid);
    let groups = Swap(args.gid, as_gid);
    let namespace = match ids::namespace(Some(users), Some(groups)) {
        Ok(namespace) => namespace,
        // A node may forbid user namespaces.
        Err(error) => return Ok(format!("{error:#}")),
    };
    let shown = tree::set_owners(copy, &namespace);
    Ok(shown
        .err()
        .map_or_else(String::new, |errno| errno.desc().to_owned()))
}
