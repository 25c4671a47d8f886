//! Reads of what others own and what may hang: volumes, cgroups, files of other processes.
//!
//! Invariant: at most one read of a source is outstanding, so that a source that never answers
//! keeps one thread, however often it is asked for; sources beside it are read meanwhile. At most
//! [`MOST`] threads of one reader wait at once.
//! Failure: a source has no value when its last read has not come back or this one does not in
//! time.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

/// A read that takes longer hangs, or may do so: it is no longer waited for before others.
const STALL: Duration = Duration::from_millis(250);

/// How long the last reads of many are waited for once no other answers.
const LAST: Duration = Duration::from_secs(1);

/// Threads of one reader; the process has some hundred for everything that blocks.
const MOST: usize = 32;

/// Reads sources, each named by a `K`. Clones share what is outstanding.
#[derive(Debug)]
pub(crate) struct BoundedReader<K> {
    outstanding: Arc<Outstanding<K>>,
    threads: Arc<Semaphore>,
}

#[derive(Debug)]
struct Outstanding<K> {
    /// Sources that are being read, each since when.
    reads: Mutex<HashMap<K, std::time::Instant>>,
    /// A thread waits for the end of a read.
    ended: Condvar,
    /// A task does.
    changed: Notify,
}

/// The exclusive right to read a source.
#[derive(Debug)]
pub(crate) struct Turn<K: Eq + Hash> {
    outstanding: Arc<Outstanding<K>>,
    source: K,
}

/// What several threads read, one after the other.
type Queue<K, F> = Arc<Mutex<VecDeque<(K, F)>>>;

impl<K: Clone + Eq + Hash + Send + 'static> BoundedReader<K> {
    /// Reads one source on a thread. Waits for an earlier read of it, both within `time`.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        source: K,
        time: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let work = async {
            let turn = self.turn(source).await;
            let permit = Arc::clone(&self.threads).acquire_owned().await.ok()?;
            let work = move || {
                let _held = (turn, permit);
                read()
            };
            spawn_blocking(work).await.ok()
        };
        timeout(time, work).await.ok().flatten()
    }

    /// Reads many sources, in their order, and returns what was answered within `time`. One that
    /// hangs delays the others for a moment, and only once.
    pub(crate) async fn read_each<T, F>(
        &self,
        sources: Vec<(K, F)>,
        time: Duration,
    ) -> HashMap<K, T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let mut found = HashMap::with_capacity(sources.len());
        let mut left = sources.len();
        let queue: Queue<K, F> = Arc::new(Mutex::new(sources.into()));
        let (answers, mut answered) = unbounded_channel();
        let end = Instant::now() + time;
        let mut last = Instant::now();
        if left > 0 {
            self.add_thread(&queue, &answers);
        }
        while left > 0 {
            let soon = (Instant::now() + STALL).min(end);
            match timeout_at(soon, answered.recv()).await {
                Ok(Some((source, value))) => {
                    left -= 1;
                    last = Instant::now();
                    if let Some(value) = value {
                        found.insert(source, value);
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

    /// Reads one source on this thread, which blocks. Waits a moment for another thread that reads
    /// it.
    pub(crate) fn read_here<T>(&self, source: K, read: impl FnOnce() -> T) -> Option<T> {
        let turn = self.turn_here(source)?;
        let value = read();
        drop(turn);
        Some(value)
    }

    /// A read that does not come back until it is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self, source: K) -> Turn<K> {
        let turn = self.turn_here(source);
        turn.expect("no other read of the source")
    }

    #[cfg(test)]
    pub(crate) fn is_outstanding(&self, source: &K) -> bool {
        self.outstanding.reads().contains_key(source)
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
            let Some((source, read)) = next else { break };
            let value = self.read_here(source.clone(), read);
            if answers.send((source, value)).is_err() {
                // The client has left.
                break;
            }
        }
        drop(permit);
    }

    fn turn_here(&self, source: K) -> Option<Turn<K>> {
        let reads = self.outstanding.reads();
        let since = reads.get(&source).map(std::time::Instant::elapsed);
        let wait = STALL.saturating_sub(since.unwrap_or_default());
        let waited = self
            .outstanding
            .ended
            .wait_timeout_while(reads, wait, |reads| reads.contains_key(&source));
        let (reads, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.begin(reads, source)
    }

    async fn turn(&self, source: K) -> Turn<K> {
        loop {
            // Before the look, so that no end between the two is missed.
            let mut changed = std::pin::pin!(self.outstanding.changed.notified());
            changed.as_mut().enable();
            if let Some(turn) = self.begin(self.outstanding.reads(), source.clone()) {
                return turn;
            }
            changed.await;
        }
    }

    fn begin(
        &self,
        mut reads: MutexGuard<'_, HashMap<K, std::time::Instant>>,
        source: K,
    ) -> Option<Turn<K>> {
        if reads.contains_key(&source) {
            return None;
        }
        reads.insert(source.clone(), std::time::Instant::now());
        Some(Turn {
            outstanding: Arc::clone(&self.outstanding),
            source,
        })
    }
}

impl<K> Clone for BoundedReader<K> {
    fn clone(&self) -> Self {
        Self {
            outstanding: Arc::clone(&self.outstanding),
            threads: Arc::clone(&self.threads),
        }
    }
}

impl<K> Default for BoundedReader<K> {
    fn default() -> Self {
        Self {
            outstanding: Arc::new(Outstanding {
                reads: Mutex::new(HashMap::new()),
                ended: Condvar::new(),
                changed: Notify::new(),
            }),
            threads: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl<K> Outstanding<K> {
    fn reads(&self) -> MutexGuard<'_, HashMap<K, std::time::Instant>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        self.outstanding.reads().remove(&self.source);
        self.outstanding.ended.notify_all();
        self.outstanding.changed.notify_waiters();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
