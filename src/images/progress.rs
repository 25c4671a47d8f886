//! The progress of a download.
//!
//! Invariant: `received` counts the bytes in the partial file, those of earlier pulls included.
//! Failure: none.

use std::sync::atomic::{AtomicU64, Ordering};

const UNKNOWN: u64 = u64::MAX;

/// How far a download is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes on disk.
    pub received: u64,
    /// Bytes of the whole file, if the server sent its size.
    pub total: Option<u64>,
}

/// Written by the download, read by any caller.
#[derive(Debug)]
pub(super) struct Meter {
    received: AtomicU64,
    total: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            received: AtomicU64::new(0),
            total: AtomicU64::new(UNKNOWN),
        }
    }
}

impl Meter {
    pub(super) fn set(&self, received: u64, total: Option<u64>) {
        self.received.store(received, Ordering::Relaxed);
        self.total
            .store(total.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Progress {
        let total = self.total.load(Ordering::Relaxed);
        Progress {
            received: self.received.load(Ordering::Relaxed),
            total: (total != UNKNOWN).then_some(total),
        }
    }
}
