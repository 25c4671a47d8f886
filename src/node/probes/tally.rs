//! What the attempts of a probe come to: kubelet's default thresholds.
//!
//! ```text
//! (none) ──failure──► failed ◄──3 failures in a row── connected
//!    └────success────► connected ◄──────success────── failed
//! ```
//!
//! Invariant: pure; one success is enough, and one failure is not for a machine that was ready.
//! Failure: none.

/// Failures in a row after which a machine that was ready is not.
const FAILURES: u32 = 3;

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) enum Outcome {
    /// The connection was accepted.
    Connected,
    /// It was not.
    Refused,
    /// There was no answer in time.
    TimedOut,
    /// The machine has no address on `eth0`.
    NoAddress,
    /// The node does not connect to this address.
    NotAllowed,
}

/// The result that counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    outcome: Option<Outcome>,
    /// Failures since the last success.
    failures: u32,
}

impl Tally {
    /// The result that counts; none before the first attempt has ended.
    pub(super) const fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Takes an attempt in; true if another result counts now.
    pub(super) fn take(&mut self, attempt: Outcome) -> bool {
        self.failures = if attempt == Outcome::Connected {
            0
        } else {
            self.failures.saturating_add(1)
        };
        let is_ready = self.outcome == Some(Outcome::Connected);
        if is_ready && (1..FAILURES).contains(&self.failures) {
            return false;
        }
        self.outcome.replace(attempt) != Some(attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_was_ready_is_not_after_three_failures_in_a_row() {
        use Outcome::{Connected, Refused, TimedOut};
        let mut tally = Tally::default();
        assert_eq!(tally.outcome(), None);
        for (attempt, is_change, counts) in [
            (Refused, true, Refused),
            (Refused, false, Refused),
            (TimedOut, true, TimedOut),
            (Connected, true, Connected),
            (Refused, false, Connected),
            (TimedOut, false, Connected),
            (Connected, false, Connected),
            (Refused, false, Connected),
            (Refused, false, Connected),
            (TimedOut, true, TimedOut),
            (Connected, true, Connected),
        ] {
            assert_eq!(tally.take(attempt), is_change, "{attempt:?}: {tally:?}");
            assert_eq!(tally.outcome(), Some(counts), "{attempt:?}");
        }
    }
}
