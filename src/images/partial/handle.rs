//! A partial download for async code.
//!
//! Invariant: all I/O happens on blocking threads; a job that was begun ends, also if its caller
//! goes away, and the file stays locked until then. Who waits for the lock blocks no thread: the
//! disk of the job that has it may not answer.
//! Failure: a full disk is distinguished from other I/O errors.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;

use super::super::error::{Error, Result};
use super::{Follower, Partial};
use crate::space::{Claim, Full, Space};

/// A partial that async code works on; clones are the same partial.
#[derive(Debug, Clone)]
pub(in crate::images) struct Handle {
    partial: Arc<Mutex<Partial>>,
    /// Held by the job that appends.
    appending: Arc<Mutex<()>>,
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
            appending: Arc::default(),
            dir,
        })
    }

    /// Runs `job` on a blocking thread. If the caller disconnects, the job still ends.
    pub(in crate::images) async fn work<T, F>(&self, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Partial) -> io::Result<T> + Send + 'static,
    {
        let mut partial = self.lock().await;
        let done = tokio::task::spawn_blocking(move || job(&mut partial)).await?;
        done.map_err(|e| disk_error(e, &self.dir))
    }

    /// As [`Handle::work`], for a job with errors of its own.
    pub(in crate::images) async fn run<T, F>(&self, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Partial) -> Result<T> + Send + 'static,
    {
        let mut partial = self.lock().await;
        tokio::task::spawn_blocking(move || job(&mut partial)).await?
    }

    /// A reader of the file beside its writer, for a blocking thread.
    pub(in crate::images) async fn follow(&self) -> Result<Follower> {
        self.work(|p| p.follow()).await
    }

    /// Reads the state in memory, once no job changes it; no I/O.
    pub(in crate::images) async fn read<T>(&self, read: impl FnOnce(&Partial) -> T) -> T {
        read(&*self.lock().await)
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

    /// Adds bytes at the end, behind those of earlier calls, once `claim` is as large as the file is
    /// going to be. It happens on a blocking thread, also when the result is dropped, which is the
    /// empty buffer.
    pub(in crate::images) async fn append(
        &self,
        mut bytes: Vec<u8>,
        claim: Arc<Claim>,
        size: u64,
    ) -> JoinHandle<Result<Vec<u8>>> {
        let appending = Arc::clone(&self.appending).lock_owned().await;
        let mut partial = self.lock().await;
        let handle = self.clone();
        tokio::task::spawn_blocking(move || {
            let _appending = appending;
            let claimed = claim.at_least(size);
            claimed.map_err(|full| handle.no_space(full))?;
            let appended = partial.append(&bytes);
            appended.map_err(|e| disk_error(e, &handle.dir))?;
            bytes.clear();
            Ok(bytes)
        })
    }

    /// Waits until all bytes are added, also those of calls whose result was dropped.
    pub(in crate::images) async fn settle(&self) {
        drop(self.appending.lock().await);
    }

    async fn lock(&self) -> OwnedMutexGuard<Partial> {
        Arc::clone(&self.partial).lock_owned().await
    }

    fn no_space(&self, full: Full) -> Error {
        match full {
            Full::NoSpace { .. } => Error::NoSpace {
                dir: self.dir.to_path_buf(),
                because: full.because(),
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
            because: String::new(),
            required: 0,
        },
        _ => Error::io("write the partial download in", dir)(error),
    }
}
