//! A small table of records without phases, kept as JSON, and the view of it that lists are
//! answered from.
//!
//! Invariant: the view changes only after the record is committed, and always then, also when the
//! caller was dropped meanwhile; records are changed one after the other, each from what the one
//! before left. A power cut undoes nothing that was answered. A record that cannot be read is never
//! overwritten.
//! Failure: the database's own; then nothing changed. A record that takes the place of one that
//! cannot be read is refused ([`Unreadable`]).

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::sync::Arc;

use rusqlite::params;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::aside::{self, Aside, Loaded, Unreadable};
use super::db::{self, Db};
use super::table::{decode, encode};
use super::view::{View, finish};

/// What a table of JSON holds.
pub trait Record: Clone + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// What names a record.
    type Key: Clone + Ord + Debug + Display + FromStr + Send + Sync + 'static;
    /// The table, with the columns `key` and `row`.
    const TABLE: &'static str;
    /// What names this one.
    fn key(&self) -> Self::Key;
}

/// Records of one kind.
#[derive(Debug)]
pub struct RecordStore<R: Record> {
    db: Db,
    /// Held from reading a record to publishing its successor.
    writer: Arc<Mutex<()>>,
    view: Arc<View<R::Key, R>>,
    aside: Aside,
}

impl<R: Record> RecordStore<R> {
    /// Reads the table into memory.
    pub async fn load(db: Db) -> db::Result<Self> {
        let loaded = db.write(read::<R>).await?;
        let rows = loaded.rows.into_iter();
        let records = rows.map(|row| (row.key(), Arc::new(row))).collect();
        let aside = db.report(R::TABLE, loaded.aside);
        Ok(Self {
            aside,
            db,
            writer: Arc::default(),
            view: View::with_rows(records),
        })
    }

    /// Adds a record unless its name is taken; returns the one that has the name, and whether it is
    /// this one.
    pub async fn insert(&self, record: R) -> db::Result<(Arc<R>, bool)> {
        let turn = self.turn().await;
        if let Some(there) = self.readable(&record.key())? {
            return Ok((there, false));
        }
        Ok((self.store(turn, record).await?, true))
    }

    /// Adds a record, or changes the one that has its name, whether that can be read or not.
    pub async fn replace(&self, record: R) -> db::Result<Arc<R>> {
        let turn = self.turn().await;
        self.store(turn, record).await
    }

    /// Changes a record; `None` when there is none, or when `change` returns false, which keeps it
    /// as it is.
    pub async fn change(
        &self,
        key: &R::Key,
        change: impl FnOnce(&mut R) -> bool + Send,
    ) -> db::Result<Option<Arc<R>>> {
        let turn = self.turn().await;
        let Some(record) = self.get(key) else {
            return Ok(None);
        };
        let mut record = (*record).clone();
        if !change(&mut record) {
            return Ok(None);
        }
        Ok(Some(self.store(turn, record).await?))
    }

    /// Removes a record if `condition` holds for it; true when there is none afterwards.
    pub async fn remove_if(
        &self,
        key: &R::Key,
        condition: impl FnOnce(&R) -> bool + Send,
    ) -> db::Result<bool> {
        let turn = self.turn().await;
        let Some(record) = self.get(key) else {
            return Ok(true);
        };
        if !condition(&record) {
            return Ok(false);
        }
        let delete = format!("DELETE FROM {} WHERE key = ?1", R::TABLE);
        let db = self.db.clone();
        let view = Arc::clone(&self.view);
        let key = key.clone();
        finish(async move {
            let name = key.to_string();
            let deleted = db.write_through(move |t| t.execute(&delete, [name]).map(drop));
            deleted.await?;
            view.publish(key, None);
            drop(turn);
            Ok(true)
        })
        .await
    }

    /// The record of this name.
    pub fn get(&self, key: &R::Key) -> Option<Arc<R>> {
        self.view.read().get(key).cloned()
    }

    /// The record of this name; an error when there is one that cannot be read.
    pub fn readable(&self, key: &R::Key) -> Result<Option<Arc<R>>, Unreadable> {
        match self.get(key) {
            Some(record) => Ok(Some(record)),
            None => self.aside.refuse(&key.to_string()).map(|()| None),
        }
    }

    /// The records that cannot be read.
    pub const fn aside(&self) -> &Aside {
        &self.aside
    }

    /// All records, by name.
    pub fn all(&self) -> Vec<Arc<R>> {
        self.view.read().values().cloned().collect()
    }

