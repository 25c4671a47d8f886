//! The queue for several tasks: behind a lock, with a clock.
//!
//! Invariant: the lock is held for one operation and never across an await.
//! Failure: none; a panic while the lock is held cannot leave the queue half changed in a way that
//! matters more than losing it would, so a poisoned lock is used on.

use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{Config, Metrics, Options, Queue};

/// A queue that watches push into and [`run`](crate::run) takes from.
#[derive(Debug)]
pub struct Shared<K, M = ()> {
    queue: Mutex<Queue<K, M>>,
    /// Something may be ready sooner than the workers believe.
    wake: Notify,
    epoch: Instant,
}

impl<K: Hash + Eq + Clone> Shared<K> {
    /// An empty queue without metrics.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self::with_metrics(config, ())
    }
}

impl<K: Hash + Eq + Clone, M: Metrics> Shared<K, M> {
    /// An empty queue.
    #[must_use]
    pub fn with_metrics(config: Config, metrics: M) -> Self {
        Self {
            queue: Mutex::new(Queue::with_metrics(config, metrics)),
            wake: Notify::new(),
            epoch: Instant::now(),
        }
    }

    /// Queues a key; see [`Queue::push`].
    pub fn push(&self, key: K, options: Options) {
        self.lock().push_with(|| self.epoch.elapsed(), key, options);
        self.wake.notify_one();
    }

    /// Queues many keys under one lock.
    pub fn push_all(&self, keys: impl IntoIterator<Item = (K, Options)>) {
        let now = self.now();
        let mut queue = self.lock();
        for (key, options) in keys {
            queue.push(now, key, options);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Number of ready keys.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops later pushes and hands out nothing more; what is in flight returns.
    pub fn shut_down(&self) {
        self.lock().shut_down();
        self.wake.notify_one();
    }

    /// The next key as soon as there is one; `None` after [`Shared::shut_down`]. For one caller at
    /// a time; it must give the key back by [`Shared::done`].
    pub async fn next(&self) -> Option<crate::Popped<K>> {
        loop {
            let due = {
                let mut queue = self.lock();
                if queue.is_shut_down() {
                    return None;
                }
                let popped = queue.pop(self.now());
                if popped.is_some() {
                    return popped;
                }
                queue.next_ready_at()
            };
            self.changed_or(due).await;
        }
    }

    /// Ends a key's flight; see [`Queue::done`].
    pub fn done(&self, key: &K) {
        let now = self.now();
        self.lock().done(now, key);
        self.wake.notify_one();
    }

    /// Time as the queue counts it.
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The queue itself, for questions and for its metrics. Not to be held for long.
    pub fn lock(&self) -> MutexGuard<'_, Queue<K, M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the queue changed, or until `due`.
    pub(crate) async fn changed_or(&self, due: Option<Duration>) {
        match due {
            None => self.wake.notified().await,
            Some(due) => {
                let due = tokio::time::sleep_until(self.epoch + due);
                tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = due => {}
                }
            }
        }
    }
}
