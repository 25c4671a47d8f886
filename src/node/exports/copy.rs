//! Makes the copy of a disk, a snapshot or a backup, or finds the one that an earlier client has left.
//!
//! Invariant: a copy that is found is of the version that its source has now; one that is begun is
//! complete when it is known.
//! Failure: [`Error`]; what was written of a copy is removed, also when the future is dropped.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use podspec::VmUid;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::stream::Client;
use super::{Copy, Error, Exports, Requested, Version};
use crate::backup::Chain;
use crate::disk::{self, Disks, HeldSnapshot, Reservation};
use crate::files;

/// How often a client learns how far its copy is, whether that has changed or not.
const REPORT: Duration = Duration::from_secs(5);

/// A file that is removed unless it is kept.
struct Unfinished(Option<PathBuf>);

/// What is copied, kept as it is until this is dropped.
enum Original {
    Disk(Arc<Reservation>),
    Snapshot(Arc<HeldSnapshot>),
    /// Of a machine that may be gone.
    Backup(VmUid, Chain),
}

/// What is copied, and its version.
struct Opened {
    original: Original,
    version: Version,
}

impl Exports {
    /// The file of a complete copy; in the turn of the source.
    pub(super) async fn copy(
        &self,
        requested: &Requested,
        client: &Client,
    ) -> Result<PathBuf, Error> {
        let source = requested.source();
        let (percent, progress) = watch::channel(0);
        let opened = reporting(client, &progress, self.open_original(requested)).await?;
        let Opened { original, version } = opened;
        if let Some(copy) = self.known(source).filter(|copy| copy.version == version)
            && tokio::fs::try_exists(&copy.path).await.unwrap_or(false)
        {
            return Ok(copy.path);
        }
        let removed = self.remove_copy(source).await;
        removed.map_err(files::failed("remove a copy in", &self.0.root))?;
        let path = self.new_path(source);
        let unfinished = Unfinished(Some(path.clone()));
        let percents = move |now| {
            percent.send_replace(now);
        };
        let copying = original.copy_out(&self.0.disks, &path, percents);
        reporting(client, &progress, copying).await?;
        unfinished.keep();
        let copy = Copy {
            version,
            path: path.clone(),
        };
        self.set(source, Some(copy));
        drop(original);
        let bytes = length(&path).await;
        tracing::info!(%source, bytes, "disk copied for export");
        Ok(path)
    }

    /// Keeps what is to be copied as it is. A target may take its time.
    async fn open_original(&self, requested: &Requested) -> disk::Result<Opened> {
        let disks = &self.0.disks;
        let original = match requested {
            Requested::Disk(vm) => Original::Disk(Arc::new(disks.reserve(*vm).await?)),
            Requested::Snapshot(vm, uid) => {
                Original::Snapshot(Arc::new(disks.hold_snapshot(*vm, *uid).await?))
            }
            Requested::Backup(vm, stored) => {
                let target = self.0.targets.find(&stored.target, *vm, &stored.name)?;
                let chain = target.chain(stored.uid, stored.digest()).await?;
                chain.check_namespace(&stored.name)?;
                Original::Backup(*vm, chain)
            }
        };
        let version = original.version(disks).await?;
        Ok(Opened { original, version })
    }
}

/// Waits for a step, and reports meanwhile how far the copy is.
async fn reporting<T>(
    client: &Client,
    progress: &watch::Receiver<u8>,
    step: impl Future<Output = disk::Result<T>>,
) -> Result<T, Error> {
    let mut step = pin!(step);
    let mut reports = interval(REPORT);
    reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = *progress.borrow();
        tokio::select! {
            done = &mut step => return Ok(done?),
            _ = reports.tick() => client.preparing(now).await?,
        }
    }
}

impl Original {
    async fn version(&self, disks: &Disks) -> disk::Result<Version> {
        Ok(match self {
            Self::Disk(reserved) => Version::Disk(disks.version(reserved).await?),
            Self::Snapshot(held) => Version::Snapshot(held.created_at()),
            Self::Backup(vm, chain) => {
                let newest = chain.newest().ok_or(disk::Error::Missing(*vm))?;
                Version::Backup(newest.1)
            }
        })
    }

    async fn copy_out(
        &self,
        disks: &Disks,
        path: &Path,
        progress: impl FnMut(u8) + Send,
    ) -> disk::Result<()> {
        match self {
            Self::Disk(reserved) => disks.copy_out(reserved, path, progress).await,
            Self::Snapshot(held) => disks.copy_snapshot_out(held, path, progress).await,
            Self::Backup(vm, chain) => disks.copy_backup_out(*vm, chain, path, progress).await,
        }
    }
}

async fn length(path: &Path) -> u64 {
    tokio::fs::metadata(path).await.map_or(0, |is| is.len())
}

impl Unfinished {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // To remove a large file takes its time.
        if let Some(path) = self.0.take() {
            drop(tokio::task::spawn_blocking(move || {
                std::fs::remove_file(path)
            }));
        }
    }
}
