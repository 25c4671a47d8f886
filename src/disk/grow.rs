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
        let file = self.file(vm);
        match &disk.layers {
            None => self.qemu_img.grow(&file, size).await?,
            Some(layers) => {
                let mut larger = layers.clone();
                larger.grow(size);
                let counted = larger.virtual_bytes();
                let folder = self.folder(vm);
                let grown = self.qemu_img.grow_layer(&file, size, &folder, counted);
                if let Err(error) = grown.await {
                    self.recount_layers(vm).await?;
                    return Err(error.into());
                }
            }
        }
        let larger = self.records.change(&vm, |disk| {
            disk.virtual_bytes = size;
            if let Some(layers) = &mut disk.layers {
                layers.grow(size);
            }
            true
        });
        larger.await?;
        tracing::info!(%vm, bytes = size, "disk grown");
        Ok(())
    }
}
