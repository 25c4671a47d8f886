//! Names and pins, which keep an image file in the store.
//!
//! Invariant: rows change before the catalog, the catalog before the file, all under the digest's
//! lock and in a task of their own, so that a caller that disconnects leaves nothing half done.
//! Failure: after a crash in between, the start finds a file that no row wants, and removes it.

use std::collections::HashSet;
use std::sync::Arc;

use super::catalog::{Image, Pin, Pinned, Rows};
use super::digest::Digest;
use super::error::{Error, Result};
use super::{Images, Inner, rows};
use crate::clock;
use crate::metadata;

impl Images {
    /// Keeps the image that `reference` means for `owner` until [`Images::unpin`]. An owner has one
    /// pin: a repetition yields the image that is pinned already, whatever `reference` means by
    /// then.
    pub async fn pin(&self, owner: &str, reference: &str) -> Result<Image> {
        self.inner.pin(owner, reference, None).await
    }

    /// As [`Images::pin`], for an owner that calls the image `text`; that is recorded, also of a
    /// pin that is there.
    pub async fn pin_as(&self, owner: &str, reference: &str, text: &str) -> Result<Image> {
        self.inner.pin(owner, reference, Some(text)).await
    }

    /// Makes the image that is pinned for `from` that of `owner`, which calls it `text`, in the place of
    /// the one that was pinned for it: `owner` has the one or the other, whatever fails.
    pub async fn move_pin(&self, from: &str, owner: &str, text: &str) -> Result<()> {
        self.inner.move_pin(from, owner, text).await
    }

    /// The image pinned for `owner`, unless its file was lost behind our back.
    pub fn pinned(&self, owner: &str) -> Option<Pinned> {
        self.inner.catalog.pinned(owner)
    }

    /// The images that are pinned: their files stay until the disks that need them go.
    pub fn all_pinned(&self) -> HashSet<Digest> {
        let pins = |rows: &Rows| rows.pins.values().map(|pin| pin.digest).collect();
        self.inner.catalog.read(pins)
    }

    /// All owners of pins, for reconciliation with the sandboxes that exist.
    pub fn owners(&self) -> Vec<String> {
        self.inner
            .catalog
            .read(|rows| rows.pins.keys().cloned().collect())
    }

    /// Ends the pin of `owner`, and removes the image's file if nothing needs it any more. Without
    /// a pin there is nothing to do.
    pub async fn unpin(&self, owner: &str) -> Result<()> {
        self.inner.unpin(owner).await
    }
}

impl Inner {
    pub(super) async fn remove(self: &Arc<Self>, reference: &str) -> Result<()> {
        loop {
            let Some(digest) = self.catalog.resolve(reference) else {
                return Ok(());
            };
            let held = self.locks.lock(&digest).await;
            if self.catalog.resolve(reference) != Some(digest) {
                continue;
            }
            let pinned = self.take_out(digest, held).await?;
            tracing::info!(%digest, pinned, "image removed");
            return Ok(());
        }
    }

    /// Takes an image from the lists, and its file from the disk unless it is pinned; returns
    /// whether it is. `held` is the digest's lock.
    pub(super) async fn take_out(
        self: &Arc<Self>,
        digest: Digest,
        held: impl Send + 'static,
    ) -> Result<bool> {
        let inner = Arc::clone(self);
        let removal = async move {
            rows::removed(&inner.db, digest).await?;
            faultpoint::point("images.remove.unrecorded");
            let pinned = inner.catalog.change(|rows| {
                rows.remove(digest);
                rows.is_pinned(digest)
            });
            if !pinned {
                inner.unlink(digest).await?;
                faultpoint::point("images.remove.unlinked");
            }
            drop(held);
            Ok(pinned)
        };
        self.detached(removal).await
    }

    /// Pins an image for `owner`, which calls it `text`, unless it has a pin.
    pub(super) async fn pin(
        self: &Arc<Self>,
        owner: &str,
        reference: &str,
        text: Option<&str>,
    ) -> Result<Image> {
        loop {
            if let Some(digest) = self.pin_of(owner) {
                let image = self.catalog.image(digest).ok_or_else(|| Error::Vanished {
                    owner: owner.to_owned(),
                    digest,
                })?;
                if let Some(text) = text {
                    self.rename(owner, digest, text).await?;
                }
                return Ok(image);
            }
            let aside = self.catalog.read(|rows| rows.pins_aside.refuse(owner));
            aside.map_err(metadata::Error::from)?;
            let Some(digest) = self.catalog.resolve(reference) else {
                return Err(Error::Absent {
                    reference: reference.chars().take(256).collect(),
                });
            };
            let held = self.locks.lock(&digest).await;
            if self.catalog.resolve(reference) != Some(digest) {
                continue;
            }
            let inner = Arc::clone(self);
            let owner = owner.to_owned();
            let text = text.map(str::to_owned);
            let pinning = async move {
                if inner.is_sound(digest).await? {
                    let now = clock::now();
                    let pin = Pin { digest, text };
                    let pinned = rows::pinned(&inner.db, owner.clone(), pin, now).await?;
                    faultpoint::point("images.pin.recorded");
                    inner.catalog.change(|rows| {
                        rows.used(digest, now);
                        rows.pins.insert(owner, pinned)
                    });
                }
                drop(held);
                Ok(())
            };
            self.detached(pinning).await?;
        }
    }

