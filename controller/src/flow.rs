//! The result of a step of a pass, and of a pass.
//!
//! The [`Flow`] that a step returns decides whether the next one runs; that of a pass that does not
//! fail decides when the object is checked again. [`crate::runner`] alone turns either into
//! what the queue does.
//!
//! Invariant: success is `Ok`, whatever it leads to; only what went wrong, or has to be repeated
//! because another writer was faster, is [`PassError`].
//! Failure: an ordinary error is retried with growing delays at the priority that the object had.

use std::time::Duration;

/// Longest time until an object is looked at again whose cause no watch shows: the machine types of a
/// node, a webhook, a DataSource. A quota wakes only the few that wait longest when room becomes free.
pub const UNWATCHED: Duration = Duration::from_secs(90);

/// What comes after a step, or after a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// The next step runs. Of a pass: nothing is to be done until something happens.
    Continue,
    /// The pass ends: something was changed, as the text describes, and its event starts the next
    /// pass.
    Done(&'static str),
    /// The pass ends and is repeated after this time.
    RequeueAfter(Duration),
    /// The pass ends: nothing can be done until another object changes. The reason.
    Waiting(String),
}

/// Ends the caller with the flow of a step, unless the next step runs.
macro_rules! proceed {
    ($flow:expr) => {
        match $flow {
            $crate::flow::Flow::Continue => {}
            end => return Ok(end),
        }
    };
}
pub(crate) use proceed;

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// Another writer was faster, or the store is behind: the pass is repeated after the back-off,
    /// which is no failure.
    #[error("{0} changed meanwhile")]
    Conflict(&'static str),
    /// Failed; back-off applies.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

impl From<kube::Error> for PassError {
    fn from(error: kube::Error) -> Self {
        Self::Failed(anyhow::Error::new(error))
    }
}

/// Result of a pass, of a step, or of an effect.
pub type Outcome<T = Flow> = Result<T, PassError>;
