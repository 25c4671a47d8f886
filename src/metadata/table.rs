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
use rusqlite::types::Type;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::aside::{Aside, Loaded, Unreadable};
use super::db::{self, Db};
use super::view::{View, finish};

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
            view: View::of(rows.collect()),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podspec::ContainerId;

    use super::*;
    use crate::metadata::aside;

    #[derive(Debug, Clone, PartialEq)]
    struct Thing {
        id: ContainerId,
        phase: u8,
    }

    impl Row for Thing {
        type Kind = podspec::kind::Container;
        type Phase = u8;
        type Trace = ();
        const TABLE: &'static str = "node_tasks";

        fn id(&self) -> &ContainerId {
            &self.id
        }

        fn phase(&self) -> u8 {
            self.phase
        }

        fn load(t: &Transaction<'_>) -> rusqlite::Result<Loaded<Self>> {
            let mut all = t.prepare("SELECT key, row FROM node_tasks")?;
            let read = |row: &rusqlite::Row<'_>| {
                let id: String = row.get(0)?;
                let phase: String = row.get(1)?;
                Ok(Self {
                    id: id.parse().map_err(decode(0))?,
                    phase: phase.parse().map_err(decode(1))?,
                })
            };
            let is_named = aside::has_key::<ContainerId>;
            aside::sort(&mut all.query([])?, is_named, read, |_| ())
        }

        fn insert(&self, t: &Transaction<'_>) -> rusqlite::Result<()> {
            let row = (self.id.as_str(), self.phase.to_string());
            let insert = "INSERT INTO node_tasks (key, row) VALUES (?1, ?2)";
            t.execute(insert, row).map(drop)
        }

        fn update(&self, t: &Transaction<'_>, expected: u8) -> rusqlite::Result<usize> {
            let update = "UPDATE node_tasks SET row = ?2 WHERE key = ?1 AND row = ?3";
            let row = self.phase.to_string();
            let expected = expected.to_string();
            t.execute(update, (self.id.as_str(), row, expected))
        }

        fn delete(&self, t: &Transaction<'_>) -> rusqlite::Result<()> {
            let delete = "DELETE FROM node_tasks WHERE key = ?1";
            t.execute(delete, [self.id.as_str()]).map(drop)
        }
    }

    /// Begins a change while the database is busy, and goes away before it is done.
    async fn leave<T>(table: &Table<Thing>, change: impl Future<Output = T>) {
        let db = table.db.clone();
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let hold = move |_: &Transaction<'_>| {
            begun.send(()).unwrap();
            Ok(held.recv().is_ok())
        };
        let holding = tokio::spawn(async move { db.write(hold).await });
        begins.await.unwrap();
        let mut changes = table.changes();
        let mut change = Box::pin(change);
        assert!(futures_util::poll!(&mut change).is_pending());
        drop(change);
        go_on.send(()).unwrap();
        assert!(holding.await.unwrap().unwrap());
        let reported = tokio::time::timeout(Duration::from_secs(20), changes.changed());
        reported.await.expect("it is told").unwrap();
    }

    #[tokio::test]
    async fn a_change_completes_after_its_caller_was_dropped() {
        let db = Db::in_memory().unwrap();
        let table = Table::load(db.clone()).await.unwrap();
        let id = ContainerId::generate();
        let thing = |phase| Thing {
            id: id.clone(),
            phase,
        };
        let stored = async || {
            let again = Table::<Thing>::load(db.clone()).await.unwrap();
            assert_eq!(table.get(&id), again.get(&id), "the view is the table");
            table.get(&id).map(|thing| thing.phase)
        };
        leave(&table, table.insert(thing(1))).await;
        assert_eq!(stored().await, Some(1));
        leave(&table, table.change(&id, 1, |thing| thing.phase = 2)).await;
        assert_eq!(stored().await, Some(2));
        let raced = table.change(&id, 1, |thing| thing.phase = 3).await;
        assert!(matches!(raced, Err(TableError::Raced { .. })));
        leave(&table, table.remove(&id)).await;
        assert_eq!(stored().await, None);
    }
}
