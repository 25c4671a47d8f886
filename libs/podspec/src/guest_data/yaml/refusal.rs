//! Why a text of YAML is no value of ours.
//!
//! Invariant: the sentence repeats nothing of the text, which may be a secret.
//! Failure: none of its own.

use serde_saphyr::granit_parser::Marker;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// It breaks the rules of YAML.
    #[error("this is no YAML")]
    NoYaml,
    /// The parser takes it, PyYAML does not.
    #[error("cloud-init does not read this")]
    Unread,
    /// It has too many values, or its aliases repeat too many.
    #[error("this is too large, or aliases make it too large")]
    TooLarge,
    /// Lists and maps in each other.
    #[error("this is nested too deeply")]
    TooDeep,
    /// PyYAML makes a value of it that JSON cannot have.
    #[error(
        "{0}, and cannot be merged: put a text in quotes, or give the user data as one key of a source, \
         which is passed on as it is"
    )]
    NoJson(&'static str),
}

/// The same with its place in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {refusal}")]
pub(super) struct Flaw {
    refusal: Refusal,
    line: usize,
    column: usize,
}

impl Flaw {
    pub(super) fn at(place: &Marker, refusal: Refusal) -> Self {
        Self {
            refusal,
            line: place.line(),
            column: place.col() + 1,
        }
    }
}
