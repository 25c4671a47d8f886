//! The progress of a download.
//!
//! Invariant: `received` counts the bytes in the partial file, those of earlier pulls included, and
//! those that are being written to it.
//! Failure: none; a server that does not send the size of its file gets no percents.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Images;
use super::catalog::Image;
use super::error::Result;
use super::locator::Locator;
use super::registry::Credentials;

const UNKNOWN: u64 = u64::MAX;

/// Time between two looks at how far a download is.
const LOOK: Duration = Duration::from_millis(500);

/// How far a download is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes received.
    pub received: u64,
    /// Bytes of the whole file, if the server sent its size.
    pub total: Option<u64>,
}

impl Progress {
    /// Rounded down; `None` while the size is not known.
    pub fn percent(&self) -> Option<u8> {
        let total = self.total.filter(|total| *total > 0)?;
        let done = u128::from(self.received.min(total)) * 100;
        u8::try_from(done / u128::from(total)).ok()
    }
}

impl Images {
    /// As [`Images::pull`]; `progress` gets percents meanwhile.
    pub async fn pull_reporting(
        &self,
        image: Locator<'_>,
        progress: impl Fn(u8) + Send + Sync,
    ) -> Result<Image> {
        let looked = |at: Progress| at.percent().into_iter().for_each(&progress);
        self.pull_looking(image, None, looked).await
    }

    /// As [`Images::pull_with`]; `looked` gets the progress at each look while there is a download.
    pub(super) async fn pull_looking(
        &self,
        image: Locator<'_>,
        credentials: Option<&Credentials>,
        mut looked: impl FnMut(Progress) + Send,
    ) -> Result<Image> {
        let mut pull = std::pin::pin!(self.pull_with(image, credentials));
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                pulled = &mut pull => return pulled,
                _ = look.tick() => {
                    if let Some(progress) = self.progress(image) {
                        looked(progress);
                    }
                }
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_rounded_down_and_need_a_size() {
        let percent = |received, total| Progress { received, total }.percent();
        assert_eq!(percent(0, Some(3)), Some(0));
        assert_eq!(percent(2, Some(3)), Some(66));
        assert_eq!(percent(4, Some(3)), Some(100));
        assert_eq!(percent(u64::MAX - 1, Some(u64::MAX)), Some(99));
        assert_eq!((percent(1, Some(0)), percent(1, None)), (None, None));
    }
}
