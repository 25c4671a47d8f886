//! The place of a file in its volume. Everything here blocks.
//!
//! Invariant: every name is looked up in the open directory, and no link of the volume is
//! followed. An unfinished file is locked while an attempt works on it.
//! Failure: [`Error`] with the step.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, Flock, FlockArg, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, renameat2,
};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::FileDisk;
use super::error::{Error, Result};
use crate::images::{Format, head_of, judge};
use crate::vm::shares::below;

/// Sizes of raw disks are multiples of this.
const SECTOR: u64 = 512;

/// The directory of a disk, open, and the disk's name in it.
#[derive(Debug)]
pub(super) struct Place {
    directory: OwnedFd,
    disk: FileDisk,
}

impl Place {
    /// Opens the directory, which `root` is the beginning of as this process sees it.
    pub(super) fn open(root: &Path, disk: &FileDisk) -> Result<Self> {
        let path = below(root, &disk.directory);
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let opened = openat2(AT_FDCWD, &path, how);
        let directory = opened.map_err(|errno| io(disk, "open the volume of")(errno.into()))?;
        Ok(Self {
            directory,
            disk: disk.clone(),
        })
    }

    /// The file as the guest may use it, checked, and the size of its disk in bytes; `None` when
    /// there is none.
    pub(super) fn find(&self, write: bool) -> Result<Option<(File, u64)>> {
        let access = if write {
            OFlag::O_RDWR
        } else {
            OFlag::O_RDONLY
        };
        let file = match self.open_file(&self.disk.file, access) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            // A link, a directory, or a socket.
            Err(Errno::ELOOP | Errno::EISDIR | Errno::ENXIO) => {
                return Err(Error::NotAFile(self.disk.shown()));
            }
            Err(errno) => return Err(io(&self.disk, "open")(errno.into())),
        };
        let size = self.check(&file)?;
        Ok(Some((file, size)))
    }

    fn open_file(&self, name: &str, flags: OFlag) -> nix::Result<File> {
        let how = OpenHow::new()
            // A pipe does not block, and is refused.
            .flags(flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
            .mode(match flags.contains(OFlag::O_CREAT) {
                true => Mode::S_IRUSR | Mode::S_IWUSR,
                false => Mode::empty(),
            })
            .resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS,
            );
        openat2(&self.directory, name, how).map(File::from)
    }

    fn check(&self, file: &File) -> Result<u64> {
        let found = file.metadata().map_err(io(&self.disk, "measure"))?;
        if !found.is_file() {
            return Err(Error::NotAFile(self.disk.shown()));
        }
        let bytes = found.len();
        match self.disk.format {
            Format::Raw if bytes == 0 || !bytes.is_multiple_of(SECTOR) => Err(Error::Sectors {
                file: self.disk.shown(),
                bytes,
            }),
            Format::Raw => Ok(bytes),
            Format::Qcow2 => {
                let head = head_of(file).map_err(io(&self.disk, "read"))?;
                let judged = judge(&head, Some(bytes), u64::MAX);
                let judged = judged.map_err(|source| Error::Format {
                    file: self.disk.shown(),
                    source,
                })?;
                match judged.format {
                    Format::Qcow2 => Ok(judged.virtual_size),
                    Format::Raw => Err(Error::NotQcow2(self.disk.shown())),
                }
            }
        }
    }

    /// A new file without content, which has its name later.
    pub(super) fn begin(&self) -> Result<Flock<File>> {
        let name = self.unfinished();
        loop {
            let access = OFlag::O_RDWR | OFlag::O_CREAT;
            let file = self
                .open_file(&name, access)
                .map_err(|errno| io(&self.disk, "make")(errno.into()))?;
            let file = lock(file).map_err(|errno| self.locked(errno))?;
            // Another attempt may have named or removed it before it was locked.
            match self.open_file(&name, OFlag::O_RDONLY) {
                Ok(there) if is_same(&there, &file).map_err(io(&self.disk, "measure"))? => {
                    if !file.metadata().is_ok_and(|found| found.is_file()) {
                        return Err(Error::NotAFile(self.disk.shown()));
                    }
                    file.set_len(0).map_err(io(&self.disk, "empty"))?;
                    return Ok(file);
                }
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(io(&self.disk, "make")(errno.into())),
            }
        }
    }

    /// Gives the file its name once all of it is on the disk; false when another has the name.
    pub(super) fn finish(&self, file: &File) -> Result<bool> {
        file.sync_all().map_err(io(&self.disk, "write"))?;
        let (from, to) = (self.unfinished(), self.disk.file.as_str());
        let (at, flags) = (self.directory.as_fd(), RenameFlags::RENAME_NOREPLACE);
        match renameat2(at, from.as_str(), at, to, flags) {
            Ok(()) => {}
            Err(Errno::EEXIST) => return Ok(false),
            Err(errno) => return Err(io(&self.disk, "name")(errno.into())),
        }
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
        let directory = openat2(at, ".", how).map(File::from);
        let synced = directory.map_err(Into::into).and_then(|d| d.sync_all());
        synced.map_err(io(&self.disk, "name"))?;
        Ok(true)
    }

    /// Removes what an attempt has begun, unless another works on it.
    pub(super) fn undo(&self) -> Result<()> {
        let name = self.unfinished();
        // NFS locks a file only for a program that may write.
        let file = match self.open_file(&name, OFlag::O_RDWR) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(io(&self.disk, "remove the unfinished")(errno.into())),
        };
        let Ok(_locked) = lock(file) else {
            return Ok(());
        };
        match unlinkat(&self.directory, name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(io(&self.disk, "remove the unfinished")(errno.into())),
        }
    }

    fn unfinished(&self) -> String {
        format!(".{}.vmlet-new", self.disk.file)
    }

    fn locked(&self, errno: Errno) -> Error {
        match errno {
            Errno::EWOULDBLOCK => Error::InUse(self.disk.shown()),
            errno => io(&self.disk, "lock")(errno.into()),
        }
    }
}

fn lock(file: File) -> nix::Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Turns the kernel's error into ours, naming the step.
pub(super) fn io(disk: &FileDisk, step: &'static str) -> impl FnOnce(io::Error) -> Error {
    let file = disk.shown();
    move |source| Error::Io { step, file, source }
}
