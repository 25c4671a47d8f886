//! Makes the disk of a virtual machine independent of its image.
//!
//! Invariant: a copy is made while no machine runs on the disk, with a record or without, and none gets it meanwhile;
//! a machine that runs copies the image itself (`pull.rs`).
//! Failure: the disk's own error, with a disk that is the overlay that it was, or whole.

use podspec::VmUid;

use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Copies the disk of a machine that is off; see [`crate::disk::Disks::flatten`]. Success for a
    /// disk that needs no image, whether its machine runs or not.
    pub async fn promote(&self, vm: VmUid, progress: impl FnMut(u8) + Send) -> Result<()> {
        if self.parts.disks.settle_promotion(vm).await? {
            return Ok(());
        }
        self.take_disk_back(vm).await?;
        Ok(self.parts.disks.flatten(vm, progress).await?)
    }
}
