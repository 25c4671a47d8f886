//! Pulls of one URL at the same time share one download.
//!
//! Invariant: of those at the table of one URL, one leads at a time; when it ends, its outcome is for all
//! who sat down before. A leader that goes away without an outcome is followed by the next.
//! Failure: the leader's error is everybody's error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::digest::Digest;
use super::error::Error;
use super::progress::{Meter, Progress};

/// What a download led to: the content, which is in the store or was refused.
pub(super) type Outcome = Result<Digest, Error>;

#[derive(Debug, Default)]
struct Table {
    meter: Meter,
    outcome: Arc<tokio::sync::Mutex<Option<Outcome>>>,
}

type Tables = Arc<Mutex<HashMap<String, Arc<Table>>>>;

/// The downloads in progress, by [`super::translate::Source::key`].
#[derive(Debug, Default)]
pub(super) struct Downloads {
    tables: Tables,
}

/// A place at a table; giving it up as the last one clears the table.
#[derive(Debug)]
pub(super) struct Seat {
    tables: Tables,
    key: String,
    table: Arc<Table>,
}

/// The right to download, and the duty to say how it went.
#[derive(Debug)]
pub(super) struct Lead {
    seat: Seat,
    outcome: OwnedMutexGuard<Option<Outcome>>,
}

/// What a participant has to do.
#[derive(Debug)]
pub(super) enum Turn {
    /// Download.
    Lead(Lead),
    /// Use what another one downloaded.
    Follow(Outcome),
}

impl Downloads {
    /// Waits for the outcome of a download in progress, or for the right to download.
    pub(super) async fn turn(&self, key: String) -> Turn {
        let seat = self.sit_down(key);
        let outcome = Arc::clone(&seat.table.outcome).lock_owned().await;
        match &*outcome {
            Some(outcome) => Turn::Follow(outcome.clone()),
            None => Turn::Lead(Lead { seat, outcome }),
        }
    }

    /// How far the download in progress is, if there is one.
    pub(super) fn progress(&self, key: &str) -> Option<Progress> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.get(key).map(|table| table.meter.read())
    }

    fn sit_down(&self, key: String) -> Seat {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let table = Arc::clone(tables.entry(key.clone()).or_default());
        Seat {
            tables: Arc::clone(&self.tables),
            key,
            table,
        }
    }
}

impl Lead {
    /// Where to report progress.
    pub(super) fn meter(&self) -> &Meter {
        &self.seat.table.meter
    }

    /// Tells everybody. Pulls that begin later download anew.
    pub(super) fn publish(mut self, outcome: Outcome) {
        self.seat.clear(|_| true);
        *self.outcome = Some(outcome);
    }
}

impl Seat {
    fn clear(&self, when: impl FnOnce(&Arc<Table>) -> bool) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = |table: &&Arc<Table>| Arc::ptr_eq(table, &self.table);
        if tables.get(&self.key).filter(ours).is_some_and(when) {
            tables.remove(&self.key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The map's and ours: nobody else is left.
        self.clear(|table| Arc::strong_count(table) <= 2);
    }
}
