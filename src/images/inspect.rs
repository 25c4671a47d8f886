//! Inspects an image from its first bytes on the server.
//!
//! Invariant: what is accepted here is accepted by a pull, as far as its beginning and its length
//! say; nothing is stored. A digest in the name specifies nothing about a beginning, so it is not
//! checked.
//! Failure: as of a pull.

use serde::{Deserialize, Serialize};

use super::Inner;
use super::error::{Error, Result};
use super::format::{Format, judge};
use super::locator::Locator;

/// What the first bytes of an image say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// How the disk is written.
    pub format: Format,
    /// Size of the disk that a guest would see, in bytes; 0: the server does not say how long a raw
    /// file is.
    pub virtual_bytes: u64,
    /// Size of the file, in bytes; 0: the server does not say.
    pub file_bytes: u64,
    /// Whether a raw disk has a boot sector or a partition table; true for other formats.
    pub bootable: bool,
}

impl Inner {
    pub(super) async fn inspect(&self, locator: Locator<'_>) -> Result<Inspected> {
        let (name, url) = locator.parse()?;
        let source = self.translator.translate(&name, url)?;
        let location = source.location();
        let head = self.downloader.peek(&source).await?;
        let judged = judge(&head.bytes, head.length, self.max_virtual_bytes);
        let disk = judged.map_err(|reason| Error::Format {
            location: location.clone(),
            reason,
        })?;
        tracing::info!(%name, location, format = disk.format.as_str(), "image inspected");
        Ok(Inspected {
            format: disk.format,
            virtual_bytes: disk.virtual_size,
            file_bytes: head.length.unwrap_or_default(),
            bootable: disk.format.is_bootable(&head.bytes),
        })
    }
}
