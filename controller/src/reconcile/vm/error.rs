//! The errors of a pass, by step.
//!
//! Invariant: each variant has the reason under which the condition `Failure` shows it.
//! Failure: none.

use std::error::Error as StdError;

use crds::TaskKind;
use crds::vm::PrintableStatus;
use service::telemetry::one_line;

use crate::flow::PassError;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("create pod {name}")]
    CreatePod {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("let the scheduler place pod {name}")]
    PlacePod {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("resize pod {name}")]
    ResizePod {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("pod {name} belongs to another owner: {why}")]
    ForeignPod { name: String, why: String },
    #[error("the machine has more than one live pod: {names}")]
    TwoPods { names: String },
    #[error("delete pod {name}")]
    DeletePod {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("write task {name}")]
    WriteTask {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("{kind:?} on node {node}: {message}")]
    Task {
        kind: TaskKind,
        node: String,
        message: String,
    },
    #[error("write the machine's {part}")]
    Write {
        part: &'static str,
        #[source]
        source: kube::Error,
    },
    #[error("failed to write snapshot {name}")]
    WriteSnapshot {
        name: String,
        #[source]
        source: kube::Error,
    },
    /// The machine goes on as it is.
    #[error("failed to revert to snapshot {name}: {why}")]
    Revert { name: String, why: String },
    #[error("read {what}")]
    Read {
        what: String,
        #[source]
        source: kube::Error,
    },
    #[error("{0}")]
    NotReady(String),
    /// As [`Self::NotReady`], and no watch shows when that is over.
    #[error("{0}")]
    Unwatched(String),
    #[error("minMachineType: {0}")]
    MachineType(String),
    #[error("firmware: {0}")]
    Firmware(String),
    #[error("not stopped for its restart, since it could not start again")]
    NotStopped {
        #[source]
        source: anyhow::Error,
    },
    #[error("write claim {name}")]
    RootClaim {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("failed to request VolumeSnapshot {name}")]
    VolumeSnapshot {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("prepare data volume {name}")]
    DataVolume {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("volumes are not attached: {volumes}")]
    Unattached { volumes: String },
    #[error("{field}: {message}")]
    Invalid {
        field: &'static str,
        message: String,
    },
    /// Each with its own causes.
    #[error("{}", texts(.0))]
    Several(Vec<anyhow::Error>),
    #[error("the root disk is being made; its deletion waits")]
    StillCreating,
    #[error("the node has no disk for this machine any more; it is not made again")]
    NoNode,
}

impl From<Error> for PassError {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Error {
    /// Reason of the condition `Failure`.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::CreatePod { .. }
            | Self::ForeignPod { .. }
            | Self::NotReady(_)
            | Self::Unwatched(_)
            | Self::MachineType(_)
            | Self::Firmware(_)
            | Self::NotStopped { .. }
            | Self::DataVolume { .. }
            | Self::RootClaim { .. }
            | Self::Unattached { .. } => "FailedCreate",
            Self::Several(errors) => errors.first().map_or("FailedUpdate", reason),
            Self::DeletePod { .. } | Self::StillCreating => "FailedDelete",
            _ => "FailedUpdate",
        }
    }
}

/// Joins failures of independent parts into one; `None` when there are none.
pub(crate) fn joined(errors: Vec<anyhow::Error>) -> Option<anyhow::Error> {
    let mut errors = errors;
    match errors.len() {
        0 => None,
        1 => errors.pop(),
        _ => Some(Error::Several(errors).into()),
    }
}

/// The text names all of them, once.
fn texts(errors: &[anyhow::Error]) -> String {
    let all: Vec<_> = errors.iter().map(text).collect();
    all.join("; ")
}

/// Whether this is so of the error or one of its causes, also those of failures that were joined.
fn has_cause(error: &anyhow::Error, is_it: fn(&(dyn StdError + 'static)) -> bool) -> bool {
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(Error::Several(errors)) => errors.iter().any(|error| has_cause(error, is_it)),
        _ => is_it(cause),
    })
}

/// What people read of an error, in conditions and events.
pub(crate) fn text(error: &anyhow::Error) -> String {
    one_line(&**error)
}

/// Reason of the condition `Failure` for any error of a pass.
pub(crate) fn reason(error: &anyhow::Error) -> &'static str {
    let mut known = error.chain().filter_map(|e| e.downcast_ref::<Error>());
    known.next().map(Error::reason).unwrap_or("FailedUpdate")
}

