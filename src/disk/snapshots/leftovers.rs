//! Removes the files of layers that no record names any more, and counts those that are named.
//!
//! Invariant: a file of a layer that was recorded, and is no more, is removed; one with a number that no layer can
//! have had stays, since the record may be older than it.
//! Failure: [`Error`](crate::disk::Error); a repetition goes on where it ended.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::PoisonError;

use podspec::VmUid;

use super::change::UNRECORDED;
use super::doubt::DOUBT;
use crate::disk::Disks;
use crate::disk::error::Result;
use crate::disk::layers::Layers;
use crate::files;

impl Disks {
    /// Counts the layers that are recorded, and removes the files of those that were.
    pub(super) async fn tidy_layers(&self, vm: VmUid) -> Result<()> {
        for file in self.remove_leftovers(vm).await? {
            let reported = self.unrecorded.lock();
            // Once for each disk is enough.
            if reported.unwrap_or_else(PoisonError::into_inner).insert(vm) {
                tracing::warn!(%vm, file = %file.display(), "unrecorded layer left in place");
            }
        }
        Ok(())
    }

    /// As [`Self::tidy_layers`]; returns the files of layers that are later than the record: it may have been
    /// taken back from a copy of the database, and they have what a guest wrote since.
    pub(super) async fn remove_leftovers(&self, vm: VmUid) -> Result<Vec<PathBuf>> {
        let mut later = Vec::new();
        self.recount_layers(vm).await?;
        self.tidy_memories(vm).await?;
        let directory = self.layers_directory(vm);
        let failed = || files::failed("look through", &directory);
        let mut entries = match tokio::fs::read_dir(&directory).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(later),
            entries => entries.map_err(failed())?,
        };
        let mut is_changed = false;
        while let Some(entry) = entries.next_entry().await.map_err(failed())? {
            let path = entry.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let number: Option<u32> = stem.and_then(|stem| stem.parse().ok());
            let extension = path.extension().and_then(|extension| extension.to_str());
            // The file first, then the record: a layer is recorded before it has a file.
            match (number, extension) {
                (_, Some(UNRECORDED)) => continue,
                (Some(number), _) if self.is_recorded(vm, number) => continue,
                (Some(number), Some("qcow2" | DOUBT)) if number >= self.next_layer(vm) => {
                    later.push(path);
                    continue;
                }
                _ => {}
            }
            match tokio::fs::remove_file(&path).await {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(files::failed("remove", &path)(e).into());
                }
                _ => is_changed = true,
            }
        }
        if is_changed {
            let path = directory.clone();
            let sync = move || std::fs::File::open(path)?.sync_all();
            let synced = tokio::task::spawn_blocking(sync).await;
            let synced = synced.unwrap_or_else(|e| Err(std::io::Error::other(e)));
            synced.map_err(files::failed("write", &directory))?;
        }
        Ok(later)
    }

    /// The number that no layer of the disk has had yet, as far as the record goes.
    fn next_layer(&self, vm: VmUid) -> u32 {
        let disk = self.get(vm);
        disk.map_or(0, |disk| {
            let next = disk.layers.as_ref().map_or(0, Layers::next);
            next.max(disk.next_layer.unwrap_or_default())
        })
    }

    fn is_recorded(&self, vm: VmUid, number: u32) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(|layers| {
            let new = layers.change().map(|change| change.layer);
            layers.numbers().chain(new).any(|one| one == number)
        })
    }

    /// Counts the layers of a disk in the budget of the node.
    pub(in crate::disk) async fn recount_layers(&self, vm: VmUid) -> Result<()> {
        let Some(disk) = self.get(vm) else {
            return Ok(());
        };
        let counted = match &disk.layers {
            Some(layers) => layers.virtual_bytes(),
            None => disk.virtual_bytes,
        };
        Ok(self
            .qemu_img
            .recount_layers(&self.folder(vm), counted)
            .await?)
    }

    /// Removes the files of layers that earlier processes left; disks that are in use keep them.
    pub(in crate::disk) async fn collect_layers(&self) -> Result<()> {
        let mut outcome = Ok(());
        for disk in self.all() {
            let directory = self.layers_directory(disk.vm);
            let has_layers =
                disk.layers.is_some() || tokio::fs::try_exists(directory).await.unwrap_or(false);
            if disk.phase.is_complete() && has_layers && !self.is_reserved(disk.vm) {
                // One disk that fails keeps no other from its turn.
                outcome = outcome.and(self.tidy_layers(disk.vm).await);
                outcome = outcome.and(self.remove_stray_memory(disk.vm).await);
            }
        }
        outcome
    }
}
