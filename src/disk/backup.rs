//! What a backup of a disk reads, and the layer that the next one is based on.
//!
//! ```text
//! record                       target               after a crash
//! snapshot B                   -                    the task begins to copy again
//! snapshot B, digest of B      -                    the same
//! snapshot B, digest of B      B                    B is kept as the base
//! B kept, A kept no more       B                    A is merged by this task, or by the next one
//! ```
//!
//! Invariant: a layer is kept for a backup only when that is complete in its target; what an increment has is all that the
//! disk has above the layer of the backup that it is based on. A backup that was not completed keeps no layer.
//! Failure: [`Error`]; the disk has its content at every instant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podspec::VmUid;
use tokio_util::sync::CancellationToken;

use super::Disks;
use super::chain::HeldSnapshot;
use super::error::{Error, Result};
use super::layers::{BackupBase, Layers, SnapshotUid, Step};
use super::snapshots::normalise;
use crate::backup::Original;
use crate::files;
use crate::images::Format;

/// What ends for machines that are to get their disks.
pub(super) type Yields = Arc<Mutex<BTreeMap<VmUid, CancellationToken>>>;

/// Work on a disk that ends when a machine is to get it.
#[derive(Debug)]
#[must_use]
pub struct Yielding {
    vm: VmUid,
    asked: CancellationToken,
    all: Yields,
}

/// The files of a disk that a backup consists of, the upper one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupFiles {
    /// All that the disk has.
    pub all: Vec<Original>,
    /// Those above its base; none: the base is not below them.
    pub above_base: Option<Vec<Original>>,
}

impl Disks {
    /// The backup that the next one may be based on.
    pub fn backup_base(&self, vm: VmUid) -> Option<BackupBase> {
        let disk = self.get(vm)?;
        let layers = disk.layers.as_ref()?;
        layers.backup().map(|(_, base)| base.clone())
    }

    /// The files of a snapshot that is held, for a backup.
    pub fn backup_files(&self, vm: VmUid, held: &Arc<HeldSnapshot>) -> BackupFiles {
        let file = |path: &std::path::PathBuf| Original {
            path: path.clone(),
            format: Format::Qcow2,
        };
        let layers: Vec<_> = held.files().iter().map(file).collect();
        let disk = self.get(vm);
        let base = disk.as_ref().and_then(|disk| {
            let layers = disk.layers.as_ref()?;
            layers.backup().map(|(layer, _)| layer)
        });
        let position = held.layers().iter().position(|layer| Some(*layer) == base);
        let image = held.image().map(|image| Original {
            path: image.path.clone(),
            format: image.format,
        });
        BackupFiles {
            above_base: position
                .filter(|count| *count > 0)
                .map(|count| layers[..count].to_vec()),
            all: layers.into_iter().chain(image).collect(),
        }
    }

