//! Block jobs: what an emulator does with the files of a disk while its guest runs.
//!
//! Invariant: plain values; paths are those that the disk was described with.
//! Failure: none.

use std::path::PathBuf;

/// A copy of one file of a disk to the next one below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockCommit {
    /// What is copied.
    pub top: PathBuf,
    /// What it is copied to.
    pub base: PathBuf,
    /// Whether the guest writes to `top`: the job then goes on until it is [ended](BlockJobEnd).
    pub is_active: bool,
    /// Limit of its speed.
    pub bytes_per_second: u64,
}

/// A block job in progress, in units of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockJob {
    /// What it has done.
    pub done: u64,
    /// What it has to do, as far as that is known.
    pub total: u64,
}

/// How a block job is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockJobEnd {
    /// The guest writes to what it wrote to before.
    Cancel,
    /// The guest writes to the target of the copy, which has to be [ready](BlockJob::is_ready).
    Pivot,
}

/// A file that an emulator has open for a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    /// Its name.
    pub path: PathBuf,
    /// Whether the emulator only reads it. It has written all that it had for it to the device before.
    pub is_read_only: bool,
}

impl BlockJob {
    /// Whether it has done all that it had to, and libvirt knows that: it then ends by a pivot.
    pub const fn is_ready(self) -> bool {
        self.total > 0 && self.done >= self.total
    }

    /// The same job while libvirt does not know yet that all is done.
    pub(crate) fn unfinished(self) -> Self {
        let total = self.total.max(self.done.saturating_add(1));
        Self { total, ..self }
    }

    /// Percents, less than 100.
    pub fn percent(self) -> u8 {
        let done = u128::from(self.done) * 100;
        let percent = done.checked_div(self.total.into()).unwrap_or_default();
        u8::try_from(percent).unwrap_or(99).min(99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_ready_when_all_is_done() {
        let job = |done, total| BlockJob { done, total };
        assert!(job(7, 7).is_ready() && !job(6, 7).is_ready());
        assert!(!job(0, 0).is_ready(), "its size is not known yet");
        assert!(!job(7, 7).unfinished().is_ready());
        assert_eq!(job(6, 9).unfinished(), job(6, 9));
        let percents = [(0, 0), (1, 2), (7, 7), (u64::MAX, 1), (u64::MAX, u64::MAX)];
        let percents = percents.map(|(done, total)| job(done, total).percent());
        assert_eq!(percents, [0, 50, 99, 99, 99]);
    }
}
