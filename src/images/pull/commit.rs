//! Makes an image of a complete download.
//!
//! Invariant: checked, unpacked and converted where that is needed, judged, moved into the store and
//! recorded, in this order; what was unpacked before is used only after the check. A crash in between
//! leaves a download that the next pull takes up, or a file that the next start removes.
//! Failure: a download that is not what it is to be is discarded; one that only found no space to
//! be unpacked to stays.

use std::sync::Arc;

use super::super::Inner;
use super::super::access::Identity;
use super::super::catalog::{Entry, Facts, Image, names_of};
use super::super::checksum::{Checksum, Sha512};
use super::super::digest::Digest;
use super::super::error::{Error, Result};
use super::super::format::{Accepted, Disk, head_of};
use super::super::partial::{Handle, Validators};
use super::super::reference::Name;
use super::super::rows::{self, Arrival};
use super::super::share::Arrived;
use super::super::unpack::Shape;
use super::extract::{Early, Found};
use crate::clock;

/// A complete download, and what it is to become.
#[derive(Debug, Clone)]
pub(super) struct Download {
    pub(super) name: Name,
    /// Stands for its source in the database and in file names.
    pub(super) key: String,
    /// By which credentials it came, where there is a server that knows some.
    pub(super) identity: Option<Identity>,
    /// Host and path, for messages.
    pub(super) location: String,
    pub(super) shape: Shape,
    /// What it must hash to.
    pub(super) expected: Option<Checksum>,
    /// The digest by which the name means it, where that is not its own.
    pub(super) named: Option<Digest>,
    /// The user that the image's configuration names.
    pub(super) user: String,
    /// What the server called it.
    pub(super) validators: Validators,
}

/// A disk in a file of its own, with its digest.
#[derive(Debug, Clone)]
pub(super) struct Unpacked {
    pub(super) file: Handle,
    pub(super) digest: Digest,
}

impl Inner {
    /// Checks a complete download, moves its disk into the store and records it.
    pub(super) async fn commit(
        self: &Arc<Self>,
        download: &Download,
        partial: &Handle,
        early: Option<Early>,
    ) -> Result<(Image, Arrived)> {
        let head = partial.work(|p| head_of(p.file())).await?;
        let is_packed = download.shape.is_packed(&head);
        // Only the disk in a packed file becomes an image, and has to be on the disk.
        let content = partial.work(move |p| {
            if is_packed {
                Ok(p.digest())
            } else {
                p.finish()
            }
        });
        let content = match content.await {
            Ok(digest) => digest,
            Err(error) => {
                partial.discard().await?;
                return Err(error);
            }
        };
        faultpoint::point("images.pull.downloaded");
        let actual = match download.expected {
            Some(Checksum::Sha512(_)) => {
                let hashed = partial.work(|p| Sha512::of_file(p.file())).await?;
                Checksum::from(hashed)
            }
            _ => Checksum::from(content),
        };
        if let Some(expected) = download.expected.filter(|expected| *expected != actual) {
            if let Some(early) = early {
                early.discard().await;
            }
            partial.discard().await?;
            return Err(Error::digest(download.location.clone(), expected, actual));
        }
        let made = if is_packed {
            self.unpack(download, partial, early).await
        } else {
            self.whole(download, partial, content).await
        };
        let (unpacked, facts) = match made {
            Ok(made) => made,
            Err(error) => {
                if is_final(&error) {
                    partial.discard().await?;
                }
                return Err(error);
            }
        };
        let digest = unpacked.digest;
        let held = self.locks.lock(&digest).await;
        let store = self.store.clone();
        let target = self.catalog.path(digest);
        let place = unpacked.file.work(move |p| {
            if store.holds(digest, facts.size) {
                // Who gave it its name may have ended before that was on the disk.
                if let Some(directory) = target.parent() {
                    service::files::sync_directory(directory)?;
                }
                p.discard()
            } else {
                p.place(&target)
            }
        });
        place.await?;
        faultpoint::point("images.pull.renamed");
        // Before the record: nothing would look for it afterwards.
        if digest != content {
            partial.discard().await?;
        }

        let names = names_of(&download.name, download.named.unwrap_or(content));
        let arrived = Arrived { digest, content };
        let arrival = Arrival {
            arrived,
            facts,
            source: download.key.clone(),
            identity: download.identity,
            validators: download.validators.clone(),
            user: download.user.clone(),
            names: names.clone(),
            at: clock::now(),
        };
        let at = arrival.at;
        rows::arrived(&self.db, arrival).await?;
        faultpoint::point("images.pull.recorded");
        self.catalog.change(|rows| {
            rows.kept.remove(&digest);
            let entry = rows.entries.entry(digest);
            let entry = entry.or_insert_with(|| Entry::new(facts));
            entry.user.clone_from(&download.user);
            (entry.pulled_at, entry.used_at) = (at, at);
            rows.name(digest, &names);
            rows.admit(digest, download.identity);
            let sourced = (arrived, download.validators.clone());
            rows.sources.insert(download.key.clone(), sourced);
        });
        let image = self.catalog.image(digest);
        drop(held);
        let received = partial.read(|p| p.received()).await;
        self.metrics.received(received);
        let name = &download.name;
        let location = &download.location;
        tracing::info!(%digest, %name, location, size = facts.size, "image pulled");
        let image = image.ok_or_else(|| Error::Absent {
            reference: digest.to_string(),
        })?;
        Ok((image, arrived))
    }

