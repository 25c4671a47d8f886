//! Changes whose callers go away.
//!
//! Invariant: a real database; nothing waits for time.
//! Failure: the view and the table differ.

use std::time::Duration;

use podspec::ContainerId;

use super::*;
use crate::metadata::aside::{self, Loaded};

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
    reported.await.expect("a notification").unwrap();
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
