//! The wall clock in CRI's unit: nanoseconds since 1970.
//!
//! Invariant: nanoseconds since the epoch in an `i64`, as in every CRI timestamp.
//! Failure: none; a clock before 1970 or after 2262 is cut to the ends of the range.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, in nanoseconds since the epoch.
pub fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, nanos)
}

/// A point of time `after` from now, in nanoseconds since the epoch.
#[cfg(test)]
pub fn from_now(after: Duration) -> i64 {
    now().saturating_add(nanos(after))
}

/// Time left until `point`; zero when it has passed.
pub fn until(point: i64) -> Duration {
    Duration::from_nanos(u64::try_from(point.saturating_sub(now())).unwrap_or(0))
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_the_past_have_no_time_left() {
        assert_eq!(until(now() - 1), Duration::ZERO);
        assert_eq!(until(i64::MIN), Duration::ZERO);
        assert!(until(from_now(Duration::from_secs(60))) > Duration::from_secs(59));
        assert_eq!(from_now(Duration::MAX), i64::MAX);
    }
}
