//! The daemon's database: rows in SQLite, and a view of them in memory.
//!
//! Invariant: one writer; a row is written before the effect that it announces; readers see the
//! view and never wait for the disk.
//! Failure: an error here fails the request; the row stays as it was.

mod db;
pub mod node;
mod record_store;
mod table;
mod view;

pub use db::{Db, Error, Result, is_unwritable};
pub use record_store::{Record, RecordStore};
pub use table::{LookupError, Row, Table, TableError, decode, encode};
