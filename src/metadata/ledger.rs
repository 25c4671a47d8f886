//! A small table of records without phases, kept as JSON, and the view of it that lists are answered from.
//!
//! Invariant: the view changes only after the record is committed; records are changed one after the other, each from
//! what the one before left.
//! Failure: the database's own; then nothing changed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, PoisonError, RwLock};

use rusqlite::params;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, watch};

use super::db::{self, Db};
use super::table::{decode, encode};

/// What a table of JSON holds.
pub trait Record: Clone + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// What names a record.
    type Key: Clone + Ord + Display + Send + Sync + 'static;
    /// The table, with the columns `key` and `row`.
    const TABLE: &'static str;
    /// What names this one.
    fn key(&self) -> Self::Key;
}

/// Records of one kind.
#[derive(Debug)]
pub struct Ledger<R: Record> {
    db: Db,
    /// Held from reading a record to publishing its successor.
    writer: Mutex<()>,
    view: RwLock<BTreeMap<R::Key, Arc<R>>>,
    generation: watch::Sender<u64>,
}

impl<R: Record> Ledger<R> {
    /// Reads the table into memory.
    pub async fn load(db: Db) -> db::Result<Self> {
        let read = |t: &rusqlite::Transaction<'_>| {
            let mut statement = t.prepare(&format!("SELECT row FROM {}", R::TABLE))?;
            let rows = statement.query_map([], |row| {
                serde_json::from_str::<R>(&row.get::<_, String>(0)?).map_err(decode(0))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        let rows = db.write(read).await?.into_iter();
        Ok(Self {
            db,
            writer: Mutex::new(()),
            view: RwLock::new(rows.map(|row| (row.key(), Arc::new(row))).collect()),
            generation: watch::Sender::new(0),
        })
    }

    /// Adds a record unless its name is taken; returns the one that has the name, and whether it is this one.
    pub async fn insert(&self, record: R) -> db::Result<(Arc<R>, bool)> {
        let _writer = self.writer.lock().await;
        if let Some(there) = self.get(&record.key()) {
            return Ok((there, false));
        }
        Ok((self.store(record).await?, true))
    }

    /// Changes a record; `None` when there is none, or when `change` returns false, which keeps it as it is.
    pub async fn change(
        &self,
        key: &R::Key,
        change: impl FnOnce(&mut R) -> bool + Send,
    ) -> db::Result<Option<Arc<R>>> {
        let _writer = self.writer.lock().await;
        let Some(record) = self.get(key) else {
            return Ok(None);
        };
        let mut record = (*record).clone();
        if !change(&mut record) {
            return Ok(None);
        }
        Ok(Some(self.store(record).await?))
    }

    /// Removes a record if `condition` holds for it; true when there is none afterwards.
    pub async fn remove_if(
        &self,
        key: &R::Key,
        condition: impl FnOnce(&R) -> bool + Send,
    ) -> db::Result<bool> {
        let _writer = self.writer.lock().await;
        let Some(record) = self.get(key) else {
            return Ok(true);
        };
        if !condition(&record) {
            return Ok(false);
        }
        let (statement, name) = (
            format!("DELETE FROM {} WHERE key = ?1", R::TABLE),
            key.to_string(),
        );
        self.db
            .write(move |t| t.execute(&statement, [name]).map(drop))
            .await?;
        self.publish(key.clone(), None);
        Ok(true)
    }

    /// The record of this name.
    pub fn get(&self, key: &R::Key) -> Option<Arc<R>> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.get(key).cloned()
    }

    /// All records, by name.
    pub fn all(&self) -> Vec<Arc<R>> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.values().cloned().collect()
    }

    /// Changes whenever a record does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Wakes whoever waits for changes.
    pub fn touch(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    async fn store(&self, record: R) -> db::Result<Arc<R>> {
        let (record, key) = (Arc::new(record.clone()), record.key());
        let stored = Arc::clone(&record);
        let name = key.to_string();
        self.db
            .write(move |t| {
                let row = encode(&*stored)?;
                let upsert = format!(
                    "INSERT INTO {} (key, row) VALUES (?1, ?2)
                     ON CONFLICT (key) DO UPDATE SET row = excluded.row",
                    R::TABLE
                );
                t.execute(&upsert, params![name, row]).map(drop)
            })
            .await?;
        self.publish(key, Some(Arc::clone(&record)));
        Ok(record)
    }

    fn publish(&self, key: R::Key, record: Option<Arc<R>>) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        match record {
            Some(record) => view.insert(key, record),
            None => view.remove(&key),
        };
        drop(view);
        self.touch();
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Thing {
        name: String,
        count: u64,
    }

    impl Record for Thing {
        type Key = String;
        const TABLE: &'static str = "node_tasks";
        fn key(&self) -> String {
            self.name.clone()
        }
    }

    fn thing(count: u64) -> Thing {
        let name = "a".to_owned();
        Thing { name, count }
    }

    #[tokio::test]
    async fn a_name_is_taken_once_and_what_is_stored_is_read_again() {
        let db = Db::in_memory().unwrap();
        let ledger = Ledger::load(db.clone()).await.unwrap();
        let mut changes = ledger.changes();
        assert!(ledger.insert(thing(1)).await.unwrap().1);
        let (there, new) = ledger.insert(thing(2)).await.unwrap();
        assert_eq!((there.count, new), (1, false));
        let key = "a".to_owned();
        let kept = ledger.change(&key, |_| false).await.unwrap();
        assert!(kept.is_none());
        let add = |thing: &mut Thing| {
            thing.count += 6;
            true
        };
        ledger.change(&key, add).await.unwrap().unwrap();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let again = Ledger::<Thing>::load(db.clone()).await.unwrap();
        assert_eq!(again.get(&key).as_deref(), Some(&thing(7)));
        assert!(!ledger.remove_if(&key, |t| t.count == 1).await.unwrap());
        assert!(ledger.remove_if(&key, |t| t.count == 7).await.unwrap());
        assert!(ledger.remove_if(&key, |_| false).await.unwrap());
        assert!(changes.has_changed().unwrap());
        let again = Ledger::<Thing>::load(db).await.unwrap();
        assert!(again.all().is_empty());
    }
}
