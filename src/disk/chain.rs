//! The layers of a snapshot, held while they are read; and layers that are claimed, to be changed.
//!
//! Invariant: a layer that is held is neither merged nor removed, and one that is claimed gets no reader. Both are
//! in memory alone: they end with who made them, but not before the program has given the files back, and with this
//! process. A machine may have the disk meanwhile, and write to its active layer: no snapshot has that.
//! Failure: [`Error::LayersRead`] for a claim, [`Error::Busy`] for a reader; the same request succeeds later.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podspec::VmUid;

use super::Disks;
use super::error::{Error, Result};
use super::layers::SnapshotUid;
use super::model::{Disk, Phase};
use super::qemu_img::{Access, Base, Source};
use crate::files;
use crate::images::Pinned;

/// What keeps a reader from a disk for a while.
pub(super) const MERGED: &str = "merged with a deleted snapshot";

/// Who uses which layers of this node's disks; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerUses(Arc<Mutex<BTreeMap<(VmUid, u32), Use>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// So many readers hold it.
    Readers(usize),
    /// It is being merged or removed.
    Claimed,
}

/// What a snapshot has, readable until this is dropped.
#[derive(Debug)]
pub struct HeldSnapshot {
    vm: VmUid,
    chain: Chain,
    files: Vec<PathBuf>,
    image: Option<Pinned>,
    uses: LayerUses,
}

/// Layers that nothing else merges, removes or begins to read until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct ClaimedLayers {
    vm: VmUid,
    layers: Vec<u32>,
    uses: LayerUses,
}

/// The layers of a snapshot in the record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chain {
    /// That of the snapshot first.
    layers: Vec<u32>,
    virtual_bytes: u64,
    created_at: i64,
}

impl Disks {
    /// Holds what a snapshot has, also while a machine runs on its disk. The deletion of the snapshot does not
    /// end that: the layers are merged when the last reader has ended.
    pub async fn hold_snapshot(&self, vm: VmUid, uid: SnapshotUid) -> Result<HeldSnapshot> {
        let disk = self.known(vm)?;
        let chain = chain_of(&disk, uid)?;
        if !self.uses.hold(vm, &chain.layers) {
            return Err(Error::Busy { vm, doing: MERGED });
        }
        let files = chain.layers.iter();
        let held = HeldSnapshot {
            vm,
            files: files.map(|layer| self.layer_file(vm, *layer)).collect(),
            image: self.base(vm).filter(|_| disk.linked),
            chain,
            uses: self.uses.clone(),
        };
        // What was claimed before may have been merged since the record was read.
        if chain_of(&*self.known(vm)?, uid)? != held.chain {
            return Err(Error::Busy { vm, doing: MERGED });
        }
        // A program that merges may have outlived an earlier process.
        for file in &held.files {
            let written = self.qemu_img.is_written(file).await;
            if written.map_err(files::failed("look at", file))? {
                return Err(Error::Busy { vm, doing: MERGED });
            }
        }
        if disk.linked && held.image.is_none() {
            return Err(Error::ImageLost(vm));
        }
        Ok(held)
    }

    /// Claims layers that are to be merged or removed, unless one is being read. Whether they are to be
    /// changed is for the caller to find out in the record afterwards. Blocks nothing, and takes no other lock.
    pub(super) fn claim_layers(&self, vm: VmUid, layers: &[u32]) -> Result<ClaimedLayers> {
        if !self.uses.claim(vm, layers) {
            return Err(Error::LayersRead(vm));
        }
        Ok(ClaimedLayers {
            vm,
            layers: layers.to_vec(),
            uses: self.uses.clone(),
        })
    }

    /// Whether layers of a disk are being merged or removed.
    pub(super) fn has_claimed_layers(&self, vm: VmUid) -> bool {
        self.uses.has_claims(vm)
    }

    /// Writes all that a snapshot has, with the image under it, to a qcow2 file that stands alone. `progress` gets
    /// percents. A caller that drops the future removes the file.
    pub async fn copy_snapshot_out(
        &self,
        held: &Arc<HeldSnapshot>,
        target: &Path,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let Some((layer, below)) = held.files.split_first() else {
            return Err(Error::Missing(held.vm));
        };
        let source = Source {
            disk: layer,
            below,
            base: held.image.as_ref().map(|image| Base {
                path: &image.path,
                format: image.format,
            }),
            size: held.virtual_bytes(),
            access: Access::Shared,
            guard: Arc::<HeldSnapshot>::clone(held),
        };
        Ok(self.qemu_img.copy_out(source, target, progress).await?)
    }

