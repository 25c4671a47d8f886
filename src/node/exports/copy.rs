//! Makes the copy of a disk, or finds the one that an earlier client has left.
//!
//! Invariant: a copy that is found is of the version that the disk has now; one that is begun is
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
use super::{Copy, Error, Exports};
use crate::disk::Reservation;
use crate::files;

/// How often a client learns how far its copy is, whether that has changed or not.
const REPORT: Duration = Duration::from_secs(5);

/// A file that is removed unless it is kept.
struct Unfinished(Option<PathBuf>);

impl Exports {
    /// The file of a complete copy; in the turn of the disk.
    pub(super) async fn copy(&self, vm: VmUid, client: &Client) -> Result<PathBuf, Error> {
        let disks = &self.0.disks;
        let reserved = Arc::new(disks.reserve(vm).await?);
        let version = disks.version(&reserved).await?;
        if let Some(copy) = self.known(vm).filter(|copy| copy.version == version)
            && tokio::fs::try_exists(&copy.path).await.unwrap_or(false)
        {
            return Ok(copy.path);
        }
        let removed = self.remove_copy(vm).await;
        removed.map_err(files::failed("remove a copy in", &self.0.root))?;
        let path = self.new_path(vm);
        let unfinished = Unfinished(Some(path.clone()));
        self.write(&reserved, &path, client).await?;
        unfinished.keep();
        let copy = Copy {
            version,
            path: path.clone(),
        };
        self.set(vm, Some(copy));
        drop(reserved);
        let bytes = length(&path).await;
        tracing::info!(%vm, bytes, "disk copied for export");
        Ok(path)
    }

    async fn write(
        &self,
        reserved: &Arc<Reservation>,
        path: &Path,
        client: &Client,
    ) -> Result<(), Error> {
        let (percent, progress) = watch::channel(0);
        let percents = move |now| {
            percent.send_replace(now);
        };
        let mut copying = pin!(self.0.disks.copy_out(reserved, path, percents));
        let mut reports = interval(REPORT);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = *progress.borrow();
            tokio::select! {
                copied = &mut copying => return Ok(copied?),
                _ = reports.tick() => client.preparing(now).await?,
            }
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
