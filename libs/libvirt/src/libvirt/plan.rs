//! What a call to libvirt is about, where it runs, and how long it may take.
//!
//! Invariant: time spent on the wait for a turn is never time of the call itself, except where the
//! request has one deadline for both.
//! Failure: none.

use std::time::{Duration, Instant};

use super::lane::Lane;
use super::turns::{Key, Turn};
use crate::error::Context;

/// How a call is made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) context: Context,
    pub(super) lane: Lane,
    pub(super) time: Time,
    pub(super) access: Access,
}

/// What a call excludes.
#[derive(Debug)]
pub(super) enum Access {
    /// Nothing.
    Shared,
    /// Others with the same key.
    Alone(Key),
    /// The same, and the caller has the turn already.
    Held(Turn),
}

/// Time for a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Time {
    /// The call begins with its permit; the wait for turn and permit has a limit of its own.
    Apart {
        /// Longest wait.
        wait: Duration,
        /// Longest call.
        call: Duration,
    },
    /// The request ends then, wherever the call is.
    Until(Instant),
}

impl Time {
    /// How long the call may wait for its turn.
    pub(super) fn wait(self) -> Duration {
        match self {
            Self::Apart { wait, .. } => wait,
            Self::Until(end) => end.saturating_duration_since(Instant::now()),
        }
    }

    /// How long the call may take, now that it has its turn.
    pub(super) fn call(self) -> Duration {
        match self {
            Self::Apart { call, .. } => call,
            Self::Until(end) => end.saturating_duration_since(Instant::now()),
        }
    }
}
