//! The clock of the boot, which cannot be set.
//!
//! Invariant: it begins with the node, never goes back, and goes on while the node sleeps. Two
//! values are comparable only within one boot (see [`crate::boot_id`]).
//! Failure: none; every kernel that we run on has this clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since the node started.
#[must_use]
pub fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Latest deadline, so that it fits a column of a database.
const LATEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

/// A point of time of this boot, within three centuries of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// The point that is so long after the start of the node.
    #[must_use]
    pub fn at(since_start: Duration) -> Self {
        Self(since_start.min(LATEST))
    }

    /// The point that is so far away now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self::at(now().saturating_add(time))
    }

    /// How long after the start of the node it is.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Time left until then; zero when it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.left_at(now())
    }

    /// The same when the node started so long ago.
    #[must_use]
    pub const fn left_at(self, now: Duration) -> Duration {
        self.0.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_has_passed_has_no_time_left() {
        let at = Duration::from_secs;
        let deadline = Deadline::at(at(90));
        assert_eq!(deadline.left_at(at(30)), at(60));
        assert_eq!(deadline.left_at(at(91)), Duration::ZERO);
        assert!(Deadline::after(at(60)).left() > at(59));
        assert_eq!(Deadline::after(Duration::MAX), Deadline::at(LATEST));
    }

    #[test]
    fn it_counts_from_the_start_of_the_node() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            text.split('.').next().unwrap().parse::<u64>().unwrap()
        };
        let before = uptime();
        let now = now().as_secs();
        assert!((before..=uptime()).contains(&now), "{now}");
    }
}
