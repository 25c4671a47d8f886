//! A table of rows with a life cycle, and the view of it that lists are answered from.
//!
//! Invariant: the view changes only after the row is committed, in commit order; a row changes only from
//! the phase that its writer saw, so that two writers never overwrite each other.
//! Failure: [`TableError::Raced`] when the row is no longer in the expected phase or gone: nothing changed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use podspec::{Id, Kind};
use rusqlite::Transaction;
use rusqlite::types::Type;
use tokio::sync::{Mutex, watch};

use super::db::{self, Db};

/// A row of a table: how it is stored and what names it.
pub trait Row: Clone + Send + Sync + 'static {
    /// What its id names.
    type Kind: Kind + 'static;
    /// Where it is in its life.
    type Phase: Copy + Eq + std::fmt::Display + Send + 'static;

    /// Its id.
    fn id(&self) -> &Id<Self::Kind>;
    /// Its phase.
    fn phase(&self) -> Self::Phase;
    /// Reads all rows.
    fn load(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<Self>>;
    /// Writes a new row.
    fn insert(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
    /// Overwrites the row if it is in phase `expected`; returns the number of rows written.
    fn update(&self, t: &Transaction<'_>, expected: Self::Phase) -> rusqlite::Result<usize>;
    /// Deletes the row.
    fn delete(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
}

/// A row that cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Somebody else changed or removed the row meanwhile.
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
}

/// Rows of one kind.
#[derive(Debug)]
pub struct Table<R: Row> {
    db: Db,
    /// Held from reading a row to publishing its successor.
    writer: Mutex<()>,
    view: RwLock<BTreeMap<Id<R::Kind>, Arc<R>>>,
    generation: watch::Sender<u64>,
}

impl<R: Row> Table<R> {
    /// Reads the table into memory.
    pub async fn load(db: Db) -> db::Result<Self> {
        let rows = db.write(R::load).await?;
        let view = rows
            .into_iter()
            .map(|row| (row.id().clone(), Arc::new(row)))
            .collect();
        let generation = watch::Sender::new(0);
        Ok(Self {
            db,
            writer: Mutex::new(()),
            view: RwLock::new(view),
            generation,
        })
    }

    /// Adds a row.
    pub async fn insert(&self, row: R) -> db::Result<Arc<R>> {
        let _writer = self.writer.lock().await;
        let row = Arc::new(row);
        let stored = Arc::clone(&row);
        self.db.write(move |t| stored.insert(t)).await?;
        self.publish(row.id().clone(), Some(Arc::clone(&row)));
        Ok(row)
    }

    /// Changes a row that is in phase `expected`.
    pub async fn change(
        &self,
        id: &Id<R::Kind>,
        expected: R::Phase,
        change: impl FnOnce(&mut R) + Send,
    ) -> Result<Arc<R>, TableError> {
        let _writer = self.writer.lock().await;
        let raced = || TableError::Raced {
            noun: R::Kind::NOUN,
            id: id.to_string(),
            expected: expected.to_string(),
        };
        let mut row = self
            .get(id)
            .filter(|r| r.phase() == expected)
            .ok_or_else(raced)?;
        change(Arc::make_mut(&mut row));
        let stored = Arc::clone(&row);
        if self.db.write(move |t| stored.update(t, expected)).await? == 0 {
            return Err(raced());
        }
        self.publish(id.clone(), Some(Arc::clone(&row)));
        Ok(row)
    }

    /// Deletes a row; success when there is none.
    pub async fn remove(&self, id: &Id<R::Kind>) -> db::Result<()> {
        let _writer = self.writer.lock().await;
        let Some(row) = self.get(id) else {
            return Ok(());
        };
        self.db.write(move |t| row.delete(t)).await?;
        self.publish(id.clone(), None);
        Ok(())
    }

    /// The row with this id.
    pub fn get(&self, id: &Id<R::Kind>) -> Option<Arc<R>> {
        self.read().get(id).cloned()
    }

    /// All rows, by id.
    pub fn all(&self) -> Vec<Arc<R>> {
        self.read().values().cloned().collect()
    }

    /// The one row whose id begins with `prefix` among those that `visible` accepts.
    pub fn find(&self, prefix: &str, visible: fn(&R) -> bool) -> Result<Arc<R>, LookupError> {
        let id = || prefix.chars().take(80).collect::<String>();
        let noun = R::Kind::NOUN;
        let view = self.read();
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let mut matches = view
            .range::<str, _>(from)
            .take_while(|(id, _)| id.as_str().starts_with(prefix))
            .map(|(_, row)| row)
            .filter(|row| visible(row));
        match (
            matches.next().filter(|_| !prefix.is_empty()),
            matches.next(),
        ) {
            (Some(row), None) => Ok(Arc::clone(row)),
            (Some(_), Some(_)) => Err(LookupError::Ambiguous { noun, id: id() }),
            (None, _) => Err(LookupError::NotFound { noun, id: id() }),
        }
    }

    /// Changes whenever a row does: wait on it to see the effect of somebody else's work.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    fn publish(&self, id: Id<R::Kind>, row: Option<Arc<R>>) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        match row {
            Some(row) => view.insert(id, row),
            None => view.remove(&id),
        };
        drop(view);
        self.generation.send_modify(|generation| *generation += 1);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Id<R::Kind>, Arc<R>>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }
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
