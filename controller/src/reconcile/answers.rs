//! Classifies the responses of the API server to a write.
//!
//! Invariant: these predicates are the only place that knows status codes.
//! Failure: none; an answer that is none of these is an ordinary failure.

use kube::api::Patch;
use serde_json::Value;

use crate::flow::{Outcome, PassError};

/// Whether the API server reported that something exists already, or changed meanwhile.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Whether a JSON patch lost its `test`.
pub(crate) fn is_lost_test(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422 || status.code == 409)
}

/// Whether the API server does not know the object.
pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether the API server does not take the object as it is, and would not at once again.
pub(crate) fn is_refused(error: &kube::Error) -> bool {
    let passes = |code| matches!(code, 401 | 404 | 408 | 409 | 429);
    matches!(error, kube::Error::Api(s) if (400..500).contains(&s.code) && !passes(s.code))
}

/// Whether the namespace takes no new object because it is being deleted.
pub(crate) fn is_ending(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// A JSON patch from its operations.
pub(crate) fn json_patch(operations: Value) -> Outcome<Patch<()>> {
    let patch = serde_json::from_value(operations).map_err(anyhow::Error::new)?;
    Ok(Patch::Json(patch))
}

pub(crate) const fn again() -> PassError {
    PassError::Conflict("the object")
}
