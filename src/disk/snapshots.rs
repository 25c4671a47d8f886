//! Takes snapshots of a disk, reverts to them and deletes them.
//!
//! ```text
//! record                        files                          after a crash
//! change N                      -                              the change is dropped
//! change N                      layers/N.new                   the change is dropped
//! change N                      layers/N.qcow2, empty          N becomes active
//! N active                      layers/N.qcow2                 -
//! N active                      layers/N.qcow2, a discarded one   the discarded one is removed
//! ```
//!
//! While [`doubt`] is about its file, that is `layers/N.doubt` in the place of `layers/N.qcow2`.
//!
//! Invariant: a layer is recorded before it is made, and complete and on the device before it has its name.
//! A new layer is empty, so that the disk has the same content with it and without it: where it is
//! complete it is made active, whether an emulator wrote to it or not. Layers change only while no machine
//! has the disk, but for the new one that a running emulator is switched to, and those that it merges. A file of a layer that was
//! recorded, and is no more, is removed; one with a number that no layer can have had stays, since the record may
//! be older than it. A record says who its parent is, and headers do not.
//! Failure: [`Error`]; a repetition goes on where it ended.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podspec::VmUid;

mod branches;
mod delete;
mod doubt;
mod leftovers;
mod memory;
mod merge;

pub use merge::MergeInUse;

use super::Disks;
use super::error::{Error, Result};
use super::export::Reservation;
use super::layers::{Change, Layers, Snapshot, SnapshotMemory, SnapshotUid, Step};
use super::make::name_for_good;
use super::model::{Disk, Memory, Phase, TakenSnapshot};
use super::qemu_img::NewLayer;
use crate::clock;
use crate::files;

/// The directory of layers beside the first one.
const LAYERS: &str = "layers";

/// The extension of files that are no layers of the record, and were in the place of one.
const UNRECORDED: &str = "unrecorded";

/// The files of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The one that the guest writes to.
    pub active: PathBuf,
    /// Those below it, the next one first.
    pub below: Vec<PathBuf>,
}

impl Disks {
    /// The file of a layer.
    pub(super) fn layer_file(&self, vm: VmUid, layer: u32) -> PathBuf {
        match layer {
            0 => self.folder(vm).join("root.qcow2"),
            layer => self.layers_directory(vm).join(format!("{layer}.qcow2")),
        }
    }

    /// The names that the file of a layer may have.
    pub(super) fn names(&self, vm: VmUid, layer: u32) -> [PathBuf; 2] {
        [self.layer_file(vm, layer), self.doubtful_layer(vm, layer)]
    }

    /// The directory of the layers of a disk.
    pub fn layers_directory(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join(LAYERS)
    }

    /// Makes the directory of the layers of a disk.
    pub async fn prepare_layers(&self, vm: VmUid) -> Result<()> {
        let directory = self.layers_directory(vm);
        let path = directory.clone();
        let made = move || {
            match std::fs::create_dir(&path) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            // QEMU's user may traverse it, no user may list it.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o711))
        };
        let made = tokio::task::spawn_blocking(made).await;
        let made = made.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        Ok(made.map_err(files::failed("make", &directory))?)
    }

    /// The files of a disk.
    pub fn files(&self, vm: VmUid) -> Files {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        let active = layers.map_or(0, Layers::active);
        let below = layers.map(|layers| layers.below(active));
        let below = below.unwrap_or_default().into_iter();
        Files {
            active: self.layer_file(vm, active),
            below: below.map(|layer| self.layer_file(vm, layer)).collect(),
        }
    }

    /// The files of a disk that an emulator may write to.
    pub(super) async fn writable_files(&self, vm: VmUid) -> Result<Vec<PathBuf>> {
        let mut writable = vec![self.file(vm)];
        let change = self.change(vm).into_iter();
        let names = change.flat_map(|change| self.names(vm, change.layer));
        for file in names {
            let is_there = tokio::fs::try_exists(&file).await;
            if is_there.map_err(files::failed("look for", &file))? {
                writable.push(file);
            }
        }
        Ok(writable)
    }

