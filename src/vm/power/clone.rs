//! Makes the disk of a machine as a copy of another machine's.
//!
//! Invariant: without a snapshot, no machine runs on the source, with a record or without, and none gets it meanwhile.
//! Failure: the disk's own error, with a source that is as it was.

use crate::disk::DesiredClone;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Copies a disk; see [`crate::disk::Disks::clone_disk`].
    pub async fn clone_disk(
        &self,
        desired: &DesiredClone,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        let is_made = disks
            .get(desired.vm)
            .is_some_and(|disk| disk.phase.is_complete());
        if desired.snapshot.is_none() && !is_made {
            self.take_disk_back(desired.source).await?;
        }
        Ok(disks.clone_disk(desired, progress).await?)
    }
}
