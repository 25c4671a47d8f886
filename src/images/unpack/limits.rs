//! Writes a disk within limits: its size, the room among the downloads, and the space of the file system.
//!
//! Invariant: room and space are claimed before they are used; the first bytes are judged before the rest is written.
//! Failure: [`Error`] by what is wrong; the caller discards what was written.

use std::io::{self, Read};

use tokio_util::sync::CancellationToken;

use super::apart::is_failure;
use super::{CHUNK, fill};
use crate::images::error::{Error, Result};
use crate::images::format::{HEAD, Rules};
use crate::images::partial::{self, Partial, RoomClaim};
use crate::space::{Claim, Full};

/// Limits of a disk, and what it claims meanwhile.
#[derive(Debug)]
pub(in crate::images) struct Limits {
    /// Host and path of the download, for errors.
    pub(in crate::images) location: String,
    /// Largest file.
    pub(in crate::images) max_bytes: u64,
    /// Which disks are accepted.
    pub(in crate::images) rules: Rules,
    /// Room among the downloads.
    pub(in crate::images) room: RoomClaim,
    /// Space on the disk.
    pub(in crate::images) space: Claim,
    /// Set when the daemon stops.
    pub(in crate::images) stopping: CancellationToken,
}

impl Limits {
    /// Writes a disk; `declared` is its size where a header says it.
    pub(super) fn write(
        &mut self,
        from: &mut impl Read,
        declared: Option<u64>,
        disk: &mut Partial,
    ) -> Result<()> {
        self.fits(declared.unwrap_or_default())?;
        let mut judged = false;
        let mut chunk = vec![0; CHUNK];
        loop {
            if self.stopping.is_cancelled() {
                return Err(Error::Stopping);
            }
            let filled = fill(from, &mut chunk).map_err(|e| self.unread(&e))?;
            let bytes = &chunk[..filled];
            if !judged {
                judged = true;
                self.judge(bytes, declared, filled < CHUNK)?;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let size = disk.received() + filled as u64;
            self.fits(size)?;
            self.claim(size.max(declared.unwrap_or_default()), disk)?;
            disk.append_sparse(bytes)
                .map_err(|e| self.unwritten(e, disk))?;
        }
    }

    /// Refuses a disk by its first bytes.
    fn judge(&self, bytes: &[u8], declared: Option<u64>, is_all: bool) -> Result<()> {
        let head = &bytes[..bytes.len().min(usize::try_from(HEAD).unwrap_or(usize::MAX))];
        let length = declared.or(is_all.then_some(bytes.len() as u64));
        let judged = self.rules.judge(head, length);
        judged.map(drop).map_err(|reason| Error::Format {
            location: self.location.clone(),
            reason,
        })
    }

    fn fits(&self, bytes: u64) -> Result<()> {
        if bytes > self.max_bytes {
            Err(self.too_large())
        } else {
            Ok(())
        }
    }

    fn claim(&mut self, bytes: u64, disk: &Partial) -> Result<()> {
        let crowded = |full: partial::Full| Error::Crowded { limit: full.limit };
        self.room.at_least(bytes).map_err(crowded)?;
        match self.space.at_least(bytes) {
            Ok(()) => Ok(()),
            Err(full @ Full::NoSpace { .. }) => Err(Error::NoSpace {
                dir: disk.dir(),
                because: full.because(),
                required: full.required(),
            }),
            Err(Full::Measure(error)) => Err(self.unwritten(error, disk)),
        }
    }

    fn unwritten(&self, error: io::Error, disk: &Partial) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
                dir: disk.dir(),
                because: String::new(),
                required: 0,
            },
            _ => Error::io("write the disk in", disk.dir())(error),
        }
    }

    fn too_large(&self) -> Error {
        Error::TooLarge {
            location: self.location.clone(),
            limit: self.max_bytes,
        }
    }

    /// The file was not unpacked, by what its reader got.
    pub(super) fn unread(&self, error: &io::Error) -> Error {
        if self.stopping.is_cancelled() {
            Error::Stopping
        } else if is_failure(error) {
            Error::decoder(&self.location, &error.to_string())
        } else {
            self.broken(error)
        }
    }

    /// The file cannot be unpacked.
    pub(super) fn broken(&self, error: &impl std::fmt::Display) -> Error {
        self.content(&format!("it cannot be unpacked: {error}"))
    }

    pub(super) fn content(&self, reason: &str) -> Error {
        Error::content(&self.location, reason)
    }
}
