//! Reads of many owners, and reads on threads that may block.
//!
//! Invariant: an owner that hangs delays the others for a moment, and only once.
//! Failure: an owner has no value when its last read has not come back or this one does not in
//! time.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::{Foreign, Turn};

/// A read that takes longer hangs, or may do so: it is no longer waited for before others.
pub(super) const STALL: Duration = Duration::from_millis(250);

/// How long the last reads of many are waited for once no other answers.
const LAST: Duration = Duration::from_secs(1);

/// What several threads read, one after the other.
type Queue<K, F> = Arc<Mutex<VecDeque<(K, F)>>>;

impl<K: Clone + Eq + Hash + Send + 'static> Foreign<K> {
    /// Reads for many owners, in their order, and returns what was answered within `time`. One that
    /// hangs delays the others for a moment, and only once.
    pub(crate) async fn read_each<T, F>(&self, owners: Vec<(K, F)>, time: Duration) -> HashMap<K, T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let mut found = HashMap::with_capacity(owners.len());
        let mut left = owners.len();
        let queue: Queue<K, F> = Arc::new(Mutex::new(owners.into()));
        let (answers, mut answered) = unbounded_channel();
        let end = Instant::now() + time;
        let mut last = Instant::now();
        if left > 0 {
            self.add_thread(&queue, &answers);
        }
        while left > 0 {
            let soon = (Instant::now() + STALL).min(end);
            match timeout_at(soon, answered.recv()).await {
                Ok(Some((owner, value))) => {
                    left -= 1;
                    last = Instant::now();
                    if let Some(value) = value {
                        found.insert(owner, value);
                    }
                }
                Ok(None) => break,
                Err(_) if Instant::now() >= end => break,
                // What hangs keeps its thread; another goes on behind it.
                Err(_) if !locked(&queue).is_empty() => self.add_thread(&queue, &answers),
                Err(_) if last.elapsed() >= LAST => break,
                Err(_) => {}
            }
        }
        found
    }

    /// Reads for one owner on this thread, which blocks. Waits a moment for another thread that reads
    /// it.
    pub(crate) fn read_here<T>(&self, owner: K, read: impl FnOnce() -> T) -> Option<T> {
        let turn = self.turn_here(owner)?;
        let value = read();
        drop(turn);
        Some(value)
    }

    /// Lets one more thread read, unless all that there may be hang.
    fn add_thread<T, F>(&self, queue: &Queue<K, F>, answers: &UnboundedSender<(K, Option<T>)>)
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.threads).try_acquire_owned() else {
            return;
        };
        let this = self.clone();
        let queue = Arc::clone(queue);
        let answers = answers.clone();
        spawn_blocking(move || this.read_all(&queue, &answers, permit));
    }

    fn read_all<T, F: FnOnce() -> T>(
        &self,
        queue: &Queue<K, F>,
        answers: &UnboundedSender<(K, Option<T>)>,
        permit: OwnedSemaphorePermit,
    ) {
        loop {
            let next = locked(queue).pop_front();
            let Some((owner, read)) = next else { break };
            let value = self.read_here(owner.clone(), read);
            if answers.send((owner, value)).is_err() {
                // The client has left.
                break;
            }
        }
        drop(permit);
    }

    fn turn_here(&self, owner: K) -> Option<Turn<K>> {
        let state = self.turns.state();
        let since = state.taken.get(&owner).map(std::time::Instant::elapsed);
        let wait = STALL.saturating_sub(since.unwrap_or_default());
        let waited = self
            .turns
            .ended
            .wait_timeout_while(state, wait, |state| state.taken.contains_key(&owner));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.turns.begin(state, owner)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
