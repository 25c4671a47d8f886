//! A table of rows with a life cycle, and the view of it that lists are answered from.
//!
//! Invariant: the view changes only after the row is committed, and always then, also when the
//! caller was dropped meanwhile, in commit order; a row changes only from the phase that its writer
//! saw, so that two writers never overwrite each other.
//! Ends are an exception: where the database cannot be written, the view changes all the same, and
//! the row is written later. The daemon's death in between undoes nothing but the record: an end is
//! observed again, and a removed row is removed again.
//! Rows that cannot be read are [`Table::aside`]: no row of the view.
//! Failure: [`TableError::Raced`] when the row is no longer in the expected phase or gone: nothing
//! changed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};

use podspec::{Id, Kind};
use rusqlite::Transaction;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::aside::Aside;
use super::db::{self, Db};
use super::view::{View, finish};

mod error;
mod row;

pub use error::{LookupError, TableError};
pub use row::{Row, decode, encode};

/// Rows of one kind.
#[derive(Debug)]
pub struct Table<R: Row> {
    db: Db,
    /// Held from reading a row to publishing its successor.
    writer: Arc<Mutex<()>>,
    view: Arc<View<Id<R::Kind>, R>>,
    /// Rows as the database still has them, where the view is ahead of it.
    late: Late<R>,
    aside: Arc<Aside<R::Trace>>,
}

type Late<R> = Arc<StdMutex<BTreeMap<Id<<R as Row>::Kind>, Arc<R>>>>;

/// Whether a change may wait for the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// It is stored first.
    First,
    /// It is stored first where that is possible.
    Later,
}

impl<R: Row> Table<R> {
    /// Reads the table into memory.
    pub async fn load(db: Db) -> db::Result<Self> {
        let loaded = db.write(R::load).await?;
        let rows = loaded.rows.into_iter();
        let rows = rows.map(|row| (row.id().clone(), Arc::new(row)));
        let aside = db.report(R::TABLE, loaded.aside);
        Ok(Self {
            aside: Arc::new(aside),
            db,
            writer: Arc::default(),
            view: View::with_rows(rows.collect()),
            late: Late::<R>::default(),
        })
    }

    /// Adds a row.
    pub async fn insert(&self, row: R) -> db::Result<Arc<R>> {
        let turn = self.turn().await;
        let row = Arc::new(row);
        let db = self.db.clone();
        let view = Arc::clone(&self.view);
        finish(async move {
            let stored = Arc::clone(&row);
            db.write(move |t| stored.insert(t)).await?;
            view.publish(row.id().clone(), Some(Arc::clone(&row)));
            drop(turn);
            Ok(row)
        })
        .await
    }

    /// Changes a row that is in phase `expected`.
    pub async fn change(
        &self,
        id: &Id<R::Kind>,
        expected: R::Phase,
        change: impl FnOnce(&mut R) + Send,
    ) -> Result<Arc<R>, TableError> {
        self.change_as(id, expected, change, Durability::First)
            .await
    }

    /// As [`Self::change`], for the end of something: a database that cannot be written does not
    /// keep a machine alive, or its disk from being removed. [`Self::store_late`] writes the row.
    pub async fn change_to_end(
        &self,
        id: &Id<R::Kind>,
        expected: R::Phase,
        change: impl FnOnce(&mut R) + Send,
    ) -> Result<Arc<R>, TableError> {
        self.change_as(id, expected, change, Durability::Later)
            .await
    }

    async fn change_as(
        &self,
        id: &Id<R::Kind>,
        expected: R::Phase,
        change: impl FnOnce(&mut R) + Send,
        durability: Durability,
    ) -> Result<Arc<R>, TableError> {
        let turn = self.turn().await;
        let raced = || TableError::Raced {
            noun: R::Kind::NOUN,
            id: id.to_string(),
            expected: expected.to_string(),
        };
        let mut row = self
            .get(id)
            .filter(|r| r.phase() == expected)
            .ok_or_else(raced)?;
        let before = Arc::clone(&row);
        change(Arc::make_mut(&mut row));
        let db = self.db.clone();
        let view = Arc::clone(&self.view);
        let id = id.clone();
        let late = Arc::clone(&self.late);
        let changed = finish(async move {
            let in_database = lock(&late).get(&id).map_or(expected, |row| row.phase());
            let stored = Arc::clone(&row);
            match db.write(move |t| stored.update(t, in_database)).await {
                Ok(0) => return Ok(None),
                Ok(_) => drop(lock(&late).remove(&id)),
                Err(e) if durability == Durability::Later && e.is_unwritable() => {
                    not_stored::<R>(&id, &e);
                    lock(&late).entry(id.clone()).or_insert(before);
                }
                Err(e) => return Err(e),
            }
            view.publish(id, Some(Arc::clone(&row)));
            drop(turn);
            Ok(Some(row))
        });
        changed.await?.ok_or_else(raced)
    }

