//! The view that lists are answered from, and the end of every change to it.
//!
//! Invariant: what was committed is published, also when the caller was dropped meanwhile.
//! Failure: the database's own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch;

use super::db;

/// Receives each change as the row before and the row after it. Runs while the view is locked: it
/// must not read the view, and must not block.
pub(super) type Observer<R> = Box<dyn Fn(Option<&Arc<R>>, Option<&Arc<R>>) + Send + Sync>;

/// Rows by name.
pub(super) struct View<K, R> {
    rows: RwLock<BTreeMap<K, Arc<R>>>,
    generation: watch::Sender<u64>,
    observer: OnceLock<Observer<R>>,
}

impl<K: fmt::Debug, R: fmt::Debug> fmt::Debug for View<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("View").field("rows", &*rows).finish()
    }
}

impl<K: Ord, R> View<K, R> {
    pub(super) fn with_rows(rows: BTreeMap<K, Arc<R>>) -> Arc<Self> {
        Arc::new(Self {
            rows: RwLock::new(rows),
            generation: watch::Sender::new(0),
            observer: OnceLock::new(),
        })
    }

    /// Calls `observer` for each row that exists, then for each change, in the order of the
    /// changes. A view has one observer: false when it has another.
    pub(super) fn observe(&self, observer: Observer<R>) -> bool {
        let rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        if self.observer.get().is_some() {
            return false;
        }
        for row in rows.values() {
            observer(None, Some(row));
        }
        self.observer.set(observer).is_ok()
    }

    /// Not to be held over an await.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, BTreeMap<K, Arc<R>>> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a change has made of a row; nothing when it no longer exists.
    pub(super) fn publish(&self, key: K, row: Option<Arc<R>>) {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let after = row.clone();
        let before = match row {
            Some(row) => rows.insert(key, row),
            None => rows.remove(&key),
        };
        if let Some(observer) = self.observer.get() {
            observer(before.as_ref(), after.as_ref());
        }
        drop(rows);
        self.touch();
    }

    /// Wakes all tasks that wait for changes.
    pub(super) fn touch(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

/// Runs a change to its end, even if the caller is dropped: what is committed is published, and a
/// task that waits for its turn gets it.
pub(super) async fn finish<T: Send + 'static>(
    change: impl Future<Output = db::Result<T>> + Send + 'static,
) -> db::Result<T> {
    let done = tokio::spawn(change).await;
    done.map_err(db::Error::Thread)?
}
