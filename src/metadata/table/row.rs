//! A row of a table: how it is stored, and what names it.
//!
//! Invariant: a row is overwritten only in the phase that its writer saw.
//! Failure: the database's; a row that cannot be read is [set aside](crate::metadata::aside) when all are loaded.

use podspec::{Id, Kind};
use rusqlite::Transaction;
use rusqlite::types::Type;

use crate::metadata::aside::Loaded;

/// A row of a table: how it is stored and what names it.
pub trait Row: Clone + Send + Sync + 'static {
    /// What its id names.
    type Kind: Kind + 'static;
    /// Where it is in its life.
    type Phase: Copy + Eq + std::fmt::Display + Send + 'static;
    /// What is made out of a row that cannot be read.
    type Trace: std::fmt::Debug + Send + Sync + 'static;
    /// The table.
    const TABLE: &'static str;

    /// Its id.
    fn id(&self) -> &Id<Self::Kind>;
    /// Its phase.
    fn phase(&self) -> Self::Phase;
    /// Reads all rows.
    fn load(transaction: &Transaction<'_>) -> rusqlite::Result<Loaded<Self, Self::Trace>>;
    /// Writes a new row.
    fn insert(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
    /// Overwrites the row if it is in phase `expected`; returns the number of rows written.
    fn update(&self, t: &Transaction<'_>, expected: Self::Phase) -> rusqlite::Result<usize>;
    /// Deletes the row.
    fn delete(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
}

/// A value as the text of a JSON column.
pub fn encode(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

/// Turns the error of decoding a column into the database's.
pub fn decode<E>(column: usize) -> impl FnOnce(E) -> rusqlite::Error
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |e| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, e.into())
}
