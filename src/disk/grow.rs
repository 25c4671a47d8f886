//! Makes a disk larger.
//!
//! Invariant: only before the container that has it starts, and not below memory that its guest
//! will return from; a disk never gets smaller, and what is on it stays.
//! Failure: the disk is as it was, or as large as it was to be; the next attempt finishes either.

use podspec::VmUid;

use super::Disks;
use super::error::Result;

impl Disks {
    /// Makes a disk at least `size` bytes large.
    pub async fn grow(&self, vm: VmUid, size: u64) -> Result<()> {
        let disk = self.known(vm)?;
        if disk.has_memory() || size <= disk.virtual_bytes {
            return Ok(());
        }
        self.qemu_img.grow(&self.file(vm), size).await?;
        let larger = self.records.change(&vm, |disk| {
            disk.virtual_bytes = size;
            true
        });
        larger.await?;
        tracing::info!(%vm, bytes = size, "disk grown");
        Ok(())
    }
}
