//! Deletes snapshots, and merges the layers that none needs any more.
//!
//! ```text
//! record                          files
//! L (snapshot), C above it        L, C
//! L without one, C                L, C             C is copied to L: all that is read above C stays the same
//! L in the place of C             L, C
//! L                               L
//! ```
//!
//! Invariant: a snapshot is deleted in the record before its layer changes, and a layer is merged again
//! from its beginning until the record names its parent in its place. No machine has the disk meanwhile, and no
//! reader the layers.
//! Failure: [`Error`]; the disk has its content at every instant, and a repetition merges what is left.

use std::sync::Arc;

use podspec::{ContainerId, VmUid};

use super::{MergeInUse, normalise};
use crate::disk::Disks;
use crate::disk::error::{Error, Result};
use crate::disk::export::Reservation;
use crate::disk::layers::{Layers, SnapshotUid, Unneeded};
use crate::disk::qemu_img::{Access, Base, Guard, Merge};

impl Disks {
    /// Deletes a snapshot of a disk that no machine has, and merges its layer; success when it is gone.
    /// `progress` gets percents of each merge.
    pub async fn delete_snapshot(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        if self.has_nothing_to_delete(vm, uid)? {
            return Ok(());
        }
        let reserved = self.reserve_layers(vm).await?;
        let deleted = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            layers.is_some_and(|layers| layers.delete(uid))
        });
        if deleted.await?.is_some() {
            tracing::info!(%vm, snapshot = %uid, "snapshot deleted");
        }
        faultpoint::point("node.snapshot.deleted");
        // Its memory goes also where its layer stays.
        self.tidy_layers(vm).await?;
        loop {
            let disk = self.known(vm)?;
            let Some(unneeded) = disk.layers.as_ref().and_then(Layers::unneeded) else {
                return Ok(());
            };
            // No reader has them, and none gets them, until the record names them no more.
            let _claim = self.claim_layers(vm, &unneeded.layers())?;
            if let Unneeded::Merge { layer, child } = unneeded {
                let guard = Arc::<Reservation>::clone(&reserved);
                let merge = MergeInUse { layer, child };
                self.merge(guard, Access::Lent, vm, merge, &mut progress)
                    .await?;
                faultpoint::point("node.snapshot.merged");
            }
            self.remove_layer(vm, unneeded).await?;
        }
    }

    /// Deletes a snapshot of a disk that a machine runs on, if no layer is to be merged for that.
    pub async fn delete_snapshot_in_use(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        holder: ContainerId,
    ) -> Result<()> {
        if self.has_nothing_to_delete(vm, uid)? {
            return Ok(());
        }
        let mut claims = Vec::new();
        let mut held = Vec::new();
        let mut refused = None;
        let deleted = self.records.change(&vm, |disk| {
            let Some(layers) = &mut disk.layers else {
                return false;
            };
            // The change may be the snapshot itself.
            if layers.change().is_some() || layers.is_unmerged(uid) {
                return false;
            }
            // Those of earlier deletions do not keep this one from its end.
            let waiting = layers.merges();
            layers.delete(uid);
            while let Some(leaf) = layers.unneeded_leaf(&held) {
                match self.claim_layers(vm, &leaf.layers()) {
                    Ok(claim) => claims.push(claim),
                    // The snapshot is deleted, which ends an export of it; a repetition removes the layer.
                    Err(error) => {
                        refused = Some(error);
                        held.push(leaf);
                        continue;
                    }
                }
                if !layers.remove(leaf) {
                    return false;
                }
            }
            let is_done = layers.merges().iter().all(|merge| waiting.contains(merge));
            normalise(disk);
            is_done
        });
        if deleted.await?.is_none() {
            // Also beside a leaf that is read: a merge of other layers does not wait for its reader.
            return Err(Error::LayersInUse { vm, holder });
        }
        self.tidy_layers(vm).await?;
        if let Some(refused) = refused {
            return Err(refused);
        }
        tracing::info!(%vm, snapshot = %uid, "snapshot deleted");
        Ok(())
    }

    /// Whether neither the snapshot is there nor a layer that was left by a deletion.
    fn has_nothing_to_delete(&self, vm: VmUid, uid: SnapshotUid) -> Result<bool> {
        let Some(disk) = self.records.readable(&vm)? else {
            return Ok(true);
        };
        let layers = disk.layers.as_ref().filter(|_| disk.phase.is_complete());
        Ok(layers.is_none_or(|layers| {
            let is_taken = layers.layer_of(uid).is_some();
            !is_taken && layers.unneeded().is_none() && layers.change().is_none()
        }))
    }

    /// Copies a child to its layer. `guard` keeps others from both, and `access` is to what is below.
    pub(super) async fn merge(
        &self,
        guard: Guard,
        access: Access,
        vm: VmUid,
        merge: MergeInUse,
        progress: &mut (impl FnMut(u8) + Send),
    ) -> Result<()> {
        let MergeInUse { layer, child } = merge;
        let disk = self.known(vm)?;
        let layers = disk.layers.as_ref().ok_or(Error::Missing(vm))?;
        let below = layers.below(layer).into_iter();
        let all = std::iter::once(layer).chain(below);
        let files: Vec<_> = all.map(|number| self.layer_file(vm, number)).collect();
        let image = self.base(vm).filter(|_| disk.linked);
        let merge = Merge {
            child: &self.layer_file(vm, child),
            layers: &files,
            base: image.as_ref().map(|image| Base {
                path: &image.path,
                format: image.format,
            }),
            size: layers.bytes_of(child),
            access,
            guard,
        };
        Ok(self.qemu_img.merge(merge, progress).await?)
    }

    pub(super) async fn remove_layer(&self, vm: VmUid, unneeded: Unneeded) -> Result<()> {
        let removed = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            let is_done = layers.is_some_and(|layers| layers.remove(unneeded));
            normalise(disk);
            is_done
        });
        let doing = "changed, or removed";
        removed.await?.ok_or(Error::Busy { vm, doing })?;
        faultpoint::point("node.snapshot.unlinked");
        self.tidy_layers(vm).await
    }
}