    /// Bytes that the disk takes on the node; 0 when there is none. Blocks for a moment.
    pub fn allocated(&self, vm: VmUid) -> u64 {
        let layers = std::fs::read_dir(self.layers_directory(vm));
        let layers = layers.into_iter().flatten().flatten();
        let layers = layers.map(|entry| bytes_of(&entry.path()));
        let all = layers.chain([self.memory_allocated(vm)]);
        all.fold(bytes_of(&self.layer_file(vm, 0)), u64::saturating_add)
    }

    /// The snapshots of a disk, in the order in which they were taken. Blocks for a moment.
    pub fn snapshots(&self, disk: &Disk) -> Vec<TakenSnapshot> {
        let layers = disk.layers.iter();
        let all = layers.flat_map(|layers| {
            let all = layers.snapshots().into_iter();
            all.map(|(layer, snapshot)| self.describe(disk.vm, layers, layer, snapshot))
        });
        all.collect()
    }

    /// A snapshot of a disk, if it has that.
    pub async fn snapshot(&self, vm: VmUid, uid: SnapshotUid) -> Result<Option<TakenSnapshot>> {
        let disk = self.known(vm)?;
        let Some(layers) = &disk.layers else {
            return Ok(None);
        };
        let Some((layer, snapshot)) = layers.layer_of(uid) else {
            return Ok(None);
        };
        let file = self.layer_file(vm, layer);
        let looked = tokio::fs::metadata(&file).await;
        looked.map_err(files::failed("look at", &file))?;
        Ok(Some(self.describe(vm, layers, layer, snapshot)))
    }

    fn describe(
        &self,
        vm: VmUid,
        layers: &Layers,
        layer: u32,
        snapshot: Snapshot,
    ) -> TakenSnapshot {
        let memory = self.memory_sizes(vm, layers, snapshot.uid);
        TakenSnapshot {
            uid: snapshot.uid,
            parent: layers.parent_snapshot(layer),
            virtual_bytes: layers.bytes_of(layer),
            used_bytes: bytes_of(&self.layer_file(vm, layer)).saturating_add(memory.used),
            created_at: snapshot.created_at,
            quiesced: snapshot.quiesced,
            running: snapshot.running,
            memory_bytes: memory.bytes,
        }
    }

    /// The file of the layer of a change.
    pub fn new_layer(&self, vm: VmUid, change: Change) -> PathBuf {
        self.layer_file(vm, change.layer)
    }

    /// The change of the layers of a disk that is in progress.
    pub fn change(&self, vm: VmUid) -> Option<Change> {
        self.get(vm)?.layers.as_ref()?.change()
    }