    /// A download that is the disk itself.
    async fn whole(
        &self,
        download: &Download,
        partial: &Handle,
        digest: Digest,
    ) -> Result<(Unpacked, Facts)> {
        let file = partial.clone();
        self.usable(download, Unpacked { file, digest }).await
    }

    /// The disk in a form that machines use: what is not in one is converted.
    async fn usable(&self, download: &Download, unpacked: Unpacked) -> Result<(Unpacked, Facts)> {
        match self.judge(download, &unpacked.file).await? {
            Accepted::Disk(disk) => {
                let facts = facts_of(&unpacked.file, disk).await;
                Ok((unpacked, facts))
            }
            Accepted::Convertible { from, virtual_size } => {
                let source = &unpacked.file;
                self.convert(download, source, from, virtual_size).await
            }
        }
    }

    /// The disk in a packed download, whose digest was checked.
    async fn unpack(
        &self,
        download: &Download,
        partial: &Handle,
        early: Option<Early>,
    ) -> Result<(Unpacked, Facts)> {
        let (disk, found) = self.extracted(download, partial, early).await?;
        let made = match self.finished(download, &disk, found).await {
            Ok(unpacked) => self.usable(download, unpacked.clone()).await.map(|made| {
                let is_kept = made.0.digest == unpacked.digest;
                (made, is_kept)
            }),
            Err(error) => Err(error),
        };
        if !matches!(made, Ok((_, true))) {
            disk.discard().await?;
        }
        made.map(|(made, _)| made)
    }

    /// What was taken out of a packed download, as a complete file.
    async fn finished(&self, download: &Download, disk: &Handle, found: Found) -> Result<Unpacked> {
        if found == Found::Nothing {
            return Err(Error::Content {
                location: download.location.clone(),
                reason: NO_DISK.to_owned(),
            });
        }
        let digest = disk.work(|p| p.finish()).await?;
        faultpoint::point("images.pull.unpacked");
        let file = disk.clone();
        Ok(Unpacked { file, digest })
    }

    /// Finds out what kind of disk a file is.
    pub(super) async fn judge(&self, download: &Download, file: &Handle) -> Result<Accepted> {
        let rules = self.downloader.rules();
        let judged = file.work(move |p| rules.inspect(p.file())).await?;
        judged.map_err(|reason| Error::Format {
            location: download.location.clone(),
            reason,
        })
    }
}

/// What is recorded of a disk.
pub(super) async fn facts_of(file: &Handle, disk: Disk) -> Facts {
    Facts {
        size: file.read(|p| p.received()).await,
        virtual_size: disk.virtual_size,
        format: disk.format,
    }
}

/// Why a layer is of no use.
pub(in crate::images) const NO_DISK: &str = "it has no file in a directory disk: a container image is no \
                                  container disk; see docs/pods.md";

/// Whether the same bytes would fail again.
const fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Content { .. } | Error::Format { .. } | Error::TooLarge { .. } | Error::Io { .. }
    )
}