    /// Deletes a row; success when there is none. Where the database cannot be written, it does so
    /// later.
    pub async fn remove(&self, id: &Id<R::Kind>) -> db::Result<()> {
        let turn = self.turn().await;
        let Some(row) = self.get(id) else {
            return Ok(());
        };
        let db = self.db.clone();
        let view = Arc::clone(&self.view);
        let id = id.clone();
        let late = Arc::clone(&self.late);
        finish(async move {
            let deleted = Arc::clone(&row);
            match db.write(move |t| deleted.delete(t)).await {
                Ok(()) => drop(lock(&late).remove(&id)),
                Err(e) if e.is_unwritable() => {
                    not_stored::<R>(&id, &e);
                    lock(&late).entry(id.clone()).or_insert(row);
                }
                Err(e) => return Err(e),
            }
            view.publish(id, None);
            drop(turn);
            Ok(())
        })
        .await
    }

    /// Writes what the database could not take before.
    pub async fn store_late(&self) -> db::Result<()> {
        let ids: Vec<_> = lock(&self.late).keys().cloned().collect();
        for id in ids {
            let turn = self.turn().await;
            let Some(before) = lock(&self.late).get(&id).cloned() else {
                continue;
            };
            let db = self.db.clone();
            let late = Arc::clone(&self.late);
            let now = self.get(&id);
            let stored = finish(async move {
                let write = move |t: &Transaction<'_>| match now {
                    Some(row) => row.update(t, before.phase()).map(drop),
                    None => before.delete(t),
                };
                db.write(write).await?;
                lock(&late).remove(&id);
                drop(turn);
                tracing::info!(noun = R::Kind::NOUN, %id, "record written late");
                Ok(())
            });
            stored.await?;
        }
        Ok(())
    }

    /// The row with this id.
    pub fn get(&self, id: &Id<R::Kind>) -> Option<Arc<R>> {
        self.view.read().get(id).cloned()
    }

    /// The rows that cannot be read.
    pub fn aside(&self) -> &Aside<R::Trace> {
        &self.aside
    }

    /// All rows, by id.
    pub fn all(&self) -> Vec<Arc<R>> {
        self.view.read().values().cloned().collect()
    }

    /// The one row whose id begins with `prefix` among those that `visible` accepts.
    pub fn find(&self, prefix: &str, visible: fn(&R) -> bool) -> Result<Arc<R>, LookupError> {
        let id = || prefix.chars().take(80).collect::<String>();
        let noun = R::Kind::NOUN;
        let view = self.view.read();
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
            (None, _) => match self.aside.find(prefix) {
                Some(row) => Err(self.aside.error(row).into()),
                None => Err(LookupError::NotFound { noun, id: id() }),
            },
        }
    }

    /// Changes whenever a row does: wait on it to see the effect of another task's work.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.view.changes()
    }

    /// Calls `observer` with each row that exists, then with the row before and after each change,
    /// in commit order. It must not read this table, and must not block. A table has one observer:
    /// false when it has another.
    pub fn observe(
        &self,
        observer: impl Fn(Option<&Arc<R>>, Option<&Arc<R>>) + Send + Sync + 'static,
    ) -> bool {
        self.view.observe(Box::new(observer))
    }

    async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.writer).lock_owned().await
    }
}

fn lock<T>(late: &StdMutex<T>) -> MutexGuard<'_, T> {
    late.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_stored<R: Row>(id: &Id<R::Kind>, error: &db::Error) {
    let error = crate::one_line(error);
    tracing::warn!(noun = R::Kind::NOUN, %id, error, "end not recorded yet: carried out all the same");
}

#[cfg(test)]
mod tests;
