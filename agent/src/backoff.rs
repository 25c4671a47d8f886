//! Growing waits after failures.
//!
//! Invariant: the first wait is short, each next one twice as long, none longer than the limit.
//! Failure: none.

use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);

/// Counts failures in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Something failed; gives the wait until the next attempt.
    pub(crate) fn failed(&mut self, now: Instant) -> Duration {
        let wait = FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + wait);
        wait
    }

    /// It went well.
    pub(crate) const fn reset(&mut self) {
        self.failures = 0;
        self.until = None;
    }

    /// When the next attempt may be made, while that is in the future.
    pub(crate) fn not_before(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_limit_and_start_anew_after_success() {
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
}
