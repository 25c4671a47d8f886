//! One [`Event::Reset`](crate::Event::Reset) for one reset.
//!
//! SeaBIOS restores its image after a reset and then resets the machine again, twice with QEMU 7.2,
//! 40 to 150 ms after the first (measured with software emulation). Without this a reboot that is
//! requested right after a reset would seem to have happened.
//!
//! Invariant: a reset counts when no other one of its domain came within [`SETTLES`] before it.
//! Failure: a guest that boots and reboots within [`SETTLES`] is not seen to do so; who waits for
//! it asks again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// How long after a reset another one belongs to it.
const SETTLES: Duration = Duration::from_secs(2);

/// The resets of the last moments.
#[derive(Debug, Default)]
pub(super) struct Resets {
    last: HashMap<Uuid, Instant>,
}

impl Resets {
    /// Records a reset; true unless it belongs to the one before.
    pub(super) fn counts(&mut self, domain: Uuid, now: Instant) -> bool {
        self.last
            .retain(|_, at| now.saturating_duration_since(*at) < SETTLES);
        self.last.insert(domain, now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    #[test]
    fn resets_of_the_firmware_belong_to_the_one_before() {
        let mut resets = Resets::default();
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        assert!(resets.counts(ONE, at(0)));
        assert!(!resets.counts(ONE, at(86)));
        assert!(resets.counts(OTHER, at(87)), "another machine");
        assert!(!resets.counts(ONE, at(1900)));
        assert!(!resets.counts(ONE, at(3899)), "1.999 s after the last");
        assert!(resets.counts(ONE, at(5899)));
        assert!(resets.counts(OTHER, at(10_000)));
        assert_eq!(resets.last.len(), 1, "old ones are forgotten");
    }
}
