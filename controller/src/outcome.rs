//! How a pass over one object ends, and what the queue makes of it.
//!
//! Invariant: this file is the only place where an error becomes a delay, a retry or silence.
//! Failure: an ordinary error is retried with growing delays at the priority it had.

use std::time::Duration;

/// What a pass that went well asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Look again after this time; `None`: only when something happens.
    pub requeue_after: Option<Duration>,
}

impl Done {
    /// Nothing more to do until something happens.
    pub const QUIET: Self = Self {
        requeue_after: None,
    };

    /// Look again after `delay`.
    #[must_use]
    pub const fn again(delay: Duration) -> Self {
        Self {
            requeue_after: Some(delay),
        }
    }
}

/// Why a pass stopped early.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Run again: at once with back-off when `after` is zero, else after it. Not logged as a failure.
    #[error("to be run again: {reason}")]
    Requeue {
        /// Zero: rate limited.
        after: Duration,
        /// What is waited for.
        reason: String,
    },
    /// Something was changed, or nothing can be done; an event will wake the object.
    #[error("{reason}")]
    NoRequeue {
        /// Something was changed and its event calls back: a plain success.
        quiet: bool,
        /// What was done, or what is waited for.
        reason: String,
    },
    /// A create task owns the machine.
    #[error("the machine is being created")]
    InProgress,
    /// No create slot is free.
    #[error("too many machines are being created")]
    TooManyCreates,
    /// The image cache is not ready.
    #[error("image cache {name} is not ready")]
    CacheNotReady {
        /// The cache object.
        name: String,
        /// `node,store,format`, once a location was chosen.
        location: Option<String>,
    },
    /// Failed; back-off applies.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

impl Stop {
    /// Changed something; its event calls back.
    pub fn quiet(reason: impl Into<String>) -> Self {
        Self::NoRequeue {
            quiet: true,
            reason: reason.into(),
        }
    }

    /// Nothing can be done until something else changes.
    pub fn wait(reason: impl Into<String>) -> Self {
        Self::NoRequeue {
            quiet: false,
            reason: reason.into(),
        }
    }
}

impl From<kube::Error> for Stop {
    fn from(error: kube::Error) -> Self {
        Self::Failed(anyhow::Error::new(error))
    }
}

/// Result of a pass or a step of it.
pub type Outcome<T = Done> = Result<T, Stop>;