    /// Changes whenever a record does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.view.changes()
    }

    /// Wakes all tasks that wait for changes.
    pub fn touch(&self) {
        self.view.touch();
    }

    /// Waits for the changes that were begun and whose callers have disconnected.
    pub async fn settled(&self) {
        drop(self.turn().await);
    }

    async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.writer).lock_owned().await
    }

    async fn store(&self, turn: OwnedMutexGuard<()>, record: R) -> db::Result<Arc<R>> {
        let db = self.db.clone();
        let view = Arc::clone(&self.view);
        finish(async move {
            let key = record.key();
            let record = Arc::new(record);
            let stored = Arc::clone(&record);
            let name = key.to_string();
            let write = move |t: &rusqlite::Transaction<'_>| {
                let row = encode(&*stored)?;
                let upsert = format!(
                    "INSERT INTO {} (key, row) VALUES (?1, ?2)
                     ON CONFLICT (key) DO UPDATE SET row = excluded.row",
                    R::TABLE
                );
                t.execute(&upsert, params![name, row]).map(drop)
            };
            db.write_through(write).await?;
            view.publish(key, Some(Arc::clone(&record)));
            drop(turn);
            Ok(record)
        })
        .await
    }
}

fn read<R: Record>(t: &rusqlite::Transaction<'_>) -> rusqlite::Result<Loaded<R>> {
    let mut statement = t.prepare(&format!("SELECT key, row FROM {}", R::TABLE))?;
    let read = |row: &rusqlite::Row<'_>| {
        let record: R = serde_json::from_str(&row.get::<_, String>(1)?).map_err(decode(1))?;
        let key: String = row.get(0)?;
        if record.key().to_string() == key {
            return Ok(record);
        }
        Err(decode(0)("its content is about another"))
    };
    let is_named = |row: &rusqlite::Row<'_>| {
        let content: Option<R> = serde_json::from_str(&aside::text(row, 1)).ok();
        // Of two names it is unknown which one is right.
        content.is_none() && aside::has_key::<R::Key>(row)
    };
    aside::sort(&mut statement.query([])?, is_named, read, |_| ())
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
        let records = RecordStore::load(db.clone()).await.unwrap();
        let mut changes = records.changes();
        assert!(records.insert(thing(1)).await.unwrap().1);
        let (there, new) = records.insert(thing(2)).await.unwrap();
        assert_eq!((there.count, new), (1, false));
        let key = "a".to_owned();
        let kept = records.change(&key, |_| false).await.unwrap();
        assert!(kept.is_none());
        let add = |thing: &mut Thing| {
            thing.count += 6;
            true
        };
        records.change(&key, add).await.unwrap().unwrap();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let again = RecordStore::<Thing>::load(db.clone()).await.unwrap();
        assert_eq!(again.get(&key).as_deref(), Some(&thing(7)));
        assert!(!records.remove_if(&key, |t| t.count == 1).await.unwrap());
        assert!(records.remove_if(&key, |t| t.count == 7).await.unwrap());
        assert!(records.remove_if(&key, |_| false).await.unwrap());
        assert!(changes.has_changed().unwrap());
        let again = RecordStore::<Thing>::load(db).await.unwrap();
        assert!(again.all().is_empty());
    }

    #[tokio::test]
    async fn a_change_completes_after_its_caller_was_dropped() {
        let db = Db::in_memory().unwrap();
        let records = RecordStore::load(db.clone()).await.unwrap();
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let holding = tokio::spawn(async move { db.write(move |_| Ok(held.recv().is_ok())).await });
        let mut insertion = Box::pin(records.insert(thing(1)));
        assert!(futures_util::poll!(&mut insertion).is_pending());
        let mut changes = records.changes();
        drop(insertion);
        go_on.send(()).unwrap();
        assert!(holding.await.unwrap().unwrap());
        let reported = tokio::time::timeout(std::time::Duration::from_secs(90), changes.changed());
        reported.await.expect("a notification").unwrap();
        assert_eq!(records.get(&"a".to_owned()).as_deref(), Some(&thing(1)));
    }

    #[tokio::test]
    async fn a_power_cut_undoes_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("db")).unwrap();
        let look = "CREATE TEMP TABLE seen (level);
            CREATE TEMP TRIGGER insertion AFTER INSERT ON main.node_tasks
              BEGIN INSERT INTO seen SELECT synchronous FROM pragma_synchronous; END;
            CREATE TEMP TRIGGER deletion AFTER DELETE ON main.node_tasks
              BEGIN INSERT INTO seen SELECT synchronous FROM pragma_synchronous; END;";
        db.write(move |t| t.execute_batch(look)).await.unwrap();
        let records = RecordStore::load(db.clone()).await.unwrap();
        records.insert(thing(1)).await.unwrap();
        let key = "a".to_owned();
        assert!(records.remove_if(&key, |_| true).await.unwrap());
        let seen = db.write(|t| {
            let mut all = t.prepare("SELECT level FROM seen")?;
            let all = all.query_map([], |row| row.get::<_, i64>(0))?;
            all.collect::<rusqlite::Result<Vec<_>>>()
        });
        // FULL: the log is on the disk before the answer.
        assert_eq!(seen.await.unwrap(), [2, 2]);
    }
}
