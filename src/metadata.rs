//! The daemon's database: rows in SQLite, and a view of them in memory.
//!
//! Invariant: one writer; a row is written before the effect that it announces; readers see the
//! view and never wait for the disk. A row that this version cannot read is no row of the view, and
//! stays where it is ([`aside`]).
//! Failure: an error here fails the request; the row stays as it was.

pub mod aside;
mod db;
pub mod node;
mod record_store;
mod table;
mod view;

pub use aside::{Aside, Unreadable};
pub use db::{Db, Error, Result, is_unwritable};
pub use record_store::{Record, RecordStore};
pub use table::{LookupError, Row, Table, TableError, decode, encode};