    /// Moves the pin of `from` to `owner`, and ends the pin that `owner` has.
    pub(super) async fn move_pin(
        self: &Arc<Self>,
        from: &str,
        owner: &str,
        text: &str,
    ) -> Result<()> {
        loop {
            let Some(digest) = self.pin_of(from) else {
                return Err(Error::Absent {
                    reference: text.chars().take(256).collect(),
                });
            };
            let old = self.pin_of(owner);
            // The new image needs no lock: it is pinned all the time.
            let held = self.locks.lock(&old.unwrap_or(digest)).await;
            if self.pin_of(from) != Some(digest) || self.pin_of(owner) != old {
                continue;
            }
            let inner = Arc::clone(self);
            let from = from.to_owned();
            let owner = owner.to_owned();
            let pin = Pin {
                digest,
                text: Some(text.to_owned()),
            };
            let moving = async move {
                let now = clock::now();
                let change = rows::Move {
                    from: from.clone(),
                    owner: owner.clone(),
                    pin: pin.clone(),
                    old,
                };
                rows::moved(&inner.db, change, now).await?;
                faultpoint::point("images.move.recorded");
                let unneeded = inner.catalog.change(|rows| {
                    let unneeded = old.filter(|old| {
                        rows.used(*old, now);
                        rows.unpin(&owner, *old)
                    });
                    rows.pins.remove(&from);
                    rows.pins.insert(owner, pin);
                    unneeded
                });
                if let Some(old) = unneeded {
                    inner.unlink(old).await?;
                }
                drop(held);
                Ok(())
            };
            return self.detached(moving).await;
        }
    }

    /// Records how the owner of a pin names its image.
    async fn rename(self: &Arc<Self>, owner: &str, digest: Digest, text: &str) -> Result<()> {
        let is_named = |pin: &Pin| pin.text.as_deref() == Some(text);
        if self
            .catalog
            .read(|rows| rows.pins.get(owner).is_some_and(is_named))
        {
            return Ok(());
        }
        let held = self.locks.lock(&digest).await;
        let inner = Arc::clone(self);
        let owner = owner.to_owned();
        let text = text.to_owned();
        let renaming = async move {
            if inner.pin_of(&owner) == Some(digest) {
                rows::renamed(&inner.db, owner.clone(), text.clone()).await?;
                inner.catalog.change(|rows| {
                    if let Some(pin) = rows.pins.get_mut(&owner) {
                        pin.text = Some(text);
                    }
                });
            }
            drop(held);
            Ok(())
        };
        self.detached(renaming).await
    }

    pub(super) async fn unpin(self: &Arc<Self>, owner: &str) -> Result<()> {
        let Some(digest) = self.pin_of(owner) else {
            return Ok(());
        };
        let held = self.locks.lock(&digest).await;
        let inner = Arc::clone(self);
        let owner = owner.to_owned();
        let unpinning = async move {
            if inner.pin_of(&owner) == Some(digest) {
                let now = clock::now();
                rows::unpinned(&inner.db, owner.clone(), digest, now).await?;
                faultpoint::point("images.unpin.unrecorded");
                let unneeded = inner.catalog.change(|rows| {
                    rows.used(digest, now);
                    rows.unpin(&owner, digest)
                });
                if unneeded {
                    inner.unlink(digest).await?;
                    faultpoint::point("images.unpin.unlinked");
                }
            }
            drop(held);
            Ok(())
        };
        self.detached(unpinning).await
    }

    /// Whether an image and its file are there. An image whose file was lost behind our back is
    /// forgotten, so that it can be pulled again. The caller holds the digest's lock.
    pub(super) async fn is_sound(&self, digest: Digest) -> Result<bool> {
        let entry = self
            .catalog
            .read(|rows| rows.entries.get(&digest).map(|e| e.facts.size));
        let Some(size) = entry else {
            return Ok(false);
        };
        let store = self.store.clone();
        let there = tokio::task::spawn_blocking(move || store.holds(digest, size)).await?;
        if !there {
            tracing::warn!(%digest, "image file missing");
            rows::lost(&self.db, vec![digest]).await?;
            self.catalog.change(|rows| rows.forget(digest));
        }
        Ok(there)
    }

    fn pin_of(&self, owner: &str) -> Option<Digest> {
        self.catalog
            .read(|rows| rows.pins.get(owner).map(|pin| pin.digest))
    }

    async fn unlink(&self, digest: Digest) -> Result<()> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.remove(digest)).await?
    }
}