    /// Whether a disk has as many layers as it may have.
    pub fn is_full(&self, vm: VmUid) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(Layers::is_full)
    }

    /// Takes a snapshot of a disk that no machine has; success when it has been taken.
    pub async fn take_snapshot(&self, vm: VmUid, uid: SnapshotUid) -> Result<TakenSnapshot> {
        if let Some(taken) = self.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        let _reserved = self.reserve_layers(vm).await?;
        // A change that an earlier process began may have been this one.
        if let Some(taken) = self.snapshot(vm, uid).await? {
            return Ok(taken);
        }
        let change = self.begin_snapshot(vm, uid, false).await?;
        self.make_layer(vm, change).await?;
        self.commit_change(vm, change.layer, false).await?;
        tracing::info!(%vm, snapshot = %uid, "snapshot taken");
        let taken = self.snapshot(vm, uid).await?;
        taken.ok_or(Error::NoSnapshot { vm, snapshot: uid })
    }

    /// Discards what was written to a disk that no machine has since a snapshot was taken, and since any
    /// that is based on it.
    pub async fn revert(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        self.revert_to(vm, uid, None).await
    }

    /// The same; `memory` is what the next start resumes from.
    async fn revert_to(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        memory: Option<SnapshotMemory>,
    ) -> Result<()> {
        let _reserved = self.reserve_layers(vm).await?;
        let disk = self.known(vm)?;
        let layers = disk.layers.as_ref();
        let found = layers.and_then(|layers| layers.layer_of(uid));
        let absent = Error::NoSnapshot { vm, snapshot: uid };
        let to = found.ok_or(absent)?.0;
        let change = self.begin_change(vm, Step::Revert { to }, None).await?;
        self.make_layer(vm, change).await?;
        let placed = match memory {
            None => Ok(None),
            Some(memory) => self.place_memory(vm, uid, memory).await.map(Some),
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(error) => {
                self.abandon_change(vm, change.layer).await?;
                return Err(error);
            }
        };
        let with_memory = placed.is_some();
        self.commit(vm, change.layer, false, placed).await?;
        tracing::info!(%vm, snapshot = %uid, with_memory, "disk reverted");
        Ok(())
    }

    /// Keeps machines from a disk while its layers are changed.
    pub(super) async fn reserve_layers(&self, vm: VmUid) -> Result<Arc<Reservation>> {
        let reserved = self.reserve(vm).await;
        let reserved = reserved.map_err(|refused| match refused {
            Error::Running { vm, holder } => Error::InUse { vm, holder },
            Error::Suspended(vm) if self.get(vm).is_some_and(|disk| disk.has_memory()) => {
                Error::MemoryFits(vm)
            }
            Error::Suspended(vm) => {
                let doing = "kept for memory that is being saved";
                Error::Busy { vm, doing }
            }
            other => other,
        });
        Ok(Arc::new(reserved?))
    }

    /// Records that a snapshot is being taken.
    pub async fn begin_snapshot(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        running: bool,
    ) -> Result<Change> {
        let snapshot = Snapshot {
            uid,
            created_at: clock::now(),
            quiesced: false,
            running,
        };
        let freezes = false;
        let step = Step::Take { snapshot, freezes };
        self.begin_change(vm, step, None).await
    }

    async fn begin_change(
        &self,
        vm: VmUid,
        step: Step,
        memory: Option<SnapshotMemory>,
    ) -> Result<Change> {
        // A file of the same number, which an earlier process left, would be taken for the new layer.
        for file in self.remove_leftovers(vm).await? {
            let aside = file.with_extension(format!("{}.{UNRECORDED}", clock::now()));
            let from = file.clone();
            let to = aside.clone();
            let moved = tokio::task::spawn_blocking(move || service::files::place(&from, &to));
            let moved = moved.await;
            let moved = moved.unwrap_or_else(|e| Err(std::io::Error::other(e)));
            moved.map_err(files::failed("move aside", &file))?;
            tracing::warn!(%vm, file = %aside.display(), "unrecorded layer renamed");
        }
        let mut begun = None;
        let mut is_full = false;
        let recorded = self.records.change(&vm, |disk| {
            // The image under one that is pulled is not known to be in it, and its header says nothing.
            if !disk.phase.is_complete() || disk.phase == Phase::Pulled {
                return false;
            }
            let single = || {
                Layers::single(disk.virtual_bytes)
                    .numbered_from(disk.next_layer.unwrap_or_default())
            };
            let layers = disk.layers.get_or_insert_with(single);
            is_full = layers.is_full();
            begun = layers.begin(step);
            if let Some(memory) = memory.clone().filter(|_| begun.is_some()) {
                layers.begin_memory(memory);
            }
            disk.phase = Phase::Layered;
            begun.is_some()
        });
        let recorded = recorded.await?;
        if is_full {
            return Err(Error::TooManySnapshots(vm));
        }
        let doing = "changed, or removed";
        let begun = begun.filter(|_| recorded.is_some());
        let begun = begun.ok_or(Error::Busy { vm, doing })?;
        faultpoint::point("node.snapshot.recorded");
        Ok(begun)
    }

    /// Makes the layer of a change; the change is dropped when it cannot be made.
    pub async fn make_layer(&self, vm: VmUid, change: Change) -> Result<()> {
        let made = self.write_layer(vm, change).await;
        if made.is_err() {
            self.abandon_change(vm, change.layer).await?;
        }
        faultpoint::point("node.snapshot.layer");
        made
    }

    async fn write_layer(&self, vm: VmUid, change: Change) -> Result<()> {
        let disk = self.known(vm)?;
        let layers = disk.layers.as_ref().ok_or(Error::Missing(vm))?;
        self.prepare_layers(vm).await?;
        let to = self.layer_file(vm, change.layer);
        let directory = self.layers_directory(vm);
        let unfinished = to.with_extension("new");
        let new = NewLayer {
            path: &unfinished,
            parent: &self.layer_file(vm, layers.parent_of_new(change.step)),
            size: layers.size_of_new(change.step),
            disk: &self.folder(vm),
            counted: layers.virtual_bytes(),
        };
        self.qemu_img.layer(new).await?;
        let path = to.clone();
        let name = move || name_for_good(&unfinished, &to, &directory);
        let named = tokio::task::spawn_blocking(name).await;
        let named = named.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        Ok(named.map_err(files::failed("name", &path))?)
    }

    /// Records that the guest of a snapshot is being requested to freeze its file systems, or no more.
    pub async fn set_freezes(&self, vm: VmUid, layer: u32, is_requested: bool) -> Result<()> {
        let set = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            layers.is_some_and(|layers| layers.set_freezes(layer, is_requested))
        });
        let doing = "changed, or removed";
        set.await?.map(drop).ok_or(Error::Busy { vm, doing })
    }

    /// Makes the layer of a change active. `quiesced`: the guest had frozen its file systems.
    pub async fn commit_change(&self, vm: VmUid, layer: u32, quiesced: bool) -> Result<()> {
        self.commit(vm, layer, quiesced, None).await
    }

    /// The same. `memory`: the next start resumes from it.
    async fn commit(
        &self,
        vm: VmUid,
        layer: u32,
        quiesced: bool,
        memory: Option<Memory>,
    ) -> Result<()> {
        let mut is_reverted = false;
        let committed = self.records.change(&vm, |disk| {
            let Some(layers) = &mut disk.layers else {
                return false;
            };
            let step = layers.change().map(|change| change.step);
            let is_done = layers.commit(layer, quiesced);
            disk.virtual_bytes = layers.active_bytes();
            is_reverted = is_done && matches!(step, Some(Step::Revert { .. }));
            if is_reverted {
                // The next guest finds out.
                disk.generation = None;
                if memory.is_some() {
                    disk.memory.clone_from(&memory);
                }
            }
            is_done
        });
        committed.await?;
        faultpoint::point("node.snapshot.committed");
        match self.tidy_layers(vm).await {
            // The disk is that of the snapshot, and its memory is there: what is left is removed later.
            Err(error) if is_reverted => {
                let error = crate::one_line(&error);
                tracing::warn!(%vm, error, "layers of a reverted disk not tidied yet");
                Ok(())
            }
            tidied => tidied,
        }
    }

    /// Drops a change that has not taken place, with its file.
    pub async fn abandon_change(&self, vm: VmUid, layer: u32) -> Result<()> {
        let abandoned = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            let is_done = layers.is_some_and(|layers| layers.abandon(layer));
            normalise(disk);
            is_done
        });
        abandoned.await?;
        self.tidy_layers(vm).await
    }

    /// Ends a change that an earlier attempt left, of a disk that no emulator has: where its layer is
    /// complete, an emulator may have written to it.
    pub async fn settle_change(&self, vm: VmUid) -> Result<()> {
        let Some(change) = self.change(vm) else {
            return Ok(());
        };
        // Without the guest nothing was written to a layer that a child was merged into.
        if self.restore_layer(vm, change).await? {
            tracing::info!(%vm, layer = change.layer, "layer of an interrupted snapshot or revert made active");
            // Whether the guest wrote between the request and the end of the machine is not known.
            return self.commit_change(vm, change.layer, false).await;
        }
        self.abandon_change(vm, change.layer).await
    }
}

/// Without its last snapshot a disk is as one that never had any.
pub(super) fn normalise(disk: &mut Disk) {
    if let Some(layers) = &disk.layers
        && disk.phase == Phase::Layered
        && layers.is_single()
    {
        disk.next_layer = Some(layers.next());
        disk.layers = None;
        disk.phase = Phase::Ready;
    }
}

/// Bytes that a file takes; 0 when there is none.
fn bytes_of(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.blocks() * 512)
}

#[cfg(test)]
mod tests;
