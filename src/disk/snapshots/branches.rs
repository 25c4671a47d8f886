//! Merges of layers that no emulator has open, while a machine runs on other layers of the disk.
//!
//! ```text
//! 0 (snapshot A) ◄── 1 (active)          the emulator has 0 and 1 open
//!       ▲─────────── 2 ◄── 3 (snapshot C)   2 gets the content of 3
//! ```
//!
//! Invariant: the active layer descends from neither of the two, and no other one is made above them before the merge
//! has ended: a revert refuses a disk with claimed layers. What is below them is only read, and keeps its owner. Until the record names the
//! layer in the place of its child, the child has all that is read.
//! Failure: [`Error`]; a repetition begins again, or continues when the machine is off.

use std::sync::Arc;

use podspec::VmUid;

use super::merge::MergeInUse;
use crate::disk::error::{Error, Result};
use crate::disk::layers::{Layers, Unneeded};
use crate::disk::qemu_img::Access;
use crate::disk::{ClaimedLayers, Disks};
use crate::files;

/// A merge of which the record knows nothing yet.
#[derive(Debug)]
pub struct MergedBranch {
    vm: VmUid,
    merge: MergeInUse,
    _claim: Arc<ClaimedLayers>,
}

impl Disks {
    /// The next merge of layers that a machine does not run on, and none of `except`.
    pub fn merge_in_branch(&self, vm: VmUid, except: &[MergeInUse]) -> Option<MergeInUse> {
        self.merges_in_branches(vm)
            .into_iter()
            .find(|merge| !except.contains(merge))
    }

    fn merges_in_branches(&self, vm: VmUid) -> Vec<MergeInUse> {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        let all = layers.map(Layers::merges_in_branches).unwrap_or_default();
        let merges = all.into_iter().filter_map(|unneeded| match unneeded {
            Unneeded::Merge { layer, child } => Some(MergeInUse { layer, child }),
            Unneeded::Leaf(_) => None,
        });
        merges.collect()
    }

    /// Copies a child to its layer; `progress` gets percents.
    pub async fn merge_branch(
        &self,
        vm: VmUid,
        merge: MergeInUse,
        progress: &mut (impl FnMut(u8) + Send),
    ) -> Result<MergedBranch> {
        let claim = Arc::new(self.claim_merge(vm, merge.layer, merge.child)?);
        let busy = |doing| Err(Error::Busy { vm, doing });
        // Only what is claimed stays as it is.
        if self.is_reserved(vm) || !self.merges_in_branches(vm).contains(&merge) {
            return busy("changed, or removed");
        }
        for layer in [merge.layer, merge.child] {
            let file = self.layer_file(vm, layer);
            // A program that merges may have outlived an earlier process.
            let written = self.qemu_img.is_written(&file).await;
            if written.map_err(files::failed("look at", &file))? {
                return busy("written to by another program");
            }
        }
        let guard = Arc::<ClaimedLayers>::clone(&claim);
        self.merge(guard, Access::Shared, vm, merge, progress)
            .await?;
        Ok(MergedBranch {
            vm,
            merge,
            _claim: claim,
        })
    }

    /// Records a merge, and removes the file of the child.
    pub async fn end_branch(&self, merged: MergedBranch) -> Result<()> {
        let MergeInUse { layer, child } = merged.merge;
        let unneeded = Unneeded::Merge { layer, child };
        self.remove_layer(merged.vm, unneeded).await
    }
}
