//! The idle share of the processors' time.
//!
//! Invariant: the share is of the whole machine, between two moments.
//! Failure: without `/proc/stat` the share is unknown.

use std::fs;
use std::time::{Duration, Instant};

/// A moment from which time is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    at: Instant,
    ticks: Option<Ticks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Since {
    /// Begins to measure.
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        Self {
            at: Instant::now(),
            ticks: parse(&stat),
        }
    }

    /// How long ago that was.
    pub(super) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// The part of the processors' time since then, in percent, in which they were idle or waited
    /// for a disk.
    pub(super) fn idle_percent(&self) -> Option<u64> {
        let then = self.ticks?;
        let now = Self::now().ticks?;
        let all = now.all.checked_sub(then.all).filter(|all| *all > 0)?;
        Some(now.idle.saturating_sub(then.idle) * 100 / all)
    }
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are
/// part of user and nice.
fn parse(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    Some(Ticks {
        idle: numbers.get(3)? + numbers.get(4)?,
        all: numbers.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_guests_count_once() {
        let stat = "cpu  100 10 20 300 40 1 2 3 90 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let expected = Ticks {
            idle: 340,
            all: 476,
        };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("cpu0 1 2 3"), None);
    }
}