/// The word for a machine that has no pod because of the failure; `None`: the failure does not decide
/// whether it gets one, or is likely to pass by itself.
pub(crate) fn word(error: &anyhow::Error) -> Option<PrintableStatus> {
    let word_of = |cause: &(dyn StdError + 'static)| match cause.downcast_ref()? {
        Error::Several(errors) => errors.iter().find_map(word),
        Error::ForeignPod { .. } | Error::MachineType(_) | Error::Firmware(_) => {
            Some(PrintableStatus::ErrorUnschedulable)
        }
        Error::CreatePod { source, .. } if is_lasting(source) => {
            Some(PrintableStatus::ErrorUnschedulable)
        }
        Error::DataVolume { source, .. } if is_lasting(source) => {
            Some(PrintableStatus::DataVolumeError)
        }
        Error::RootClaim { source, .. } if is_lasting(source) => {
            Some(PrintableStatus::ErrorStorage)
        }
        _ => None,
    };
    error.chain().find_map(word_of)
}

/// Whether nothing that the controller watches shows when the cause of the failure is gone: the API
/// server refused a write by rules of its own, a node lacks something, or an object of a kind that is
/// not watched, or not all of it, is in the way.
pub(crate) fn is_unwatched(error: &PassError) -> bool {
    match error {
        PassError::Failed(error) => has_cause(error, is_unwatched_cause),
        PassError::Conflict(_) => false,
    }
}

fn is_unwatched_cause(cause: &(dyn StdError + 'static)) -> bool {
    let is_refused = cause.downcast_ref().is_some_and(is_refusal);
    // Pods are watched by our label.
    let is_unwatched = matches!(
        cause.downcast_ref(),
        Some(
            Error::Invalid { .. }
                | Error::MachineType(_)
                | Error::Firmware(_)
                | Error::ForeignPod { .. }
                | Error::Unwatched(_)
        )
    );
    is_refused || is_unwatched
}

/// Whether the API server refused a request, and would at once again.
fn is_lasting(error: &kube::Error) -> bool {
    let passes = |code| matches!(code, 408 | 409 | 429);
    is_refusal(error) && !matches!(error, kube::Error::Api(status) if passes(status.code))
}

/// Whether the API server refused a request.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code))
}

/// Whether a quota left no room for a pod.
pub(crate) fn is_over_quota(error: &anyhow::Error) -> bool {
    let source = match error.downcast_ref() {
        Some(Error::CreatePod { source, .. }) => source,
        _ => return false,
    };
    // The API server has no reason of its own for it.
    matches!(source, kube::Error::Api(s) if s.code == 403 && s.message.contains("exceeded quota"))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn joined_failures_appear_once_each() {
        let missing = |text: &str| anyhow::Error::from(Error::NotReady(text.to_owned()));
        let one = joined(vec![missing("a")]).unwrap();
        let two = joined(vec![missing("a"), Error::NoNode.into()]).unwrap();
        assert_eq!(format!("{one:#}"), "a");
        assert_eq!(
            format!("{two:#}"),
            "a; the node has no disk for this machine any more; it is not made again"
        );
        assert_eq!(reason(&two), "FailedCreate");
        assert!(joined(Vec::new()).is_none());
    }

    fn refused(name: &str) -> anyhow::Error {
        let words = format!("a policy forbids {name}");
        let status = Status::failure(&words, "Forbidden").with_code(403);
        let source = kube::Error::Api(Box::new(status));
        let name = name.to_owned();
        Error::DataVolume { name, source }.into()
    }

    #[test]
    fn refusals_among_joined_failures_keep_their_words_and_their_back_off() {
        let watched = || anyhow::Error::from(Error::NotReady("no image".to_owned()));
        let two = joined(vec![watched(), Error::NoNode.into()]).unwrap();
        assert!(!is_unwatched(&PassError::Failed(two)));

        let refusals = joined(vec![refused("a"), refused("b")]).unwrap();
        let all = joined(vec![watched(), refusals]).unwrap();
        assert_eq!(
            text(&all),
            "no image; prepare data volume a: a policy forbids a; \
             prepare data volume b: a policy forbids b"
        );
        assert!(is_unwatched(&PassError::Failed(all)));
    }
}
