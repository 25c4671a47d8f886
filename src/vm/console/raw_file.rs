//! The file to which QEMU appends the output of the guest's serial port.
//!
//! Invariant: at most one holder of a [`RawFile`] per file, in any process; bytes are only ever
//! read, or given back to the file system.
//! Failure: an error of opening names the cause; a file system that cannot punch holes keeps the
//! bytes until the file is removed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::unistd::{Whence, lseek};

use super::{Error, Result};

/// How often a file that is locked is tried again: the tapmanager locks those without a reader for
/// a moment.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// Holes are multiples of this: a multiple of every page size, and few calls.
const STEP: u64 = 64 * 1024;

/// An open and locked raw file.
#[derive(Debug)]
pub(super) struct RawFile {
    file: File,
    /// Bytes known to be punched out; the maximum when punching is not possible.
    punched: u64,
}

impl RawFile {
    /// Opens the file, created empty when missing, so that it can be watched before QEMU runs.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::OpenRaw {
            path: path.into(),
            source,
        };
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
            .map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(Error::NotAFile { path: path.into() });
        }
        let mut tries = TRIES;
        while matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            tries -= 1;
            if tries == 0 {
                return Err(Error::Busy { path: path.into() });
            }
            #[allow(
                clippy::disallowed_methods,
                reason = "a waiting lock has no deadline, and no event reports that one is free"
            )]
            std::thread::sleep(PAUSE);
        }
        // Without locks in the file system the caller's own order has to do.
        Ok(Self { file, punched: 0 })
    }

    /// The open file itself, for watching.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// The inode number.
    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }

    /// The length in bytes.
    pub(super) fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Up to `length` bytes from `offset`; fewer when the file ends before.
    pub(super) fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self
                .file
                .read_at(&mut bytes[filled..], offset + filled as u64)
            {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Offset of the first byte that was not punched out; the length when there is none.
    pub(super) fn first_byte(&self) -> io::Result<u64> {
        match lseek(&self.file, 0, Whence::SeekData) {
            Ok(offset) => Ok(offset.unsigned_abs()),
            Err(Errno::ENXIO) => self.size(),
            // The file system knows no holes.
            Err(Errno::EINVAL) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the disk space of the bytes before `offset` back, in large steps; the length stays.
    pub(super) fn punch(&mut self, offset: u64) {
        static SAID: Once = Once::new();
        let end = offset - offset % STEP;
        if end <= self.punched {
            return;
        }
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let from = self.punched.cast_signed();
        let length = (end - self.punched).cast_signed();
        match fallocate(&self.file, flags, from, length) {
            Ok(()) => self.punched = end,
            Err(Errno::EINTR) => {}
            Err(errno) => {
                self.punched = u64::MAX;
                SAID.call_once(|| {
                    tracing::warn!(error = %errno, "disk space of the console file not released");
                });
            }
        }
    }

    /// The file was cut: nothing is known to be punched out.
    pub(super) const fn forget_holes(&mut self) {
        self.punched = 0;
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        // Closing is not enough: a child that this process is just starting still has a copy of the
        // descriptor, until it executes its program. A file without locks has none to give back.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        (dir, path)
    }

    #[test]
    fn a_missing_file_is_made_for_root_only() {
        let (_dir, path) = scratch();
        let raw = RawFile::open(&path).unwrap();
        assert_eq!(raw.size().unwrap(), 0);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_second_holder_is_refused_until_the_first_is_gone() {
        let (_dir, path) = scratch();
        let first = RawFile::open(&path).unwrap();
        assert!(matches!(RawFile::open(&path), Err(Error::Busy { .. })));
        let copy = first.file().try_clone().unwrap();
        drop(first);
        RawFile::open(&path).unwrap();
        drop(copy);
    }

    #[test]
    fn links_and_pipes_are_refused() {
        let (dir, path) = scratch();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        assert!(matches!(RawFile::open(&path), Err(Error::OpenRaw { .. })));
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(RawFile::open(&pipe), Err(Error::NotAFile { .. })));
    }

    #[test]
    fn punched_bytes_free_their_blocks_and_nothing_else_changes() {
        let (_dir, path) = scratch();
        let bytes = vec![b'x'; 5 * 64 * 1024];
        std::fs::write(&path, &bytes).unwrap();
        let mut raw = RawFile::open(&path).unwrap();
        raw.file().sync_all().unwrap();
        assert_eq!(raw.first_byte().unwrap(), 0);
        raw.punch(4 * STEP + 17);
        assert_eq!(raw.first_byte().unwrap(), 4 * STEP);
        assert_eq!(raw.size().unwrap(), 5 * STEP);
        assert!(path.metadata().unwrap().blocks() * 512 <= STEP + 4096);
        assert_eq!(raw.read(4 * STEP, 1 << 20).unwrap(), &bytes[..64 * 1024]);
    }
}