    /// Keeps the layer of a snapshot as the base of the next backup, in place of the one before, which is to be merged;
    /// nothing to do when there is no such snapshot, or no backup of it was [noted](Self::note_backup).
    pub async fn keep_for_backup(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        let kept = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            layers.is_some_and(|layers| layers.keep_for_backup(uid))
        });
        kept.await?;
        faultpoint::point("backup.kept");
        Ok(())
    }

    /// Records the digest of the manifest of a backup that gets its name in its target now: no other one there is that
    /// backup.
    pub async fn note_backup(&self, vm: VmUid, uid: SnapshotUid, sha256: String) -> Result<()> {
        let noted = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            layers.is_some_and(|layers| layers.note_backup(uid, sha256))
        });
        let absent = Error::NoSnapshot { vm, snapshot: uid };
        noted.await?.map(drop).ok_or(absent)?;
        faultpoint::point("backup.noted");
        Ok(())
    }

    /// The digest of the manifest of a backup that was [noted](Self::note_backup) last.
    pub fn noted_backup(&self, vm: VmUid, uid: SnapshotUid) -> Option<String> {
        let disk = self.get(vm)?;
        let layers = disk.layers.as_ref()?;
        layers.noted_backup(uid).map(str::to_owned)
    }

    /// Refuses a disk whose backup could not be restored: the header of the layer that was written to says another size
    /// than the record, or one of them has its data elsewhere.
    pub async fn check_backup(&self, vm: VmUid, held: &HeldSnapshot) -> Result<()> {
        for file in held.files() {
            let has = self.qemu_img.has_data_file(file).await;
            if has.map_err(files::failed("read the header of", file))? {
                return Err(Error::DataFile(vm));
            }
        }
        let Some(file) = held.files().first() else {
            return Err(Error::Missing(vm));
        };
        let has = self.qemu_img.size_in_header(file).await;
        let has = has.map_err(files::failed("read the header of", file))?;
        let recorded = held.virtual_bytes();
        if has != recorded {
            return Err(Error::HeaderDiffers { vm, has, recorded });
        }
        Ok(())
    }

    /// Refuses files of a snapshot that is held whose tables are damaged: a disk that is restored from them would not
    /// start. What cannot be looked at is logged.
    pub async fn check_tables(
        &self,
        vm: VmUid,
        held: &Arc<HeldSnapshot>,
        originals: &[Original],
    ) -> Result<()> {
        let is_layer = |original: &&Original| held.files().contains(&original.path);
        for Original { path, .. } in originals.iter().filter(is_layer) {
            let guard = Arc::<HeldSnapshot>::clone(held);
            match self.qemu_img.damage(path, guard).await {
                Ok(None) => {}
                Ok(Some(reason)) => return Err(Error::Damaged { vm, reason }),
                Err(error) => {
                    let error = crate::one_line(&error);
                    tracing::warn!(%vm, error, "layer of a backup not checked");
                }
            }
        }
        Ok(())
    }

    /// Whether a snapshot was taken that no backup is known to be complete of.
    pub fn is_snapshot(&self, vm: VmUid, uid: SnapshotUid) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(|layers| layers.snapshots().iter().any(|(_, one)| one.uid == uid))
    }

    /// Whether the layer that is kept is that of this backup.
    pub fn is_backup_base(&self, vm: VmUid, uid: SnapshotUid) -> bool {
        self.backup_base(vm)
            .is_some_and(|base| base.taken.uid == uid)
    }

    /// The layer of a snapshot, or of a backup, is kept no more, and is to be merged; nothing to do when there is none.
    pub async fn release_layer(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        // What was begun may just be on its way to the database.
        self.records.settled().await;
        let released = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            let is_released = layers.is_some_and(|layers| layers.delete(uid));
            normalise(disk);
            is_released
        });
        released.await?;
        Ok(())
    }

    /// Whether a layer is kept for a snapshot or a backup, or is being taken for it.
    pub fn has_layer_for(&self, vm: VmUid, uid: SnapshotUid) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(|layers| layers.layer_of(uid).is_some()) || self.is_being_taken(vm, uid)
    }

    /// Whether the change in progress is this snapshot.
    pub fn is_being_taken(&self, vm: VmUid, uid: SnapshotUid) -> bool {
        let step = self.change(vm).map(|change| change.step);
        matches!(step, Some(Step::Take { snapshot, .. }) if snapshot.uid == uid)
    }

    /// Lets a machine that is to get the disk end what is done to it until the result is dropped.
    pub fn yielding(&self, vm: VmUid) -> Yielding {
        let asked = CancellationToken::new();
        self.yields().insert(vm, asked.clone());
        Yielding {
            vm,
            asked,
            all: Arc::clone(&self.yields),
        }
    }

    /// A machine is to get the disk.
    pub(super) fn ask_to_yield(&self, vm: VmUid) {
        if let Some(asked) = self.yields().get(&vm) {
            asked.cancel();
        }
    }

    fn yields(&self) -> MutexGuard<'_, BTreeMap<VmUid, CancellationToken>> {
        self.yields.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A deleted snapshot or backup whose layer waits for its merge.
    pub fn unmerged(&self, vm: VmUid) -> Option<SnapshotUid> {
        let disk = self.get(vm)?;
        disk.layers.as_ref().and_then(Layers::unmerged)
    }
}

impl Yielding {
    /// Ends when a machine is to get the disk.
    pub async fn asked(&self) {
        self.asked.cancelled().await;
    }
}

impl Drop for Yielding {
    fn drop(&mut self) {
        let all = self.all.lock();
        all.unwrap_or_else(PoisonError::into_inner).remove(&self.vm);
    }
}
