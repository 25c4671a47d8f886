//! Inspects an image from its first bytes on the server.
//!
//! Invariant: what is accepted here is accepted by a pull, as far as its beginning and its length
//! say; nothing is stored. A digest in the name specifies nothing about a beginning, so it is not
//! checked.
//! Failure: as of a pull.

use serde::{Deserialize, Serialize};

use super::download::{Head, Target};
use super::error::{Error, Result};
use super::format::{Accepted, Disk, Format};
use super::locator::Locator;
use super::registry::Wanted;
use super::translate::Place;
use super::unpack::{Shape, head_in};
use super::{Inner, registry};

/// What the first bytes of an image say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// How the disk is written; qcow2 also if a pull converts it to that.
    pub format: Format,
    /// Size of the disk that a guest would see, in bytes; 0: the server does not say how long a raw
    /// file is, or the first bytes of a disk that a pull converts do not show it.
    pub virtual_bytes: u64,
    /// Size of the file, in bytes; 0: the server does not say.
    pub file_bytes: u64,
    /// Whether a raw disk has a boot sector or a partition table; true for other formats.
    pub bootable: bool,
}

impl Inner {
    pub(super) async fn inspect(&self, locator: Locator<'_>) -> Result<Inspected> {
        let (name, origin) = locator.parse()?;
        let (location, head, bytes) = match self.place(&name, origin, locator.tls()).await? {
            Place::File(source) => {
                let location = source.location();
                let head = self.downloader.peek(&Target::of(source)).await?;
                let length = head.length;
                (location, self.unpacked(head, Shape::Disk), length)
            }
            Place::Registry(place) => {
                let location = place.to_string();
                let (head, bytes) = self.peek_registry(&place).await?;
                (location, head, Some(bytes))
            }
        };
        let head = head.ok_or_else(|| Error::Content {
            location: location.clone(),
            reason: "its first bytes do not show what disk is in it; pull it".to_owned(),
        })?;
        let judged = self.rules.judge(&head.bytes, head.length);
        let accepted = judged.map_err(|reason| Error::Format {
            location: location.clone(),
            reason,
        })?;
        let disk = match accepted {
            Accepted::Disk(disk) => disk,
            // What a pull makes of it.
            Accepted::Convertible { virtual_size, .. } => Disk {
                format: Format::Qcow2,
                virtual_size,
            },
        };
        tracing::info!(%name, location, format = disk.format.as_str(), "image inspected");
        Ok(Inspected {
            format: disk.format,
            virtual_bytes: disk.virtual_size,
            file_bytes: bytes.unwrap_or_default(),
            bootable: disk.format.is_bootable(&head.bytes),
        })
    }

    /// The head of the first blob that shows one, and the size of that blob.
    async fn peek_registry(&self, place: &registry::Place) -> Result<(Option<Head>, u64)> {
        let wanted = Wanted {
            place,
            credentials: None,
        };
        let resolved = self.registries.resolve(&self.downloader, wanted).await?;
        for blob in &resolved.candidates {
            let (mut servers, mut target) = resolved.servers(&self.downloader, wanted, blob)?;
            let peeked = loop {
                match self.downloader.peek(&target).await {
                    Ok(head) => break head,
                    Err(error) => target = servers.after(error).await?,
                }
            };
            if let Some(head) = self.unpacked(peeked, blob.shape) {
                return Ok((Some(head), blob.size));
            }
        }
        Ok((None, 0))
    }

    /// The head of the disk in a file that begins so, if that shows it.
    fn unpacked(&self, head: Head, shape: Shape) -> Option<Head> {
        if !shape.is_packed(&head.bytes) {
            return Some(head);
        }
        let (bytes, length) = head_in(&head.bytes, shape)?;
        Some(Head { bytes, length })
    }
}
