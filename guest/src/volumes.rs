//! Volumes of the pod in the view of a command.
//!
//! The host shares one directory with the machine of a pod, below which it mounts the volumes of each
//! container. The agent mounts that once, in a place that only root enters.
//!
//! Invariant: before the fork nothing is looked up in a volume; after it only system calls are made.
//! Failure: [`Invalid`] before the fork; after it the [`Step`] that the kernel refuses.

use std::ffi::{CStr, CString};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path};

use guestapi::{POD_SHARE, Volume};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, mkdir};

use crate::step::Step;

const NONE: Option<&CStr> = None;
const TYPE: Option<&CStr> = Some(c"virtiofs");
/// Of directories that are made.
const MODE: Mode = Mode::from_bits_truncate(0o755);

/// Volumes that cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("the name {0:?} is no name of a volume")]
    Name(String),
    #[error("the path {0:?} of a volume is not absolute, or has a part that is no name")]
    Path(String),
    #[error("mount the volumes of the pod: {0}: does the kernel of the guest have virtiofs?")]
    Share(io::Error),
}

/// The volumes of one command.
#[derive(Debug)]
pub(crate) struct Volumes {
    all: Vec<Bind>,
    /// The working directory, which may be in a volume, after those above it; empty for the home of
    /// the user.
    directory: Vec<CString>,
}

#[derive(Debug)]
struct Bind {
    source: CString,
    target: CString,
    /// The directories on the way to the target.
    parents: Vec<CString>,
    is_directory: bool,
    read_only: bool,
}

impl Volumes {
    /// Prepares the mounts; the share is mounted in this place.
    pub(crate) fn new(wanted: &[Volume], share: &Path, directory: &str) -> Result<Self, Invalid> {
        let bind = |volume: &Volume| {
            let mut parts = Path::new(&volume.name).components();
            if !matches!(
                (parts.next(), parts.next()),
                (Some(Component::Normal(_)), None)
            ) {
                return Err(Invalid::Name(volume.name.clone()));
            }
            let refused = || Invalid::Path(volume.path.clone());
            let target = Path::new(&volume.path);
            let mut parts = target.components();
            let is_path = parts.next() == Some(Component::RootDir)
                && parts.clone().next().is_some()
                && parts.all(|part| matches!(part, Component::Normal(_)));
            if !is_path {
                return Err(refused());
            }
            let mut parents = way_to(target).ok_or_else(refused)?;
            let target = parents.pop().ok_or_else(refused)?;
            Ok(Bind {
                source: c(&share.join(&volume.name)).ok_or_else(refused)?,
                target,
                parents,
                is_directory: volume.is_directory,
                read_only: volume.read_only,
            })
        };
        let all = wanted.iter().map(bind).collect::<Result<_, _>>()?;
        let refused = || Invalid::Path(directory.to_owned());
        let directory = way_to(Path::new(directory)).ok_or_else(refused)?;
        mount_share(share).map_err(Invalid::Share)?;
        Ok(Self { all, directory })
    }

    /// Whether the working directory is entered here.
    pub(crate) const fn have_directory(&self) -> bool {
        !self.directory.is_empty()
    }

    /// Makes the mounts.
    pub(crate) fn enter(&self) -> io::Result<()> {
        for bind in &self.all {
            bind.make().map_err(Step::Volume.failed())?;
        }
        Ok(())
    }

    /// Makes what is missing of the working directory, as other runtimes do it.
    pub(crate) fn make_directory(&self) -> io::Result<()> {
        for directory in &self.directory {
            there(mkdir(directory.as_c_str(), MODE)).map_err(Step::MakeDirectory.failed())?;
        }
        Ok(())
    }

    /// Enters the working directory, once all mounts are there.
    pub(crate) fn enter_directory(&self) -> io::Result<()> {
        match self.directory.last() {
            Some(directory) => chdir(directory.as_c_str()).map_err(Step::Directory.failed()),
            None => Ok(()),
        }
    }
}

impl Bind {
    fn make(&self) -> nix::Result<()> {
        for parent in &self.parents {
            there(mkdir(parent.as_c_str(), MODE))?;
        }
        let target = self.target.as_c_str();
        if self.is_directory {
            there(mkdir(target, MODE))?;
        } else {
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let mode = Mode::from_bits_truncate(0o644);
            there(open(target, flags, mode).map(drop))?;
        }
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(self.source.as_c_str()), target, NONE, flags, NONE)?;
        if self.read_only {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            mount(NONE, target, NONE, flags, NONE)?;
        }
        Ok(())
    }
}

/// What is made may be there.
fn there(made: nix::Result<()>) -> nix::Result<()> {
    match made {
        // In a read-only file system the mount shows what is missing.
        Err(Errno::EEXIST | Errno::EROFS) => Ok(()),
        other => other,
    }
}

/// Mounts the share unless it is mounted.
fn mount_share(place: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(place)?;
    let above = place.parent().unwrap_or(place);
    if place.metadata()?.dev() == above.metadata()?.dev() {
        mount(Some(POD_SHARE), place, TYPE, MsFlags::empty(), NONE)?;
    }
    Ok(())
}

/// A path after the directories above it, without the root directory, which is there.
fn way_to(path: &Path) -> Option<Vec<CString>> {
    let is_below_root = |path: &&Path| path.parent().is_some();
    let mut way: Vec<_> = path
        .ancestors()
        .filter(is_below_root)
        .map(c)
        .collect::<Option<_>>()?;
    way.reverse();
    Some(way)
}

fn c(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}
