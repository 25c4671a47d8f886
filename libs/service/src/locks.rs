//! Locks by key: one holder per key, none across keys.
//!
//! Invariant: a key's lock exists only while it is held or awaited, so the map stays small.
//! Failure: none; a holder that is cancelled or panics releases its lock.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

type Map<K> = Arc<Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>>;

/// A set of locks; clones share it.
#[derive(Debug)]
pub struct Locks<K: Hash + Eq = String>(Map<K>);

/// Holds one key until it is dropped.
#[derive(Debug)]
pub struct Guard<K: Hash + Eq = String> {
    key: K,
    map: Map<K>,
    held: Option<OwnedMutexGuard<()>>,
}

impl<K: Hash + Eq> Default for Locks<K> {
    fn default() -> Self {
        Self(Map::default())
    }
}

impl<K: Hash + Eq> Clone for Locks<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Hash + Eq + Clone> Locks<K> {
    /// Waits until no other task holds `key`.
    pub async fn lock<Q>(&self, key: &Q) -> Guard<K>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let key = key.to_owned();
        let mutex = {
            let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(map.entry(key.clone()).or_default())
        };
        let mut guard = Guard {
            key,
            map: Arc::clone(&self.0),
            held: None,
        };
        guard.held = Some(mutex.lock_owned().await);
        guard
    }

    /// Takes `key` unless another task holds or awaits it.
    pub fn try_lock<Q>(&self, key: &Q) -> Option<Guard<K>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.contains_key(key) {
            return None;
        }
        let mutex = Arc::<tokio::sync::Mutex<()>>::default();
        let held = Arc::clone(&mutex).try_lock_owned().ok();
        map.insert(key.to_owned(), mutex);
        Some(Guard {
            key: key.to_owned(),
            map: Arc::clone(&self.0),
            held,
        })
    }
}

impl<K: Hash + Eq> Drop for Guard<K> {
    fn drop(&mut self) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        self.held = None;
        // One reference is the map's own: more of them wait for the lock.
        if map
            .get(&self.key)
            .is_some_and(|mutex| Arc::strong_count(mutex) == 1)
        {
            map.remove(&self.key);
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
        let locks = Locks::<String>::default();
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
        let locks = Locks::<String>::default();
        let held = locks.try_lock("a").unwrap();
        assert!(locks.try_lock("a").is_none());
        let mut waiting = pin!(locks.lock("a"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(locks.try_lock("a").is_none(), "another caller came before");
        drop(waiting.await);
        assert!(locks.try_lock("a").is_some());
    }

    #[tokio::test]
    async fn the_map_is_empty_without_holders_and_waiters() {
        let locks = Locks::<String>::default();
        let held = locks.lock("a").await;
        let waiting = locks.clone();
        let waiter = tokio::spawn(async move { drop(waiting.lock("a").await) });
        tokio::task::yield_now().await;
        drop(held);
        waiter.await.unwrap();
        assert!(locks.0.lock().unwrap().is_empty());
    }
}
