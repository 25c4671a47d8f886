//! A partial download for async code.
//!
//! Invariant: all I/O happens on blocking threads; a job that was begun ends, also if its caller
//! goes away, and the file stays locked until then.
//! Failure: a full disk is distinguished from other I/O errors.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::error::{Error, Result};
use super::Partial;
use crate::space::{Claim, Full, Space};

/// A partial that async code works on; clones are the same partial.
#[derive(Debug, Clone)]
pub(in crate::images) struct Handle {
    partial: Arc<Mutex<Partial>>,
    dir: Arc<Path>,
}

impl Handle {
    /// As [`Partial::open`], off the runtime's threads.
    pub(in crate::images) async fn open(
        dir: Arc<Path>,
        key: String,
        boot_id_file: PathBuf,
    ) -> Result<Self> {
        let partial = {
            let dir = Arc::clone(&dir);
            tokio::task::spawn_blocking(move || Partial::open(&dir, &key, &boot_id_file)).await?
        };
        let partial = partial.map_err(|e| disk_error(e, &dir))?;
        Ok(Self {
            partial: Arc::new(Mutex::new(partial)),
            dir,
        })
    }

    /// Runs `job` on a blocking thread. If the caller disconnects, the job still ends.
    pub(in crate::images) async fn work<T, F>(&self, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Partial) -> io::Result<T> + Send + 'static,
    {
        let partial = Arc::clone(&self.partial);
        let locked = move || job(&mut partial.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(locked).await?;
        done.map_err(|e| disk_error(e, &self.dir))
    }

    /// As [`Handle::work`], for a job with errors of its own.
    pub(in crate::images) async fn run<T, F>(&self, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Partial) -> Result<T> + Send + 'static,
    {
        let partial = Arc::clone(&self.partial);
        let locked = move || job(&mut partial.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(locked).await?
    }

    /// Reads the state in memory; no I/O.
    pub(in crate::images) fn read<T>(&self, read: impl FnOnce(&Partial) -> T) -> T {
        read(&self.partial.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The directory of all downloads.
    pub(in crate::images) fn dir(&self) -> Arc<Path> {
        Arc::clone(&self.dir)
    }

    /// Removes the file and its note.
    pub(in crate::images) async fn discard(&self) -> Result<()> {
        self.work(|p| p.discard()).await
    }

    /// Claims space on the disk for a file of `most` bytes, or as many as there are, but not less
    /// than `least`; some may be there already.
    pub(in crate::images) async fn claim_space(
        &self,
        space: Space,
        least: u64,
        most: u64,
    ) -> Result<Claim> {
        let claimed = self.work(move |p| Ok(space.claim(p.path(), least, most)));
        claimed.await?.map_err(|full| self.no_space(full))
    }

    /// Makes the claim as large as the file is going to be, and looks whether the reserve is free.
    pub(in crate::images) async fn more_space(&self, claim: Claim, bytes: u64) -> Result<Claim> {
        let grown = self.work(move |_| Ok(claim.at_least(bytes).map(|()| claim)));
        grown.await?.map_err(|full| self.no_space(full))
    }

    fn no_space(&self, full: Full) -> Error {
        match full {
            Full::NoSpace { .. } => Error::NoSpace {
                dir: self.dir.to_path_buf(),
                required: full.required(),
            },
            Full::Measure(error) => disk_error(error, &self.dir),
        }
    }
}

fn disk_error(error: io::Error, dir: &Path) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
            dir: dir.to_path_buf(),
            required: 0,
        },
        _ => Error::io("write the partial download in", dir)(error),
    }
}
