//! Takes a file from a client into the store, as a pull takes one from a server.
//!
//! Invariant: the client says size and digest first, and the file is judged, unpacked and converted
//! as a download, once both are right. What was received is continued by the next upload of the
//! same content. No part of a path comes from a client.
//! Failure: as of a pull; what an upload that ended early has received is removed when downloads
//! are, and at once if the disk has failed.

use std::sync::Arc;

use super::super::digest::Digest;
use super::super::download::is_kept_after;
use super::super::error::{Error, Result};
use super::super::format::{HEAD, head_of};
use super::super::partial::{Handle, Note, RoomClaim, Validators};
use super::super::reference::{Name, Reference};
use super::super::share::{Leadership, Turn};
use super::super::unpack::{Packing, Shape};
use super::super::{Image, Inner};
use super::{Arrival, Download, names_of};
use crate::space::Claim;

/// Beginning of the names, behind the prefix of our runtime, that no server has: no host can have
/// this name.
const UPLOADED: &str = "upload.invalid/";

/// What stands in messages for the place that a file comes from.
const LOCATION: &str = "the uploaded file";

/// How an upload begins.
#[derive(Debug)]
pub enum Upload {
    /// The node has the content already.
    Present(Image),
    /// Bytes are missing.
    Missing(Box<Receiver>),
}

/// Receives the bytes of an upload, and keeps others from the same content.
#[derive(Debug)]
pub struct Receiver {
    inner: Arc<Inner>,
    leadership: Leadership,
    download: Download,
    partial: Handle,
    size: u64,
    _room: RoomClaim,
    space: Arc<Claim>,
}

/// Whether a name is one of an upload, which no node can pull.
pub(in crate::images) fn is_uploaded(name: &Name) -> bool {
    name.bare().starts_with(UPLOADED)
}

impl Inner {
    /// Begins to receive a file of `size` bytes with this digest, which is to have this name.
    pub(in crate::images) async fn upload(
        self: &Arc<Self>,
        name: &str,
        size: u64,
        digest: Digest,
    ) -> Result<Upload> {
        let name = match Reference::parse(name)? {
            Reference::Named(name) if is_uploaded(&name) && name.checksum().is_none() => name,
            _ => {
                return Err(Error::InvalidName {
                    name: name.chars().take(256).collect(),
                    reason: "is no name of an upload: upload.invalid/NAMESPACE/NAME:TAG".into(),
                });
            }
        };
        let limit = self.downloader.max_bytes();
        if size > limit {
            let location = LOCATION.to_owned();
            return Err(Error::TooLarge { location, limit });
        }
        if let Some(image) = self.adopt(names_of(&name, digest), digest, None).await? {
            return Ok(Upload::Present(image));
        }
        let key = format!("upload-{}", digest.hex());
        let leadership = match self.downloads.turn(key.clone(), &name.to_string()).await {
            Turn::Lead(leadership) => leadership,
            Turn::Follow(outcome) => {
                let arrived = outcome?;
                let names = names_of(&name, digest);
                let image = self.adopt(names, arrived.digest, None).await?;
                let absent = || Error::Absent {
                    reference: name.to_string(),
                };
                return Ok(Upload::Present(image.ok_or_else(absent)?));
            }
        };
        let partial = self.partial(&key).await?;
        if partial.read(|p| p.note().total).await != Some(size) {
            let validators = Validators {
                etag: Some(format!("\"{digest}\"")),
                modified: None,
            };
            let note = Note::new(LOCATION.to_owned(), validators, Some(size));
            partial.work(move |p| p.restart(note)).await?;
        }
        let claimed = self.downloader.claim(&partial, size, size).await;
        if claimed.is_err() && partial.read(|p| p.received() == 0).await {
            partial.discard().await?;
        }
        let (room, space) = claimed?;
        let download = Download {
            name,
            key,
            identity: None,
            location: LOCATION.to_owned(),
            shape: Shape::Disk,
            expected: Some(digest.into()),
            named: None,
            user: String::new(),
            validators: Validators::default(),
        };
        Ok(Upload::Missing(Box::new(Receiver {
            inner: Arc::clone(self),
            leadership,
            download,
            partial,
            size,
            _room: room,
            space: Arc::new(space),
        })))
    }

    /// An uploaded image that is sound; only a node that has it knows it.
    pub(in crate::images) async fn uploaded(self: &Arc<Self>, name: &Name) -> Result<Image> {
        let digest = self.stored(name)?.digest;
        let image = self.adopt(names_of(name, digest), digest, None).await?;
        image.ok_or_else(|| Error::Uploaded {
            name: name.bare().to_owned(),
        })
    }

    /// An uploaded image, as the catalog has it.
    pub(in crate::images) fn stored(&self, name: &Name) -> Result<Image> {
        let digest = self.catalog.resolve(&name.to_string());
        let image = digest.and_then(|digest| self.catalog.image(digest));
        image.ok_or_else(|| Error::Uploaded {
            name: name.bare().to_owned(),
        })
    }
}

impl Receiver {
    /// Bytes that are here.
    pub async fn received(&self) -> u64 {
        self.partial.read(|p| p.received()).await
    }

    /// Bytes that are missing.
    pub async fn missing(&self) -> u64 {
        self.size.saturating_sub(self.received().await)
    }

    /// Adds the next bytes, at most those that are missing.
    pub async fn append(&self, bytes: Vec<u8>) -> Result<()> {
        if bytes.len() as u64 > self.missing().await {
            return Err(Error::TooLarge {
                location: LOCATION.to_owned(),
                limit: self.size,
            });
        }
        let space = Arc::clone(&self.space);
        let before = self.received().await;
        let appended = self.partial.append(bytes, space, self.size).await;
        let appended = match appended.await? {
            Ok(_) => self.judge(before).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &appended
            && !is_kept_after(error)
        {
            // The file may have more than what was counted. The first error is what counts.
            let _ = self.partial.discard().await;
        }
        appended
    }

    /// Refuses a file by its first bytes, once they are here, before the rest comes. `before`: as many were
    /// here before the last ones.
    async fn judge(&self, before: u64) -> Result<()> {
        let received = self.received().await;
        if before >= HEAD || !(HEAD..self.size).contains(&received) {
            return Ok(());
        }
        let head = self.partial.work(|p| head_of(p.file())).await?;
        if Packing::detect(&head).is_some() {
            return Ok(());
        }
        let judged = self.inner.downloader.rules().judge(&head, Some(self.size));
        judged.map(drop).map_err(|reason| Error::Format {
            location: LOCATION.to_owned(),
            reason,
        })
    }

    /// Makes an image of the complete file.
    pub async fn finish(self) -> Result<Image> {
        let Self {
            inner,
            leadership,
            download,
            partial,
            ..
        } = self;
        partial.read(super::super::partial::Partial::complete).await;
        let arrival = Arrival::New(download, partial, None);
        inner.lead(leadership, Ok(arrival)).await
    }
}
