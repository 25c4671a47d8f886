//! Work on what may never answer: volumes and devices of pods, cgroups, files of other processes.
//!
//! Invariant: for one owner one thread works at a time, and it keeps the turn until the kernel
//! returns, also when its caller has left. So what hangs takes one thread, and delays requests for
//! its owner only, each until its deadline. What a caller leaves behind is dropped in a turn of its
//! owner, before later work: to close a file may take as long as to read it. At most [`MOST`]
//! threads of one set read at once.
//! Failure: [`Error::Hung`], or no value of a read; what the thread does when the server answers at
//! last has no effect but its own.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

mod open;
mod reads;

pub use open::Open;

use crate::tasks::Aborted;

/// Time for a look at a file or a device, with the wait for the turn: well below the two minutes
/// that kubelet gives a request.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Threads that read for one set; the process has some hundred for everything that blocks.
const MOST: usize = 32;

/// Work that has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel did not return.
    #[error(
        "{0} did not answer within {seconds} s: check the server of the volume, or the device",
        seconds = DEADLINE.as_secs()
    )]
    Hung(String),
    /// The daemon stops.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

/// Threads that work for owners, each named by a `K`; clones share them.
#[derive(Debug)]
pub struct Foreign<K = String> {
    turns: Arc<Turns<K>>,
    /// Places of threads that read.
    threads: Arc<Semaphore>,
}

#[derive(Debug)]
struct Turns<K> {
    state: Mutex<State<K>>,
    /// A thread waits for the end of a turn.
    ended: Condvar,
    /// A task does.
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    /// Owners that a thread works for, each since when.
    taken: HashMap<K, Instant>,
    /// What callers have left behind.
    left: HashMap<K, Vec<Left>>,
}

/// It may take its time to be dropped.
type Left = Box<dyn Any + Send>;

/// The exclusive right to work for an owner.
#[derive(Debug)]
pub(crate) struct Turn<K: Clone + Eq + Hash + Send + 'static> {
    turns: Arc<Turns<K>>,
    owner: K,
}

/// A result, or work, that its caller may not be there to take: it is dropped in a turn of its owner then.
pub(crate) struct Unclaimed<T: Send + 'static, K: Clone + Eq + Hash + Send + 'static> {
    value: Option<T>,
    turns: Arc<Turns<K>>,
    owner: K,
}

impl<K: Clone + Eq + Hash + Send + 'static> Foreign<K> {
    /// Does what should take a moment, within the deadline.
    pub async fn look<T, Q>(
        &self,
        owner: &Q,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        Q: ToOwned<Owned = K> + ToString + ?Sized,
    {
        let looked = timeout(DEADLINE, self.run(owner, work));
        let hung = || Error::Hung(owner.to_string());
        looked.await.unwrap_or_else(|_| Err(hung()))
    }

    /// Does what may take its time, such as to write a large file to its server. The caller may
    /// leave at any time.
    pub async fn run<T, Q>(
        &self,
        owner: &Q,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        Q: ToOwned<Owned = K> + ?Sized,
    {
        let turn = self.turn(owner.to_owned()).await;
        Ok(turn.work(work).await?)
    }

    /// Keeps work that may never begin: what it has open is closed in a turn of its owner.
    pub(crate) fn unclaimed<T: Send + 'static>(&self, owner: K, work: T) -> Unclaimed<T, K> {
        Unclaimed {
            value: Some(work),
            turns: Arc::clone(&self.turns),
            owner,
        }
    }

    /// Reads on a thread. Waits for earlier work for the owner, both within `time`.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        owner: K,
        time: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let work = async {
            let turn = self.turn(owner).await;
            let permit = Arc::clone(&self.threads).acquire_owned().await.ok()?;
            let read = move || {
                let _permit = permit;
                read()
            };
            turn.work(read).await.ok()
        };
        timeout(time, work).await.ok().flatten()
    }

    /// A turn that does not end until it is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self, owner: K) -> Turn<K> {
        let turn = self.turns.begin(self.turns.state(), owner);
        turn.expect("no other work for the owner")
    }

    #[cfg(test)]
    pub(crate) fn is_taken(&self, owner: &K) -> bool {
        self.turns.state().taken.contains_key(owner)
    }

    async fn turn(&self, owner: K) -> Turn<K> {
        loop {
            // Before the look, so that no end between the two is missed.
            let mut changed = std::pin::pin!(self.turns.changed.notified());
            changed.as_mut().enable();
            if let Some(turn) = self.turns.begin(self.turns.state(), owner.clone()) {
                return turn;
            }
            changed.await;
        }
    }
}

