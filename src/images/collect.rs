//! Removes images that nothing uses: those unused for too long, and the least recently used ones
//! when the file system of the store is too full.
//!
//! Invariant: an image goes in the way of a removal by a client, under its digest's lock, and only
//! if it still has no user then: no pin, no container, no pull of its source, no recent use.
//! Failure: the first error ends the round; what was collected until then stays collected.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use super::Inner;
use super::digest::Digest;
use super::error::{Error, Result};

/// Between a pull and the disk that is made of its image there is no pin: an image that was used in
/// this time is not collected.
const GRACE: Duration = Duration::from_secs(5 * 60);

/// When images that nothing uses are collected; by default never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collection {
    /// How full the file system may become.
    pub marks: Option<Marks>,
    /// How long an image may have no user.
    pub max_unused: Option<Duration>,
}

/// Percentages of the file system that are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// From here on, images are collected.
    pub high: u8,
    /// Until so much is in use.
    pub low: u8,
}

/// Knows the images that have users beside the pins of the store.
pub trait Users: std::fmt::Debug + Send + Sync {
    /// The images that containers refer to.
    fn images(&self) -> HashSet<Digest>;
}

/// A file system at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) capacity: u64,
    /// For programs without privileges, as kubelet counts it.
    pub(super) available: u64,
}

/// Why an image is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Unused,
    Space,
}

impl Reason {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::Space => "space",
        }
    }
}

/// An image without users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unused {
    /// First, so that the least recently used image is the first in order.
    used_at: i64,
    digest: Digest,
}

impl Marks {
    /// Bytes to be freed to get below the low mark; 0 below the high mark.
    pub(super) fn excess(self, fs: Measured) -> u64 {
        let share = |percent: u8| {
            let bytes = u128::from(fs.capacity) * u128::from(percent.min(100)) / 100;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let used = fs.capacity.saturating_sub(fs.available);
        if fs.capacity > 0 && used >= share(self.high) {
            used.saturating_sub(share(self.low.min(self.high)))
        } else {
            0
        }
    }
}

impl Inner {
    /// One round at the time `now`.
    pub(super) async fn collect(self: &Arc<Self>, now: i64) -> Result<()> {
        let _one = self.collecting.lock().await;
        if let Some(age) = self.collection.max_unused {
            for image in self.unused(now, age) {
                self.take(image, now, age, Reason::Unused).await?;
            }
        }
        let Some(marks) = self.collection.marks else {
            return Ok(());
        };
        let excess = marks.excess(self.measure().await?);
        let freed = self.free(excess, now).await?;
        let is_short = freed < excess;
        if self.short.swap(is_short, Ordering::Relaxed) != is_short && is_short {
            let missing = excess - freed;
            tracing::warn!(
                missing,
                "image file system above its high mark, and no more unused images"
            );
        }
        Ok(())
    }

    /// Makes sure that so many bytes are free, if the images that nothing uses are enough for it;
    /// returns whether they are. For a pull that does not fit.
    pub(super) async fn make_room(self: &Arc<Self>, bytes: u64, now: i64) -> Result<bool> {
        if self.collection.marks.is_none() || bytes == 0 {
            return Ok(false);
        }
        let _one = self.collecting.lock().await;
        let missing = bytes.saturating_sub(self.measure().await?.available);
        let mut sum = 0_u64;
        for image in self.unused(now, GRACE) {
            sum = sum.saturating_add(self.allocated(image.digest).await?);
        }
        // Without enough of them, the pull would fail and the images would be gone, too.
        Ok(sum >= missing && self.free(missing, now).await? >= missing)
    }

    /// Collects images until so many bytes are free; returns how many it freed.
    pub(super) async fn free(self: &Arc<Self>, bytes: u64, now: i64) -> Result<u64> {
        let mut freed = 0_u64;
        if bytes > 0 {
            for image in self.unused(now, GRACE) {
                if freed >= bytes {
                    break;
                }
                freed += self.take(image, now, GRACE, Reason::Space).await?;
            }
        }
        Ok(freed)
    }

    /// Images without users that were last used at least `age` before `now`, in the order of their
    /// use.
    fn unused(&self, now: i64, age: Duration) -> BTreeSet<Unused> {
        let in_use = self.users.get().map(|users| users.images());
        let in_use = in_use.unwrap_or_default();
        let age = i64::try_from(age.max(GRACE).as_nanos()).unwrap_or(i64::MAX);
        self.catalog.read(|rows| {
            if rows.keeps_all {
                return BTreeSet::new();
            }
            let pinned: HashSet<_> = rows.pins.values().map(|pin| pin.digest).collect();
            let pulled = |digest: &Digest| {
                let mut sources = rows.sources.iter();
                sources.any(|(source, (arrived, _))| {
                    arrived.digest == *digest && self.downloads.progress(source).is_some()
                })
            };
            let entries = rows.entries.iter();
            let unused = entries.filter(|(digest, entry)| {
                !entry.removed
                    && now.saturating_sub(entry.used_at) >= age
                    && !pinned.contains(digest)
                    && !in_use.contains(digest)
                    && !pulled(digest)
            });
            unused
                .map(|(digest, entry)| Unused {
                    used_at: entry.used_at,
                    digest: *digest,
                })
                .collect()
        })
    }

    /// Collects one image, unless it has a user by now; returns the bytes that this frees.
    async fn take(
        self: &Arc<Self>,
        image: Unused,
        now: i64,
        age: Duration,
        reason: Reason,
    ) -> Result<u64> {
        if self.stopping.is_cancelled() {
            return Err(Error::Stopping);
        }
        let digest = image.digest;
        let held = self.locks.lock(&digest).await;
        if !self.unused(now, age).contains(&image) {
            return Ok(0);
        }
        let bytes = self.allocated(digest).await?;
        self.take_out(digest, held).await?;
        self.metrics.collected(reason.as_str(), bytes);
        let unused = Duration::from_nanos(u64::try_from(now - image.used_at).unwrap_or(0));
        tracing::info!(%digest, bytes, reason = reason.as_str(), unused_seconds = unused.as_secs(), "image collected");
        Ok(bytes)
    }

    async fn measure(&self) -> Result<Measured> {
        let dir = self.store.data().to_owned();
        let measured = tokio::task::spawn_blocking(move || {
            let fs = statvfs(&dir)
                .map_err(|e| Error::io("measure the file system of", dir)(e.into()))?;
            let bytes = |blocks: u64| blocks.saturating_mul(fs.fragment_size());
            Ok(Measured {
                capacity: bytes(fs.blocks()),
                available: bytes(fs.blocks_available()),
            })
        });
        measured.await?
    }

    async fn allocated(&self, digest: Digest) -> Result<u64> {
        let store = self.store.clone();
        Ok(tokio::task::spawn_blocking(move || store.allocated(digest)).await?)
    }
}
