//! Makes a disk that is based on an image's file independent of it.
//!
//! ```text
//! files of the disk                     record    pin of the image
//! root.qcow2 (overlay)                  linked    yes
//! root.qcow2 (overlay), root.flat       linked    yes     the copy is made
//! root.qcow2 (whole)                    linked    yes     it has the disk's name
//! root.qcow2 (whole)                    whole     yes
//! root.qcow2 (whole)                    whole     no
//! ```
//!
//! Invariant: the header of the disk alone says whether it needs its image: the record follows it, and the
//! pin follows the record. A header without a backing file is that of a copy, which is complete and synced
//! before it takes the disk's name; nothing else writes one, but for an emulator, and then the record says so
//! ([`Phase::Pulled`], `pull.rs`). A copy takes the name only while no
//! machine has the disk, and none gets it meanwhile, also if the caller has left. Each start of a
//! machine and each reader settles first: with a whole disk that is recorded as linked they would
//! have the image under it, and read the image where the copy has no data of its own.
//! Failure: the disk is the overlay that it was, or whole; a repetition finds out which.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use podspec::VmUid;

use super::Disks;
use super::error::{Error, Result};
use super::make::name_for_good;
use super::model::{Disk, Phase};
use crate::files;

impl Disks {
    /// Copies a disk that no machine has, with all that it has of its image, and lets the copy take
    /// its place; success when it needs no image already. A caller that drops the future must
    /// [abandon](Self::abandon_promotion) it. `progress` gets percents.
    pub async fn flatten(&self, vm: VmUid, progress: impl FnMut(u8) + Send) -> Result<()> {
        if self.settle_promotion(vm).await? {
            return Ok(());
        }
        let reserved = self.reserve(vm).await.map_err(unless_free)?;
        let reserved = Arc::new(reserved);
        if self.known(vm)?.phase == Phase::Layered {
            return Err(Error::HasSnapshots(vm));
        }
        let copy = self.flat_file(vm);
        self.copy_out(&reserved, &copy, progress).await?;
        faultpoint::point("node.promote.copied");
        let to = self.file(vm);
        let folder = self.folder(vm);
        let path = to.clone();
        let phase = self.known(vm)?.phase;
        if phase != Phase::Ready {
            let doing = "removed";
            return Err(Error::Busy { vm, doing });
        }
        let held = Arc::clone(&reserved);
        // It goes on when the caller leaves, and no machine gets the disk before its end.
        let replace = move || {
            let named = name_for_good(&copy, &to, &folder);
            drop(held);
            named
        };
        let replaced = tokio::task::spawn_blocking(replace).await;
        let replaced = replaced.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        replaced.map_err(files::failed("replace", &path))?;
        faultpoint::point("node.promote.renamed");
        self.settle_promotion(vm).await.map(drop)
    }

    /// Removes what is left of a copy whose caller has left; returns whether the disk needs no image
    /// all the same, as one whose copy was complete before. One that is gone needs none either, and
    /// was not promoted.
    pub async fn abandon_promotion(&self, vm: VmUid) -> Result<bool> {
        self.abandon_copy(vm).await?;
        match self.settle_promotion(vm).await {
            Err(Error::Missing(_)) => Ok(false),
            settled => settled,
        }
    }

    /// Removes what is left of a copy.
    async fn abandon_copy(&self, vm: VmUid) -> Result<()> {
        let copy = self.flat_file(vm);
        match tokio::fs::remove_file(&copy).await {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(files::failed("remove", &copy)(e).into())
            }
            _ => Ok(()),
        }
    }

    /// Records a disk that needs its image no more as such, and lets the image go; returns whether
    /// it needs none.
    pub async fn settle_promotion(&self, vm: VmUid) -> Result<bool> {
        let disk = self.known(vm)?;
        if disk.phase == Phase::Pulled && disk.holder.is_none() {
            return self.settle_pull(vm).await;
        }
        if disk.phase != Phase::Ready || disk.linked && self.is_overlay(vm).await? {
            return Ok(false);
        }
        if !disk.linked {
            self.let_image_go(vm).await?;
            return Ok(true);
        }
        self.record_whole(&disk).await
    }

    /// Records a disk that needs its image no more, if it is as it was, and lets the image go; returns whether it
    /// needs none.
    pub(super) async fn record_whole(&self, known: &Disk) -> Result<bool> {
        let vm = known.vm;
        faultpoint::point("node.promote.whole");
        let whole = self.records.change(&vm, |disk| {
            let is_same = disk.phase == known.phase && disk.holder == known.holder;
            disk.linked = false;
            disk.phase = Phase::Ready;
            is_same
        });
        if whole.await?.is_none() {
            return Ok(false);
        }
        tracing::info!(%vm, image = known.image, "disk promoted");
        faultpoint::point("node.promote.recorded");
        self.let_image_go(vm).await?;
        Ok(true)
    }

    /// Removes copies that an earlier process began; those of this one go on. What a pulled disk has is for its next
    /// user to find out, for which no other disk waits.
    pub(super) async fn collect_copies(&self) -> Result<()> {
        for disk in self.all() {
            let copy = self.flat_file(disk.vm);
            if !self.is_reserved(disk.vm) && tokio::fs::try_exists(copy).await.unwrap_or(true) {
                self.abandon_copy(disk.vm).await?;
            }
        }
        Ok(())
    }

    /// Whether the disk holds only differences from another file.
    pub(super) async fn is_overlay(&self, vm: VmUid) -> Result<bool> {
        let file = self.file(vm);
        let looked = self.qemu_img.is_overlay(&file).await;
        Ok(looked.map_err(files::failed("read", &file))?)
    }

    fn flat_file(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("root.flat")
    }
}

/// Why a disk is not copied now: a machine that has it, or returns to it, ends or starts at any time.
fn unless_free(refused: Error) -> Error {
    match refused {
        Error::Running { vm, holder } => Error::InUse { vm, holder },
        Error::Suspended(vm) => {
            let doing = "kept for saved memory";
            Error::Busy { vm, doing }
        }
        other => other,
    }
}

#[cfg(test)]
pub(super) mod tests;
