//! Records a change of the layers of a disk, makes its file, and makes it active or drops it.
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
//! Invariant: a layer is recorded before it is made, and complete and on the device before it has its name.
//! A new layer is empty, so that the disk has the same content with it and without it: where it is
//! complete it is made active, whether an emulator wrote to it or not.
//! Failure: [`Error`]; a change whose layer cannot be made is dropped, with its file.

use podspec::VmUid;

use crate::clock;
use crate::disk::Disks;
use crate::disk::error::{Error, Result};
use crate::disk::layers::{Change, Layers, Snapshot, SnapshotMemory, SnapshotUid, Step};
use crate::disk::make::name_for_good;
use crate::disk::model::{Disk, Memory, Phase};
use crate::disk::qemu_img::NewLayer;
use crate::files;

/// The extension of files that are no layers of the record, and were in the place of one.
pub(super) const UNRECORDED: &str = "unrecorded";

impl Disks {
    /// The change of the layers of a disk that is in progress.
    pub fn change(&self, vm: VmUid) -> Option<Change> {
        self.get(vm)?.layers.as_ref()?.change()
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

    pub(super) async fn begin_change(
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
    pub(super) async fn commit(
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
pub(in crate::disk) fn normalise(disk: &mut Disk) {
    if let Some(layers) = &disk.layers
        && disk.phase == Phase::Layered
        && layers.is_single()
    {
        disk.next_layer = Some(layers.next());
        disk.layers = None;
        disk.phase = Phase::Ready;
    }
}
