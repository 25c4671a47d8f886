//! The delay of a key that failed.
//!
//! Invariant: a key's delay doubles with each failure up to the maximum; keys do not influence each
//! other.
//! Failure: none; beyond the maximum the count of failures has no effect.

use std::time::Duration;

/// Exponential back-off per key. The number of failures is the queue's, one per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limiter {
    /// Delay after the first failure.
    pub base: Duration,
    /// Longest delay.
    pub max: Duration,
}

impl Default for Limiter {
    /// 5 ms, doubling up to 1000 s.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(5),
            max: Duration::from_secs(1000),
        }
    }
}

impl Limiter {
    /// The delay of a key that failed `failures` times before this one.
    #[must_use]
    pub fn delay(self, failures: u8) -> Duration {
        let factor = 1_u32.checked_shl(u32::from(failures)).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let limiter = Limiter::default();
        assert_eq!(limiter.delay(0), Duration::from_millis(5));
        assert_eq!(limiter.delay(1), Duration::from_millis(10));
        assert_eq!(limiter.delay(17), Duration::from_millis(655_360));
        for failures in 18..=u8::MAX {
            assert_eq!(limiter.delay(failures), Duration::from_secs(1000));
        }
    }
}