    /// Waits until a disk has a snapshot no more, or is being removed.
    pub async fn snapshot_removal(&self, vm: VmUid, uid: SnapshotUid) {
        let mut changes = self.changes();
        loop {
            let disk = self.get(vm);
            let is_there = disk.is_some_and(|disk| {
                let layers = disk.layers.as_ref().filter(|_| disk.phase.is_complete());
                layers.is_some_and(|layers| layers.layer_of(uid).is_some())
            });
            if !is_there || changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl HeldSnapshot {
    /// The file of its layer, and those below it, the next one first.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The numbers of these layers, in the same order.
    pub(super) fn layers(&self) -> &[u32] {
        &self.chain.layers
    }

    /// The image under the last one.
    pub(super) const fn image(&self) -> Option<&Pinned> {
        self.image.as_ref()
    }

    /// Size that the guest saw, in bytes.
    pub const fn virtual_bytes(&self) -> u64 {
        self.chain.virtual_bytes
    }

    /// When it was taken, in nanoseconds since the epoch.
    pub const fn created_at(&self) -> i64 {
        self.chain.created_at
    }
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        self.uses.release(self.vm, &self.chain.layers);
    }
}

impl Drop for ClaimedLayers {
    fn drop(&mut self) {
        self.uses.release(self.vm, &self.layers);
    }
}

impl LayerUses {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(VmUid, u32), Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more reader of all these layers; false, and none, if one is claimed.
    fn hold(&self, vm: VmUid, layers: &[u32]) -> bool {
        let mut all = self.all();
        let is_claimed = |layer: &u32| all.get(&(vm, *layer)) == Some(&Use::Claimed);
        if layers.iter().any(is_claimed) {
            return false;
        }
        for layer in layers {
            let entry = all.entry((vm, *layer)).or_insert(Use::Readers(0));
            if let Use::Readers(count) = entry {
                *count += 1;
            }
        }
        true
    }

    /// Claims all these layers; false, and none, if one is in use.
    fn claim(&self, vm: VmUid, layers: &[u32]) -> bool {
        let mut all = self.all();
        if layers.iter().any(|layer| all.contains_key(&(vm, *layer))) {
            return false;
        }
        all.extend(layers.iter().map(|layer| ((vm, *layer), Use::Claimed)));
        true
    }

    /// Whether a layer of a disk is claimed.
    fn has_claims(&self, vm: VmUid) -> bool {
        let all = self.all();
        let mut of_disk = all.range((vm, u32::MIN)..=(vm, u32::MAX));
        of_disk.any(|(_, is)| *is == Use::Claimed)
    }

    /// A use of these layers has ended.
    fn release(&self, vm: VmUid, layers: &[u32]) {
        let mut all = self.all();
        for layer in layers {
            match all.get_mut(&(vm, *layer)) {
                Some(Use::Readers(count)) if *count > 1 => *count -= 1,
                _ => {
                    all.remove(&(vm, *layer));
                }
            }
        }
    }
}

/// The layers of a snapshot of a disk, if it can be read.
fn chain_of(disk: &Disk, uid: SnapshotUid) -> Result<Chain> {
    let vm = disk.vm;
    match disk.phase {
        Phase::Making => return Err(Error::Busy { vm, doing: "made" }),
        Phase::Deleting => {
            let doing = "removed";
            return Err(Error::Busy { vm, doing });
        }
        Phase::Ready | Phase::Layered | Phase::Pulled => {}
    }
    let absent = || Error::NoSnapshot { vm, snapshot: uid };
    let layers = disk.layers.as_ref().ok_or_else(absent)?;
    let found = layers.layer_of(uid).ok_or_else(absent)?;
    let below = layers.below(found.0);
    let all: Vec<_> = std::iter::once(found.0).chain(below).collect();
    let change = layers.change().filter(|change| !change.step.makes_layer());
    if change.is_some_and(|change| all.contains(&change.layer)) {
        return Err(Error::Busy { vm, doing: MERGED });
    }
    Ok(Chain {
        layers: all,
        virtual_bytes: layers.bytes_of(found.0),
        created_at: found.1.created_at,
    })
}

#[cfg(test)]
mod tests;
