//! The upload of a disk as the layer of an image.
//!
//! Invariant: a byte counts as received when it is in the upload or on its way; after a failure that passes, the disk begins
//! again, at most [`RESTARTS`] times.
//! Failure: the registry's; a disk that is another one than before is uploaded again from its beginning.

use sha2::{Digest as _, Sha256};

use super::container_disk::{Layer, head, hex, tail};
use super::registry::{Registry, RegistryError, Upload};
use crate::commands::transfer::receive::Target;

/// How often a disk is uploaded from its beginning again.
const RESTARTS: u32 = 3;

/// A disk on its way into the layer of an image.
pub(super) struct LayerUpload<'a> {
    registry: &'a mut Registry,
    upload: Option<Upload>,
    /// Bytes of the disk.
    size: Option<u64>,
    received: u64,
    /// Of the disk.
    sum: Sha256,
    restarts: u32,
}

impl<'a> LayerUpload<'a> {
    pub(super) fn new(registry: &'a mut Registry) -> Self {
        Self {
            registry,
            upload: None,
            size: None,
            received: 0,
            sum: Sha256::new(),
            restarts: 0,
        }
    }

    /// Completes the layer behind the disk.
    pub(super) async fn finish(&mut self) -> Result<Layer, RegistryError> {
        let finished = self.end().await;
        self.settle(finished)
    }

    async fn end(&mut self) -> Result<Layer, RegistryError> {
        let Some(mut upload) = self.upload.take() else {
            return Err(RegistryError::Lost);
        };
        upload.write(self.registry, &tail(self.received)).await?;
        let blob = upload.finish(self.registry).await?;
        Ok(Layer {
            digest: blob.digest,
            size: blob.size,
        })
    }

    fn forget(&mut self) {
        self.upload = None;
        self.size = None;
        self.received = 0;
        self.sum = Sha256::new();
    }

    /// What a failure leaves: an upload that the registry has lost is begun again.
    fn settle<R>(&mut self, written: Result<R, RegistryError>) -> Result<R, RegistryError> {
        match written {
            Err(RegistryError::Lost) if self.restarts < RESTARTS => {
                self.restarts += 1;
                self.forget();
                Err(RegistryError::Lost)
            }
            Err(RegistryError::Lost) => Err(RegistryError::LostAgain),
            other => other,
        }
    }
}

impl Target for LayerUpload<'_> {
    type Error = RegistryError;

    fn received(&self) -> u64 {
        self.received
    }

    fn checksum(&self) -> String {
        hex(&self.sum.clone().finalize())
    }

    async fn begin(&mut self, size: u64) -> Result<(), RegistryError> {
        match self.size {
            Some(before) if before == size => return Ok(()),
            // It has the same beginning and another length, which is written already.
            Some(_) => {
                self.forget();
                return Err(RegistryError::Lost);
            }
            None => {}
        }
        let mut upload = Upload::begin(self.registry).await?;
        let written = upload.write(self.registry, &head(size)).await;
        self.settle(written)?;
        self.upload = Some(upload);
        self.size = Some(size);
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), RegistryError> {
        let Some(upload) = &mut self.upload else {
            return Err(RegistryError::Lost);
        };
        let written = upload.write(self.registry, bytes).await;
        self.settle(written)?;
        self.sum.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), RegistryError> {
        if let Some(upload) = self.upload.take() {
            upload.cancel(self.registry).await;
        }
        self.forget();
        Ok(())
    }

    fn is_passing(error: &RegistryError) -> bool {
        error.is_passing()
    }
}
