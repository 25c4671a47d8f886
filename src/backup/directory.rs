//! A directory that others may write to, too. Everything here blocks.
//!
//! Invariant: names are looked up in the open directory, and no link is followed; a name has one part. Only plain files
//! are opened, and a new file is one that was not there before.
//! Failure: [`files::Error`] with the step and the path.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, mkdirat, openat2,
    renameat, statx, unlinkat,
};
use rustix::io::Errno;

use super::error::{Error, Result};
use crate::files;

/// The most entries of a directory that are looked at.
const MOST: usize = 100_000;

/// An open directory, and its path for people.
#[derive(Debug)]
pub(super) struct Directory {
    file: File,
    path: PathBuf,
}

impl Directory {
    /// The directory of a target, whose path is the operator's.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = files::failed("open the directory", path);
        let file = File::open(path).map_err(failed)?;
        let is = file.metadata().map_err(files::failed("look at", path))?;
        if !is.is_dir() {
            let odd = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(files::failed("open the directory", path)(odd).into());
        }
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// What is mounted below it at this path; a link on the way, and a directory that is no mount, are refused.
    pub(super) fn mounted(&self, below: &Path) -> Result<Self> {
        let path = self.path.join(below);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.file, below, flags, Mode::empty(), inside) {
            // It says nothing of what is in the claim.
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(Error::NoMount(path)),
            opened => opened.map_err(|e| files::failed("open the mount", &path)(e.into()))?,
        };
        let found = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let found = found.map_err(|e| files::failed("look at", &path)(e.into()))?;
        if !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Err(Error::NoMount(path));
        }
        let file = File::from(file);
        Ok(Self { file, path })
    }

    /// A directory in it; none: there is no such.
    pub(super) fn find(&self, name: &str) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.open_at(name, flags) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(self.not_plain(name)),
            opened => {
                let path = self.path.join(name);
                let file = opened.map_err(|e| self.failed("open the directory", name)(e.into()))?;
                Ok(Some(Self { file, path }))
            }
        }
    }

    /// A new directory in it.
    pub(super) fn make(&self, name: &str) -> Result<Self> {
        let made = mkdirat(&self.file, name, Mode::RWXU);
        made.map_err(|e| self.failed("make the directory", name)(e.into()))?;
        let made = self.find(name)?;
        let gone = || self.failed("open the directory", name)(Errno::NOENT.into());
        Ok(made.ok_or_else(gone)?)
    }

    /// A new file in it.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let opened = self.open_at(name, flags);
        Ok(opened.map_err(|e| self.failed("create", name)(e.into()))?)
    }

    /// A plain file in it, for reading; none: there is no such.
    pub(super) fn read(&self, name: &str) -> Result<Option<File>> {
        // What is no plain file is not waited for.
        let file = match self.open_at(name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(None),
            // So does the kernel answer for a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Err(self.not_plain(name)),
            opened => opened.map_err(|e| self.failed("open", name)(e.into()))?,
        };
        let is = file.metadata().map_err(self.failed("look at", name))?;
        if !is.is_file() {
            return Err(self.not_plain(name));
        }
        Ok(Some(file))
    }

    /// The names in it, but for those that are no text.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let failed = |e: Errno| self.failed("look through", "")(e.into());
        let mut entries = Dir::read_from(&self.file).map_err(failed)?;
        let mut names = Vec::new();
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_str().ok();
            names.extend(
                name.filter(|name| ![".", ".."].contains(name))
                    .map(str::to_owned),
            );
            if names.len() > MOST {
                let odd = io::Error::other("it has too many entries");
                return Err(self.failed("look through", "")(odd).into());
            }
        }
        Ok(names)
    }

    /// Gives an entry another name, which only an empty directory may have.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let renamed = renameat(&self.file, from, &self.file, to);
        Ok(renamed.map_err(|e| self.failed("rename", from)(e.into()))?)
    }

    /// Removes a directory in it, and the files in that; success when there is none.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let Some(directory) = self.find(name)? else {
            return Ok(());
        };
        for file in directory.names()? {
            match unlinkat(&directory.file, &*file, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(directory.failed("remove", &file)(e.into()).into()),
            }
        }
        match unlinkat(&self.file, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.failed("remove the directory", name)(e.into()).into()),
        }
    }

    /// Writes what was changed in it to the device.
    pub(super) fn sync(&self) -> Result<()> {
        match self.file.sync_all() {
            // Some file systems of networks write directories at once, and have no such call.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => Ok(synced.map_err(self.failed("write", ""))?),
        }
    }

    fn open_at(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        let is_one = !name.is_empty() && !name.contains('/') && ![".", ".."].contains(&name);
        if !is_one {
            return Err(Errno::INVAL);
        }
        let mode = if flags.contains(OFlags::CREATE) {
            Mode::RUSR | Mode::WUSR
        } else {
            Mode::empty()
        };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.file, name, flags, mode, inside).map(File::from)
    }

    fn not_plain(&self, name: &str) -> Error {
        Error::NotPlain(self.path.join(name))
    }

    fn failed(
        &self,
        step: &'static str,
        name: &str,
    ) -> impl FnOnce(io::Error) -> files::Error + use<> {
        let path = self.path.join(name);
        move |source| files::Error { step, path, source }
    }
}