impl<K> Clone for Foreign<K> {
    fn clone(&self) -> Self {
        Self {
            turns: Arc::clone(&self.turns),
            threads: Arc::clone(&self.threads),
        }
    }
}

impl<K> Default for Foreign<K> {
    fn default() -> Self {
        Self {
            turns: Arc::new(Turns {
                state: Mutex::new(State {
                    taken: HashMap::new(),
                    left: HashMap::new(),
                }),
                ended: Condvar::new(),
                changed: Notify::new(),
            }),
            threads: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl<K> Turns<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Turns<K> {
    fn begin(self: &Arc<Self>, mut state: MutexGuard<'_, State<K>>, owner: K) -> Option<Turn<K>> {
        if state.taken.contains_key(&owner) {
            return None;
        }
        state.taken.insert(owner.clone(), Instant::now());
        Some(Turn {
            turns: Arc::clone(self),
            owner,
        })
    }

    /// Has something dropped by a thread in the owner's turn.
    fn leave(self: &Arc<Self>, owner: K, left: Left) {
        let mut state = self.state();
        state.left.entry(owner.clone()).or_default().push(left);
        // The holder of the turn drops it; the end of a turn starts a thread for what is left.
        drop(self.begin(state, owner));
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Turn<K> {
    /// Works on a thread to the end, also if the caller leaves.
    async fn work<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Aborted> {
        let (answer, answered) = oneshot::channel();
        let worked = spawn_blocking(move || {
            let left = self.turns.state().left.remove(&self.owner);
            drop(left);
            let unclaimed = Unclaimed {
                value: Some(work()),
                turns: Arc::clone(&self.turns),
                owner: self.owner.clone(),
            };
            if let Err(mut unclaimed) = answer.send(unclaimed) {
                // The caller has left.
                drop(unclaimed.value.take());
            }
        });
        let unclaimed = answered.await;
        worked.await?;
        match unclaimed.ok().and_then(|mut one| one.value.take()) {
            Some(result) => Ok(result),
            None => unreachable!("a thread that ended well has answered"),
        }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Drop for Turn<K> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.turns.state();
            let left = state.left.remove(&self.owner);
            if left.is_none() {
                state.taken.remove(&self.owner);
            }
            left
        };
        let Some(left) = left else {
            self.turns.ended.notify_all();
            self.turns.changed.notify_waiters();
            return;
        };
        let next = Self {
            turns: Arc::clone(&self.turns),
            owner: self.owner.clone(),
        };
        let end = move || {
            drop(left);
            drop(next);
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(end)),
            // Without a runtime this is a thread that may block.
            Err(_) => end(),
        }
    }
}

impl<T: Send + 'static, K: Clone + Eq + Hash + Send + 'static> Unclaimed<T, K> {
    /// The value, for a thread that runs in the owner's turn.
    pub(crate) fn claim(mut self) -> T {
        match self.value.take() {
            Some(value) => value,
            None => unreachable!("it is there until it is claimed"),
        }
    }
}

impl<T: Send + 'static, K: Clone + Eq + Hash + Send + 'static> Drop for Unclaimed<T, K> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take()
            && std::mem::needs_drop::<T>()
        {
            self.turns.leave(self.owner.clone(), Box::new(value));
        }
    }
}

#[cfg(test)]
mod tests;
