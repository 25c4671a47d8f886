//! Locks by name: one holder per sandbox, none across sandboxes.
//!
//! Invariant: a name's lock exists only while somebody holds or awaits it, so the map stays small.
//! Failure: none; a holder that is cancelled or panics releases its lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

type Map = Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>;

/// A set of named locks; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Locks(Map);

/// Holds one name until it is dropped.
#[derive(Debug)]
pub struct Guard {
    name: String,
    map: Map,
    held: Option<OwnedMutexGuard<()>>,
}

impl Locks {
    /// Waits until nobody else holds `name`.
    pub async fn lock(&self, name: &str) -> Guard {
        let mutex = {
            let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(map.entry(name.to_owned()).or_default())
        };
        let mut guard = Guard {
            name: name.to_owned(),
            map: Arc::clone(&self.0),
            held: None,
        };
        guard.held = Some(mutex.lock_owned().await);
        guard
    }

    /// Takes `name` unless somebody else holds or awaits it.
    pub fn try_lock(&self, name: &str) -> Option<Guard> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.contains_key(name) {
            return None;
        }
        let mutex = Arc::<tokio::sync::Mutex<()>>::default();
        let held = Arc::clone(&mutex).try_lock_owned().ok();
        map.insert(name.to_owned(), mutex);
        Some(Guard {
            name: name.to_owned(),
            map: Arc::clone(&self.0),
            held,
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        self.held = None;
        // One reference is the map's own: more of them wait for the lock.
        if map
            .get(&self.name)
            .is_some_and(|mutex| Arc::strong_count(mutex) == 1)
        {
            map.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn a_name_has_one_holder_and_others_are_free() {
        let locks = Locks::default();
        let held = locks.lock("a").await;
        let mut second = pin!(locks.lock("a"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(locks.lock("b").await);
        drop(held);
        assert!(matches!(second.poll(&mut context), Poll::Ready(_)));
    }

    #[tokio::test]
    async fn a_name_is_taken_at_once_or_not_at_all() {
        let locks = Locks::default();
        let held = locks.try_lock("a").unwrap();
        assert!(locks.try_lock("a").is_none());
        let mut waiting = pin!(locks.lock("a"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(locks.try_lock("a").is_none(), "somebody was here before");
        drop(waiting.await);
        assert!(locks.try_lock("a").is_some());
    }

    #[tokio::test]
    async fn the_map_is_empty_when_nobody_holds_or_waits() {
        let locks = Locks::default();
        let held = locks.lock("a").await;
        let waiting = locks.clone();
        let waiter = tokio::spawn(async move { drop(waiting.lock("a").await) });
        tokio::task::yield_now().await;
        drop(held);
        waiter.await.unwrap();
        assert!(locks.0.lock().unwrap().is_empty());
    }
}
