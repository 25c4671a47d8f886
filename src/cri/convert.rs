//! Converts wire messages to domain values and back.
//!
//! Invariant: a value that comes out of here is safe to store, log and hand on: required parts are
//! there, texts are bounded and enumerations known. Labels and annotations are byte-identical.
//! Failure: [`Invalid`] names the field as the API spells it, and what is allowed.

pub(super) mod container;
pub(super) mod exec;
pub(super) mod image;
pub(super) mod metrics;
pub(super) mod process;
pub(super) mod sandbox;
pub(super) mod stats;

mod check;
mod unused;

/// A field of a request that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub(super) struct Invalid {
    /// Path of the field.
    pub(super) field: String,
    /// What is allowed.
    pub(super) reason: String,
}

impl Invalid {
    pub(super) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// The field must be there.
    pub(super) fn missing(field: &str) -> Self {
        Self::new(field, "it is required")
    }
}

/// Outcome of reading a request.
pub(super) type Result<T, E = Invalid> = std::result::Result<T, E>;

#[cfg(test)]
mod tests;
