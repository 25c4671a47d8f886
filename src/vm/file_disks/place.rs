//! The place of a file in its volume. Everything here blocks.
//!
//! Invariant: every name is looked up in the open directory, and no link of the volume is
//! followed. A file that is being made has no name where the file system can do that, so that no
//! other pod reaches it; the unfinished file is then an empty mark. It is locked while an attempt
//! works.
//! Failure: [`Error`] with the step.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2,
    renameat2,
};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::FileDisk;
use super::error::{Error, Result};
use crate::images::{Format, head_of, judge};
use crate::vm::shares::below;

#[cfg(test)]
mod tests;

/// Sizes of raw disks are multiples of this.
const SECTOR: u64 = 512;

/// A file that is being made.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// What will be the disk.
    pub(super) file: File,
    /// The file with the unfinished name, which keeps other attempts away.
    mark: Flock<File>,
}

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
        let Some(file) = self.open_plain(&self.disk.file, write)? else {
            return Ok(None);
        };
        let size = self.check(&file)?;
        Ok(Some((file, size)))
    }

    /// The file as an emulator gets it: for reading and, where `write`, for writing, too. Both
    /// descriptors are of the file that was checked.
    pub(super) fn find_all(&self, write: bool) -> Result<Option<Vec<File>>> {
        let Some((file, _)) = self.find(write)? else {
            return Ok(None);
        };
        if !write {
            return Ok(Some(vec![file]));
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reading = File::open(path).map_err(io(&self.disk, "open"))?;
        Ok(Some(vec![reading, file]))
    }

    /// Opens a plain file; nothing else is opened in passing, as a device would be.
    fn open_plain(&self, name: &str, write: bool) -> Result<Option<File>> {
        let there = match self.open_at(name, OFlag::O_PATH) {
            Ok(there) => there,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP) => return Err(Error::NotAFile(self.disk.shown())),
            Err(errno) => return Err(io(&self.disk, "open")(errno.into())),
        };
        let found = there.metadata().map_err(io(&self.disk, "measure"))?;
        if !found.is_file() {
            return Err(Error::NotAFile(self.disk.shown()));
        }
        let path = format!("/proc/self/fd/{}", there.as_raw_fd());
        let opened = File::options().read(true).write(write).open(path);
        Ok(Some(opened.map_err(io(&self.disk, "open"))?))
    }

    fn open_at(&self, name: &str, flags: OFlag) -> nix::Result<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .mode(if flags.intersects(OFlag::O_CREAT | OFlag::O_TMPFILE) {
                Mode::S_IRUSR | Mode::S_IWUSR
            } else {
                Mode::empty()
            })
            .resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS,
            );
        openat2(&self.directory, name, how).map(File::from)
    }

    fn check(&self, file: &File) -> Result<u64> {
        let bytes = file.metadata().map_err(io(&self.disk, "measure"))?.len();
        match self.disk.format {
            Format::Raw if bytes == 0 || !bytes.is_multiple_of(SECTOR) => Err(Error::Sectors {
                file: self.disk.shown(),
                bytes,
            }),
            Format::Raw => {
                if self.disk.is_root() && begins_as_qcow2(file) {
                    Err(Error::IsQcow2(self.disk.shown()))
                } else {
                    Ok(bytes)
                }
            }
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

    /// A new file, which has its name later. What an earlier attempt began is removed.
    pub(super) fn begin(&self) -> Result<Unfinished> {
        let name = self.unfinished();
        self.remove_unfinished()?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        let made = self.open_at(&name, flags);
        let made = made.map_err(|errno| self.not_made(errno))?;
        // Another attempt may have found the file before it was locked, and removed it.
        let file = lock(made).map_err(|errno| self.not_made(errno))?;
        match self.open_plain(&name, false)? {
            Some(there) if is_same(&there, &file).map_err(io(&self.disk, "measure"))? => {}
            _ => return Err(Error::InUse(self.disk.shown())),
        }
        let made = match self.open_at(".", OFlag::O_RDWR | OFlag::O_TMPFILE) {
            // NFS and others know no file without a name.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL) => {
                file.try_clone().map_err(io(&self.disk, "make"))?
            }
            made => made.map_err(|errno| self.not_made(errno))?,
        };
        Ok(Unfinished {
            file: made,
            mark: file,
        })
    }

    /// Gives the file its name once all of it is on the disk; false when another has the name.
    pub(super) fn finish(&self, made: &Unfinished) -> Result<bool> {
        let Unfinished { file, mark } = made;
        file.sync_all().map_err(io(&self.disk, "write"))?;
        let has_name = is_same(file, mark).map_err(io(&self.disk, "measure"))?;
        let named = if has_name {
            self.rename()
        } else {
            self.link(file)
        };
        match named {
            Ok(()) => {}
            Err(Errno::EEXIST) => return Ok(false),
            Err(errno) => return Err(io(&self.disk, "name")(errno.into())),
        }
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
        let directory = openat2(&self.directory, ".", how).map(File::from);
        let synced = directory.map_err(Into::into).and_then(|d| d.sync_all());
        synced.map_err(io(&self.disk, "name"))?;
        Ok(true)
    }

    /// Names a file that has no name. The mark goes first, so that a crash leaves nothing.
    fn link(&self, file: &File) -> nix::Result<()> {
        match unlinkat(
            &self.directory,
            self.unfinished().as_str(),
            UnlinkatFlags::NoRemoveDir,
        ) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let to = self.disk.file.as_str();
        let how = AtFlags::AT_SYMLINK_FOLLOW;
        linkat(AT_FDCWD, from.as_str(), &self.directory, to, how)
    }

    fn rename(&self) -> nix::Result<()> {
        let from = self.unfinished();
        let to = self.disk.file.as_str();
        let at = self.directory.as_fd();
        let flags = RenameFlags::RENAME_NOREPLACE;
        match renameat2(at, from.as_str(), at, to, flags) {
            // NFS cannot rename without replacing; a link never replaces.
            Err(Errno::EINVAL) => {
                linkat(at, from.as_str(), at, to, AtFlags::empty())?;
                unlinkat(at, from.as_str(), UnlinkatFlags::NoRemoveDir)
            }
            renamed => renamed,
        }
    }

    /// Removes what an attempt has begun, unless another works on it.
    pub(super) fn undo(&self) -> Result<()> {
        match self.remove_unfinished() {
            // What is not a file is not ours.
            Err(Error::InUse(_) | Error::NotAFile(_)) => Ok(()),
            removed => removed,
        }
    }

    fn remove_unfinished(&self) -> Result<()> {
        let name = self.unfinished();
        // NFS locks a file only for a program that may write.
        let Some(file) = self.open_plain(&name, true)? else {
            return Ok(());
        };
        let _locked = lock(file).map_err(|errno| self.not_made(errno))?;
        match unlinkat(&self.directory, name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(io(&self.disk, "remove the unfinished")(errno.into())),
        }
    }

    fn unfinished(&self) -> String {
        format!(".{}.vmlet-new", self.disk.file)
    }

    fn not_made(&self, errno: Errno) -> Error {
        match errno {
            Errno::EWOULDBLOCK | Errno::EEXIST => Error::InUse(self.disk.shown()),
            errno => io(&self.disk, "make")(errno.into()),
        }
    }
}

/// Whether a file says that it is qcow2. One that cannot be read is another error's matter.
fn begins_as_qcow2(file: &File) -> bool {
    let mut head = [0; 4];
    file.read_exact_at(&mut head, 0).is_ok() && head == *b"QFI\xfb"
}

fn lock(file: File) -> nix::Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let one = one.metadata()?;
    let other = other.metadata()?;
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Turns the kernel's error into ours, naming the step.
pub(super) fn io(disk: &FileDisk, step: &'static str) -> impl FnOnce(io::Error) -> Error {
    let file = disk.shown();
    move |source| Error::Io { step, file, source }
}
