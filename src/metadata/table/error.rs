//! Why a row is not changed, or not found.
//!
//! Invariant: a text that was looked up is shortened before it is repeated.
//! Failure: none here.

use crate::metadata::aside::Unreadable;
use crate::metadata::db;

/// A row that cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Another writer changed or removed the row meanwhile.
    #[error("{noun} {id} changed meanwhile: it is no longer {expected}")]
    Raced {
        /// What the id names.
        noun: &'static str,
        /// The row.
        id: String,
        /// The phase that was expected.
        expected: String,
    },
    /// The database failed.
    #[error(transparent)]
    Db(#[from] db::Error),
}

/// An id or a prefix of one that does not name exactly one row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No row has it.
    #[error("no {noun} has the id {id:?}")]
    NotFound {
        /// What the id names.
        noun: &'static str,
        /// The text that was looked up, shortened.
        id: String,
    },
    /// Several rows have it.
    #[error("{id:?} is the beginning of several {noun} ids: give more digits")]
    Ambiguous {
        /// What the id names.
        noun: &'static str,
        /// The text that was looked up, shortened.
        id: String,
    },
    /// A row has it that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}
