//! The answer of a readiness probe.
//!
//! Invariant: an answer that is not "yes" is a sentence for people.
//! Failure: none.

/// Whether a machine is ready, by its own readiness probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Ready.
    Yes,
    /// Not ready.
    No(&'static str),
    /// There is no result yet.
    Unknown(&'static str),
    /// There is none as long as the node is as it is.
    Unsupported(String),
}
