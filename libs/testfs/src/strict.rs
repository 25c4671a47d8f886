//! A directory on a disk that keeps what was synced, and nothing else.
//!
//! Invariant: the letter of POSIX, which no file system undercuts. A file has the content of its own
//! last `fsync`, and is empty without one. A directory has the names of its own last `fsync`; so has
//! one that was made, whose own name is its parent's matter. Replacing, removing and linking are names.
//! Failure: accesses fail when the server has ended; it prints why.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::fuse::{Observer, Session};

mod record;

use record::Record;

/// The directory. It is a mount, so that it needs root.
#[derive(Debug)]
pub struct StrictDisk {
    scratch: TempDir,
    record: Shared,
}

impl StrictDisk {
    /// An empty directory.
    ///
    /// # Errors
    ///
    /// No `/dev/fuse`, or no right to mount.
    pub fn new() -> Result<Self> {
        // The runner of the suite finds the mounts of a process that it kills by this name.
        let prefix = format!("strict-{}-", std::process::id());
        let scratch = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        let behind = scratch.path().join("behind");
        let place = scratch.path().join("mount");
        for folder in [&behind, &place] {
            std::fs::create_dir(folder)?;
        }
        let record = Shared(Arc::new(Mutex::new(Record::new(&behind)?)));
        let observer = record.clone();
        let (report, mounted) = mpsc::channel();
        std::thread::spawn(move || {
            let session = match Session::mount(&behind, &place, observer) {
                Ok(session) => session,
                Err(error) => return drop(report.send(Err(error))),
            };
            // The other end waits for it.
            drop(report.send(Ok(())));
            if let Err(error) = session.run() {
                eprintln!("--- strict disk: {error:#}");
            }
        });
        mounted.recv().context("the server")??;
        Ok(Self { scratch, record })
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("mount")
    }

    /// Syncs all that is there.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn settle(&self) -> Result<()> {
        self.record.lock().settle()
    }

    /// What would be there if the power were cut now.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn cut(&self) -> Result<TempDir> {
        let left = tempfile::Builder::new().prefix("left-").tempdir()?;
        self.record.lock().write_to(left.path())?;
        Ok(left)
    }

    /// The names in a directory after a power cut, sorted; none if it is gone.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn names_after_cut(&self, directory: impl AsRef<Path>) -> Result<Vec<String>> {
        let left = self.cut()?;
        let Ok(entries) = std::fs::read_dir(left.path().join(directory)) else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

impl Drop for StrictDisk {
    fn drop(&mut self) {
        // Accesses that still wait for the server fail: a process does not end before they do.
        let _ = umount2(&self.path(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
    }
}

/// The record, as the server has it, too.
#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<Record>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Shared {
    fn request(&mut self, _request: &[u8]) -> Result<()> {
        Ok(())
    }

    fn reply(&mut self, request: &[u8], reply: &[u8]) -> Result<()> {
        self.lock().take(request, reply)
    }
}

#[cfg(test)]
mod tests;
