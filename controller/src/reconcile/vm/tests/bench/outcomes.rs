//! What a pass has come to, for assertions.
//!
//! Invariant: every outcome is one of these.
//! Failure: a panic with the outcome.

use crate::flow::{Flow, Outcome, PassError};

pub(in crate::reconcile::vm::tests) const fn is_quiet(result: &Outcome) -> bool {
    matches!(result, Ok(Flow::Continue | Flow::Done(_)))
}

pub(in crate::reconcile::vm::tests) const fn is_wait(result: &Outcome) -> bool {
    matches!(result, Ok(Flow::Waiting(_)))
}

pub(in crate::reconcile::vm::tests) const fn is_conflict(result: &Outcome) -> bool {
    matches!(result, Err(PassError::Conflict(_)))
}

/// The text of an ordinary failure.
pub(in crate::reconcile::vm::tests) fn failure(result: &Outcome) -> String {
    match result {
        Err(PassError::Failed(error)) => format!("{error:#}"),
        other => panic!("no failure: {other:?}"),
    }
}

pub(in crate::reconcile::vm::tests) fn seconds(result: &Outcome) -> Option<u64> {
    match result {
        Ok(Flow::RequeueAfter(after)) => Some(after.as_secs()),
        Ok(Flow::Continue) => None,
        other => panic!("no delay: {other:?}"),
    }
}
