//! The verdict of a handler about a key, and its effect on the queue.
//!
//! Invariant: this file is the only place where an outcome becomes a push.
//! Failure: none.

use std::time::Duration;

use crate::{Options, Tally};

/// How a pass over a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well; nothing to do until something happens.
    Ok,
    /// Well; look again after this time. Zero is the same as `Ok`.
    After(Duration),
    /// To be run again with back-off, although nothing failed.
    Requeue,
    /// Failed; back-off applies.
    Error,
    /// The same, with a back-off of at most this: no event shows when the cause is gone.
    ErrorWithin(Duration),
    /// Failed in a way that only a change of the object can cure: not queued again, back-off kept.
    Terminal,
}

/// How a pass over a key ended, and the priority that the key deserves by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// Replaces the priority that the key was dispatched with, should it be queued again.
    pub priority: Option<i64>,
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            priority: None,
        }
    }
}

/// What the queue does with a key that returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// The key's back-off starts again.
    pub(crate) forget: bool,
    /// The key is queued again.
    pub(crate) push: Option<Options>,
}

impl Verdict {
    /// The same, with a recomputed priority.
    #[must_use]
    pub const fn with_priority(mut self, priority: i64) -> Self {
        self.priority = Some(priority);
        self
    }

    pub(crate) fn settle(self, dispatched_at: i64) -> Settlement {
        let again = Options::at(self.priority.unwrap_or(dispatched_at));
        let (forget, push) = match self.outcome {
            Outcome::Ok => (true, None),
            Outcome::After(Duration::ZERO) => (true, None),
            Outcome::After(delay) => (true, Some(again.after(delay))),
            Outcome::Requeue | Outcome::Error => (false, Some(again.rate_limited())),
            Outcome::ErrorWithin(most) => (false, Some(again.rate_limited().after(most))),
            Outcome::Terminal => (false, None),
        };
        Settlement { forget, push }
    }

    pub(crate) fn tally(self) -> Tally {
        match self.outcome {
            Outcome::Ok | Outcome::After(Duration::ZERO) => Tally::Success,
            Outcome::After(_) => Tally::RequeueAfter,
            Outcome::Requeue => Tally::Requeue,
            Outcome::Error | Outcome::ErrorWithin(_) => Tally::Error,
            Outcome::Terminal => Tally::Terminal,
        }
    }
}
