//! Mounts volumes below the directory of a server that runs, in its mount namespace alone.
//!
//! Invariant: what is mounted ends with the server: the node sees none of it. A mount that has
//! the name already is replaced. A request that fails leaves nothing mounted.
//! Failure: a path that is not there or is neither a file nor a directory; a server that has ended.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, move_mount};

use crate::args::{Attach, Detach};
use crate::mounts::{Name, Wanted};
use crate::owners::with_root;
use crate::{ids, running, tree};

/// A copy of a mount, ready for its place.
struct Ready {
    name: Name,
    tree: OwnedFd,
    is_directory: bool,
    /// Why it shows owners as they are.
    note: Option<String>,
}

/// Which owners mounts show.
enum Owners {
    AsTheyAre,
    /// Those of a user namespace.
    Of(File),
    /// As they are, for this reason.
    Unknown(String),
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_directory {
            "directory"
        } else {
            "file"
        };
        write!(
            f,
            "{} {kind} {}",
            self.name,
            self.note.as_deref().unwrap_or_default()
        )
    }
}

/// Mounts all that is wanted.
pub(crate) fn attach(args: &Attach) -> Result<()> {
    let Some(namespace) = running::namespace(&args.server)? else {
        bail!("the server {} has ended", args.server.pid);
    };
    let owners = match (args.owners.root_uid, args.owners.root_gid) {
        (None, None) => Owners::AsTheyAre,
        // A node may forbid user namespaces.
        (uid, gid) => ids::namespace(uid.map(with_root), gid.map(with_root))
            .map_or_else(|error| Owners::Unknown(format!("{error:#}")), Owners::Of),
    };
    let root = tree::root(&args.root)?;
    let mut all = Vec::new();
    for wanted in &args.mounts {
        let prepared = prepare(&root, wanted, &owners);
        all.push(prepared.with_context(|| wanted.path.display().to_string())?);
    }
    running::enter(&namespace)?;
    for (done, ready) in all.iter().enumerate() {
        if let Err(error) = place(ready) {
            for made in &all[..=done] {
                remove(&made.name).ok();
            }
            return Err(error.context(format!("mount {}", ready.name)));
        }
    }
    let mut output = io::stdout();
    all.iter()
        .try_for_each(|ready| writeln!(output, "{ready}"))?;
    Ok(())
}

/// Unmounts all that is named; what is not mounted is no error.
pub(crate) fn detach(args: &Detach) -> Result<()> {
    let Some(namespace) = running::namespace(&args.server)? else {
        return Ok(());
    };
    running::enter(&namespace)?;
    for name in &args.names {
        remove(name).with_context(|| format!("unmount {name}"))?;
    }
    Ok(())
}

fn prepare(root: &OwnedFd, wanted: &Wanted, owners: &Owners) -> Result<Ready> {
    let source = tree::find(root, &wanted.path)?;
    let kind = source.metadata()?.file_type();
    if !kind.is_dir() && !kind.is_file() {
        bail!("it is neither a file nor a directory, and a guest can use no other");
    }
    let tree = tree::copy(&source)?;
    tree::set_propagation(&tree, wanted.follows)?;
    tree::set_access(&tree, wanted.access)?;
    let note = match owners {
        Owners::AsTheyAre => None,
        Owners::Of(namespace) => {
            let refused = tree::set_owners(&tree, namespace).err();
            refused.map(|errno| errno.desc().to_owned())
        }
        Owners::Unknown(reason) => Some(reason.clone()),
    };
    Ok(Ready {
        name: wanted.name.clone(),
        tree,
        is_directory: kind.is_dir(),
        note,
    })
}

fn place(ready: &Ready) -> Result<()> {
    remove(&ready.name)?;
    let path = ready.name.path();
    if ready.is_directory {
        fs::create_dir(&path)
    } else {
        File::create_new(&path).map(drop)
    }
    .context("make its place")?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(&ready.tree, "", CWD, &path, flags)?)
}

/// Unmounts, and removes the place; neither needs to be there.
fn remove(name: &Name) -> Result<()> {
    let path = name.path();
    let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
    loop {
        match umount2(&path, flags) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    match remove_place(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn remove_place(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        fs::remove_dir(path)
    } else {
        fs::remove_file(path)
    }
}
