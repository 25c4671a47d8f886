//! Copies of disks, of snapshots and of backups, for clients that fetch them.
//!
//! Invariant: a disk is reserved, and a snapshot held, only while its copy is made, never while it is sent: how
//! fast a client reads delays no machine and no merge. Of a backup nothing is sent that was not compared with its manifest. A copy is complete when it is sent, and belongs to one
//! version of its source. One client of a source is served at a time, the one that came last, and a copy
//! goes [`KEPT`] after its last client, with its source, and with this process: no record names it.
//! No caller that leaves stops its removal, and a client that is served keeps it. The name of its
//! file has the UIDs of its source and a number that no other copy has.
//! Failure: [`Error`]; a client that reads nothing is left after [`CLIENT_TIMEOUT`]. The removal of a copy
//! that fails is repeated.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

mod copy;
mod error;
mod file;
mod peer;
mod source;
mod stream;

pub(super) use error::Error;
pub(super) use peer::refuse_agent;
pub(super) use source::{DiskState, Requested, Source};
pub(super) use stream::{Received, stream};

use crate::backup::Targets;
use crate::disk::{self, Disks};
use crate::images::Digest;
use crate::locks::Locks;

/// Time for the next client of a copy to come.
const KEPT: Duration = Duration::from_secs(600);

/// Time for a client to read a message.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients that are served at once.
const MOST: usize = 4;

/// The copies of this node; clones share them.
#[derive(Debug, Clone)]
pub struct Exports(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    disks: Arc<Disks>,
    /// Where backups are.
    targets: Targets,
    root: PathBuf,
    places: Semaphore,
    /// Number of the next copy.
    next: AtomicU64,
    /// Held while a client is served, and while a copy is removed.
    turns: Locks<Source>,
    all: Mutex<HashMap<Source, Export>>,
}

/// What is known of the export of a source.
#[derive(Debug, Default)]
struct Export {
    /// Ends the client that is served, or the wait for the next one.
    current: CancellationToken,
    /// A client is there.
    is_served: bool,
    /// A complete copy.
    copy: Option<Copy>,
}

/// A complete copy of a source.
#[derive(Debug, Clone)]
struct Copy {
    /// Of what it was made from.
    version: Version,
    path: PathBuf,
}

/// What a source was when it was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Disk(disk::Version),
    /// One that was taken at this time, in nanoseconds since the epoch. Its content never changes.
    Snapshot(i64),
    /// One with a manifest of this digest.
    Backup(Digest),
}

impl Exports {
    /// The directory below a state directory.
    pub fn directory_of(state: &Path) -> PathBuf {
        state.join("exports")
    }

    /// Removes what an earlier process has left in `root`, and makes it. Blocks.
    pub fn open(disks: Arc<Disks>, targets: Targets, root: PathBuf) -> std::io::Result<Self> {
        match std::fs::remove_dir_all(&root) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::fs::DirBuilder::new().mode(0o700).create(&root)?;
        Ok(Self(Arc::new(Shared {
            disks,
            targets,
            root,
            places: Semaphore::new(MOST),
            next: AtomicU64::default(),
            turns: Locks::default(),
            all: Mutex::default(),
        })))
    }

    /// Removes the copy of a source, also when the caller leaves. Success when there is none, and when
    /// a client is served, after whom it goes.
    pub(super) async fn forget(&self, source: Source) -> std::io::Result<()> {
        let Some(current) = self.begin_to_forget(source) else {
            return Ok(());
        };
        let this = self.clone();
        let removing = tokio::spawn(async move {
            let turn = this.0.turns.lock(&source).await;
            let removed = this.remove(source, &current).await;
            drop(turn);
            if removed.is_err() {
                this.leave(source, current);
            }
            removed
        });
        let removed = removing.await;
        removed.unwrap_or_else(|e| Err(std::io::Error::other(e)))
    }

    /// Ends the wait for the next client; none: nothing waits.
    fn begin_to_forget(&self, source: Source) -> Option<CancellationToken> {
        let mut all = self.all();
        let export = all.get_mut(&source).filter(|export| !export.is_served)?;
        Some(export.renew())
    }

    /// A client has come, which ends the one before.
    fn arrive(&self, source: Source) -> CancellationToken {
        let mut all = self.all();
        let export = all.entry(source).or_default();
        export.is_served = true;
        export.renew()
    }

    /// A client has left: the copy of its source stays for a while.
    fn leave(&self, source: Source, current: CancellationToken) {
        {
            let mut all = self.all();
            if current.is_cancelled() {
                return;
            }
            if let Some(export) = all.get_mut(&source) {
                export.is_served = false;
            }
        }
        let this = self.clone();
        tokio::spawn(async move {
            let disks = &this.0.disks;
            tokio::select! {
                () = current.cancelled() => return,
                () = source.removal(disks) => {}
                () = tokio::time::sleep(KEPT) => {}
            }
            loop {
                let turn = this.0.turns.lock(&source).await;
                let Err(error) = this.remove(source, &current).await else {
                    return;
                };
                drop(turn);
                let error = crate::one_line(&error);
                tracing::warn!(%source, error, "copy of exported disk not removed");
                tokio::select! {
                    () = current.cancelled() => return,
                    () = tokio::time::sleep(KEPT) => {}
                }
            }
        });
    }

    /// Removes a copy in its turn, unless another client has come meanwhile.
    async fn remove(&self, source: Source, current: &CancellationToken) -> std::io::Result<()> {
        if current.is_cancelled() {
            return Ok(());
        }
        self.remove_copy(source).await?;
        let mut all = self.all();
        if !current.is_cancelled() {
            all.remove(&source);
        }
        Ok(())
    }

    /// Removes a copy in the turn of its source. A copy that cannot be removed stays known.
    async fn remove_copy(&self, source: Source) -> std::io::Result<()> {
        let Some(copy) = self.known(source) else {
            return Ok(());
        };
        match tokio::fs::remove_file(&copy.path).await {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.set(source, None);
        Ok(())
    }

    fn known(&self, source: Source) -> Option<Copy> {
        self.all()
            .get(&source)
            .and_then(|export| export.copy.clone())
    }

    fn set(&self, source: Source, copy: Option<Copy>) {
        self.all().entry(source).or_default().copy = copy;
    }

    fn new_path(&self, source: Source) -> PathBuf {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}.qcow2", source.stem());
        self.0.root.join(name)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Source, Export>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Export {
    /// Ends what is there; returns what ends the next one.
    fn renew(&mut self) -> CancellationToken {
        self.current.cancel();
        self.current = CancellationToken::new();
        self.current.clone()
    }
}

#[cfg(test)]
mod tests;
