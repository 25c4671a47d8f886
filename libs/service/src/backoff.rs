//! Growing delays after failures.
//!
//! Invariant: each wait is twice as long as the one before it, none is longer than the limit, and
//! success starts again at the first.
//! Failure: none.

use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);

/// Counts failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    until: Option<Instant>,
}

impl Default for Backoff {
    /// 250 ms, doubling up to 30 s.
    fn default() -> Self {
        Self::new(FIRST, LONGEST)
    }
}

impl Backoff {
    /// Waits from `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
            until: None,
        }
    }

    /// Something failed; gives the wait until the next attempt.
    pub fn failed(&mut self, now: Instant) -> Duration {
        let factor = 2_u32.saturating_pow(self.failures);
        let wait = self.first.saturating_mul(factor).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + wait);
        wait
    }

    /// An attempt succeeded: the next one need not wait.
    pub const fn reset(&mut self) {
        self.failures = 0;
        self.until = None;
    }

    /// When the next attempt may be made, while that is in the future.
    #[must_use]
    pub fn not_before(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_limit_and_start_again_after_success() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..9).map(|_| backoff.failed(now).as_millis()).collect();
        assert_eq!(
            waits,
            [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]
        );
        assert_eq!(backoff.not_before(now), Some(now + LONGEST));
        assert_eq!(backoff.not_before(now + LONGEST), None);
        backoff.reset();
        assert_eq!(backoff.failed(now), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_failures_wait_no_longer_than_the_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let now = Instant::now();
        let waits: Vec<_> = (0..7).map(|_| backoff.failed(now).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000]);
        for _ in 0..1000 {
            assert_eq!(backoff.failed(now), Duration::from_secs(1));
        }
    }
}
