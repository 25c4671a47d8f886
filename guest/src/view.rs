//! What a command sees of the guest's file system: volumes, masked and read-only paths, a resolver
//! configuration of its own, a read-only root.
//!
//! Invariant: the mounts are in a mount namespace of the command, and no other process of the guest
//! sees them. Everything is prepared before the fork; after it only system calls are made.
//! Failure: [`Invalid`] before the fork; after it the [`Step`] that the kernel refuses.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use guestapi::{SETTINGS, Start};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::places::Places;
use crate::step::Step;
use crate::volumes::{self, Volumes};

const NONE: Option<&CStr> = None;
const RESOLVER: &str = "/etc/resolv.conf";

/// The mounts of one command.
#[derive(Debug, Default)]
pub(crate) struct View {
    volumes: Option<Volumes>,
    /// The file that becomes `/etc/resolv.conf`, and the real place of that.
    resolver: Option<(CString, CString)>,
    masked: Vec<(CString, Kind)>,
    /// With the present flags of the mounts that they are on.
    read_only: Vec<(CString, MsFlags)>,
    /// The present flags of the root mount, which becomes read-only.
    root: Option<MsFlags>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

/// A view that cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    #[error(transparent)]
    Volumes(#[from] volumes::Invalid),
    #[error("{0} paths are more than {SETTINGS}")]
    TooMany(usize),
    #[error("the path {0:?} is not absolute, or has a NUL")]
    Path(String),
    #[error("read the flags of the mount of {0}: {1}")]
    Flags(String, Errno),
    #[error("the guest has no {RESOLVER}, and it cannot be made: {0}")]
    NoResolver(io::Error),
    #[error("write the resolver configuration: {0}")]
    Resolver(io::Error),
}

impl View {
    /// Prepares the mounts of the session of this name; `None` when the command sees what the guest
    /// sees.
    pub(crate) fn new(start: &Start, places: &Places, name: &str) -> Result<Option<Self>, Invalid> {
        let confinement = start.confinement.as_ref();
        let mut view = Self::default();
        if confinement.is_some_and(|confinement| confinement.read_only_root) {
            view.root = Some(flags(Path::new("/"))?);
        }
        if let Some(wanted) = &start.view {
            let counts = [&wanted.masked, &wanted.read_only].map(Vec::len);
            let count = counts.into_iter().fold(wanted.volumes.len(), usize::max);
            if count > SETTINGS {
                return Err(Invalid::TooMany(count));
            }
            if !wanted.volumes.is_empty() {
                let share = places.share();
                let volumes = Volumes::new(&wanted.volumes, &share, &start.directory)?;
                view.volumes = Some(volumes);
            }
            if !wanted.resolver.is_empty() {
                view.resolver = Some(resolver(&wanted.resolver, &places.files(name))?);
            }
            for path in &wanted.masked {
                let text = c_path(path)?;
                let path = Path::new(path);
                // What is not there needs no mask.
                if let Ok(found) = path.metadata() {
                    let kind = if found.is_dir() {
                        Kind::Directory
                    } else {
                        Kind::File
                    };
                    view.masked.push((text, kind));
                }
            }
            for path in &wanted.read_only {
                let text = c_path(path)?;
                let path = Path::new(path);
                if path.exists() {
                    view.read_only.push((text, flags(path)?));
                }
            }
        }
        Ok((!view.is_empty()).then_some(view))
    }

    fn is_empty(&self) -> bool {
        let Self {
            volumes,
            resolver,
            masked,
            read_only,
            root,
        } = self;
        volumes.is_none()
            && resolver.is_none()
            && masked.is_empty()
            && read_only.is_empty()
            && root.is_none()
    }

    /// Whether the working directory may be in a volume, and is entered after all mounts.
    pub(crate) fn has_directory(&self) -> bool {
        let mut volumes = self.volumes.iter();
        volumes.any(Volumes::have_directory)
    }

    /// Makes the mounts, which needs all capabilities.
    pub(crate) fn enter(&self) -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(Step::Namespace.failed())?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(NONE, c"/", NONE, private, NONE).map_err(Step::Private.failed())?;
        if let Some(volumes) = &self.volumes {
            volumes.enter()?;
            // While all is writable.
            volumes.make_directory()?;
        }
        if let Some((file, place)) = &self.resolver {
            bind(file, place).map_err(Step::Resolver.failed())?;
        }
        for (path, kind) in &self.masked {
            let masked = match kind {
                Kind::File => bind(c"/dev/null", path),
                Kind::Directory => {
                    let flags = MsFlags::MS_RDONLY;
                    let tmpfs = Some(c"tmpfs");
                    let empty = Some(c"size=0,nr_inodes=1");
                    mount(tmpfs, path.as_c_str(), tmpfs, flags, empty)
                }
            };
            if_there(masked).map_err(Step::Mask.failed())?;
        }
        for (path, flags) in &self.read_only {
            let made = bind(path, path).and_then(|()| make_read_only(path, *flags));
            if_there(made).map_err(Step::ReadOnly.failed())?;
        }
        if let Some(flags) = self.root {
            make_read_only(c"/", flags).map_err(Step::Root.failed())?;
        }
        match &self.volumes {
            Some(volumes) => volumes.enter_directory(),
            None => Ok(()),
        }
    }
}

fn bind(from: &CStr, to: &CStr) -> nix::Result<()> {
    mount(
        Some(from),
        to,
        NONE,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        NONE,
    )
}

fn make_read_only(path: &CStr, flags: MsFlags) -> nix::Result<()> {
    let remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | flags;
    mount(NONE, path, NONE, remount, NONE)
}

/// A file of `/proc` may have gone since.
fn if_there(done: nix::Result<()>) -> nix::Result<()> {
    match done {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

/// The kernel keeps the flags of access times by itself.
fn flags(path: &Path) -> Result<MsFlags, Invalid> {
    let failed = |errno| Invalid::Flags(path.display().to_string(), errno);
    let present = statvfs(path).map_err(failed)?.flags();
    let mut flags = MsFlags::empty();
    flags.set(MsFlags::MS_NOSUID, present.contains(FsFlags::ST_NOSUID));
    flags.set(MsFlags::MS_NODEV, present.contains(FsFlags::ST_NODEV));
    flags.set(MsFlags::MS_NOEXEC, present.contains(FsFlags::ST_NOEXEC));
    Ok(flags)
}

/// Writes the file of a session, and finds where it is to be seen.
fn resolver(content: &str, folder: &Path) -> Result<(CString, CString), Invalid> {
    let file = folder.join("resolv.conf");
    fs::create_dir_all(folder).map_err(Invalid::Resolver)?;
    fs::write(&file, content).map_err(Invalid::Resolver)?;
    if !Path::new(RESOLVER).exists() {
        // It may be a link to a file that is not there.
        fs::write(RESOLVER, "").map_err(Invalid::NoResolver)?;
    }
    let place = fs::canonicalize(RESOLVER).map_err(Invalid::NoResolver)?;
    let c = |path: &Path| {
        let text = CString::new(path.as_os_str().as_bytes());
        text.map_err(|e| Invalid::Resolver(e.into()))
    };
    Ok((c(&file)?, c(&place)?))
}

fn c_path(path: &str) -> Result<CString, Invalid> {
    let refused = || Invalid::Path(path.to_owned());
    if path.starts_with('/') {
        CString::new(path).map_err(|_| refused())
    } else {
        Err(refused())
    }
}
