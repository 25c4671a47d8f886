//! How much downloads may take: those in progress and those that are kept to be continued.
//!
//! Invariant: what downloads in progress are going to take is claimed before the first byte is
//! written; what is left of the limit is for downloads that no pull continues now, of which the
//! oldest go first. A file that a pull has locked is never removed.
//! Failure: [`Full`] when those in progress take all of it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::{NOTE, PART, remove_if_there};

/// A download that was not continued for this long is deleted.
pub(in crate::images) const STALE: Duration = Duration::from_secs(24 * 60 * 60);
/// What `stat` counts in.
const BLOCK: u64 = 512;

/// Downloads in progress take all that downloads may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::images) struct Full {
    pub(in crate::images) limit: u64,
}

/// What all downloads may take; clones share it.
#[derive(Debug, Clone)]
pub(in crate::images) struct Room {
    limit: u64,
    claimed: Arc<Mutex<u64>>,
}

/// What one download takes for as long as it is in progress.
#[derive(Debug)]
pub(in crate::images) struct Claim {
    room: Room,
    bytes: u64,
}

impl Room {
    pub(in crate::images) fn new(limit: u64) -> Self {
        Self {
            limit,
            claimed: Arc::default(),
        }
    }

    pub(in crate::images) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Claims room for a download; [`Claim::at_least`] makes it larger.
    pub(in crate::images) fn claim(&self, bytes: u64) -> Result<Claim, Full> {
        let mut claim = Claim {
            room: self.clone(),
            bytes: 0,
        };
        claim.at_least(bytes)?;
        Ok(claim)
    }

    /// Claims room for `most` bytes, or as many as there are, but not less than `least`.
    pub(in crate::images) fn claim_up_to(&self, least: u64, most: u64) -> Result<Claim, Full> {
        let mut claimed = self.claimed();
        let bytes = most.min(self.limit.saturating_sub(*claimed));
        if bytes < least {
            return Err(Full { limit: self.limit });
        }
        *claimed = claimed.saturating_add(bytes);
        Ok(Claim {
            room: self.clone(),
            bytes,
        })
    }

    /// Removes what is stale of the downloads that no pull continues now, and the oldest of them
    /// beyond what is left of the limit; returns how many went. Blocks.
    pub(in crate::images) fn trim(&self, dir: &Path) -> io::Result<usize> {
        let left = self.limit.saturating_sub(*self.claimed());
        let mut kept = idle(dir)?;
        kept.sort_unstable_by_key(|idle| std::cmp::Reverse(idle.written));
        let mut sum = 0_u64;
        let mut removed = 0;
        for Idle {
            path,
            written,
            bytes,
            _locked,
        } in kept
        {
            sum = sum.saturating_add(bytes);
            let age = SystemTime::now().duration_since(written);
            if sum > left || age.is_ok_and(|age| age > STALE) {
                remove_if_there(&path.with_extension(NOTE))?;
                remove_if_there(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn claimed(&self) -> std::sync::MutexGuard<'_, u64> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Bytes that the file may have.
    pub(in crate::images) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the claim as large as the file has become.
    pub(in crate::images) fn at_least(&mut self, bytes: u64) -> Result<(), Full> {
        let mut claimed = self.room.claimed();
        let more = bytes.saturating_sub(self.bytes);
        let sum = claimed.saturating_add(more);
        if sum > self.room.limit {
            return Err(Full {
                limit: self.room.limit,
            });
        }
        *claimed = sum;
        self.bytes = self.bytes.saturating_add(more);
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.room.claimed() -= self.bytes;
    }
}

/// A download that no pull continues now, as long as it is locked.
struct Idle {
    path: PathBuf,
    written: SystemTime,
    bytes: u64,
    _locked: File,
}

fn idle(dir: &Path) -> io::Result<Vec<Idle>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != PART) {
            continue;
        }
        let file = match File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let is = file.metadata()?;
        // Without a name it was removed, or has become an image.
        let named = std::fs::metadata(&path).is_ok_and(|there| there.ino() == is.ino());
        if named {
            found.push(Idle {
                path,
                written: is.modified()?,
                bytes: is.blocks() * BLOCK,
                _locked: file,
            });
        }
    }
    Ok(found)
}
