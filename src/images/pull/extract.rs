//! Takes the disk out of a packed download: of a layer while it arrives, of all else when it is
//! complete.
//!
//! Invariant: a disk that was taken out early is kept only by a caller that has checked the digest
//! of the complete download. Its room and space are claimed after those of the download, which
//! therefore never fails for want of them. Few are early at the same time: each keeps a thread and
//! the memory of a decoder for as long as its layer arrives.
//! Failure: no file of a disk stays. An early extraction that failed, for want of room too, is
//! repeated from the complete download, and that error counts.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::Inner;
use super::super::error::{Error, Result};
use super::super::partial::{Follower, Handle};
use super::super::unpack::{Limits, Shape, unpack};
use super::commit::Download;

/// Disks that are extracted at the same time while their layers arrive; further ones follow their
/// complete layers.
pub(in crate::images) const EXTRACTIONS: usize = 4;

/// Whether there is a disk in a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Disk,
    Nothing,
}

/// An extraction that began before the download was complete. Without [`Early::keep`] nothing of it
/// stays.
#[derive(Debug)]
pub(super) struct Early {
    keep: oneshot::Sender<()>,
    extraction: JoinHandle<Result<(Handle, Found)>>,
}

impl Early {
    /// What was taken out; `None` where that failed.
    async fn keep(self) -> Option<(Handle, Found)> {
        // It fails where the extraction has failed.
        let _ = self.keep.send(());
        self.extraction.await.ok()?.ok()
    }

    /// Removes what was taken out. The download must be complete, or its partial dropped.
    pub(super) async fn discard(self) {
        drop(self.keep);
        // Nothing is to be done about an error: the next start removes the file.
        let _ = self.extraction.await;
    }
}

impl Inner {
    /// Begins to take the disk out of a layer of `size` bytes that is about to arrive; `None`: it is to
    /// be done when the download is complete.
    pub(super) async fn extract_early(
        self: &Arc<Self>,
        download: &Download,
        partial: &Handle,
        size: u64,
    ) -> Result<Option<Early>> {
        if download.shape != Shape::Layer {
            return Ok(None);
        }
        let Ok(permit) = Arc::clone(&self.extractions).try_acquire_owned() else {
            return Ok(None);
        };
        let mut packed = partial.follow().await?;
        let inner = Arc::clone(self);
        let download = download.clone();
        let (keep, kept) = oneshot::channel();
        let extraction = self.tasks.spawn(async move {
            if !packed.begun().await {
                return Err(Error::Stopping);
            }
            let (disk, found) = inner.extract(&download, packed, size).await?;
            drop(permit);
            if kept.await.is_err() {
                disk.discard().await?;
            }
            Ok((disk, found))
        });
        Ok(Some(Early { keep, extraction }))
    }

    /// What is in a complete download: what was taken out early, if that succeeded.
    pub(super) async fn extracted(
        &self,
        download: &Download,
        partial: &Handle,
        early: Option<Early>,
    ) -> Result<(Handle, Found)> {
        if let Some(early) = early
            && let Some(extracted) = early.keep().await
        {
            return Ok(extracted);
        }
        let size = partial.read(|p| p.received()).await;
        let packed = partial.follow().await?;
        self.extract(download, packed, size).await
    }

    async fn extract(
        &self,
        download: &Download,
        packed: Follower,
        size: u64,
    ) -> Result<(Handle, Found)> {
        let disk = self.partial(&format!("{}-disk", download.key)).await?;
        match self.extract_to(download, packed, size, &disk).await {
            Ok(true) => Ok((disk, Found::Disk)),
            Ok(false) => Ok((disk, Found::Nothing)),
            Err(error) => {
                disk.discard().await?;
                Err(error)
            }
        }
    }

    async fn extract_to(
        &self,
        download: &Download,
        packed: Follower,
        size: u64,
        disk: &Handle,
    ) -> Result<bool> {
        let (room, space) = self.downloader.claim(disk, size, size).await?;
        let limits = Limits {
            location: download.location.clone(),
            max_bytes: self.downloader.max_bytes(),
            rules: self.downloader.rules(),
            room,
            space,
            stopping: self.stopping.clone(),
        };
        let shape = download.shape;
        let found = disk.run(move |disk| unpack(packed, shape, disk, limits));
        found.await
    }
}
