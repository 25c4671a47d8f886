//! The thread that writes changed files, and the lock that it shares with all requests.
//!
//! Invariant: one thread writes; a change waits for at most [`PACE`] before its write begins, a
//! first connection not at all. The file with the boot ID is written only after every other one.
//! Failure: a file that cannot be written stays due, is logged once per streak of failures, and is
//! tried again every [`RETRY`].

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::cache::{Cache, Ids, Slot};
use super::load::{Loaded, Place};
use super::owners::Owners;
use super::{BackendIndex, Kind, files};

/// Shortest time between two rounds of writing.
const PACE: Duration = Duration::from_millis(200);

/// Time between attempts while writing fails.
const RETRY: Duration = Duration::from_secs(1);

/// What the memory and its writer share.
#[derive(Debug)]
pub(super) struct Shared {
    place: Place,
    state: Mutex<State>,
    /// Something is due, or the pace does not matter any more.
    wake: Condvar,
    /// A round has ended.
    written: Condvar,
}

/// Everything that is remembered.
#[derive(Debug)]
pub(super) struct State {
    pub(super) owners: Owners,
    pub(super) caches: Vec<Cache>,
    /// Files that differ from memory.
    pub(super) dirty: BTreeSet<Slot>,
    writing: bool,
    /// Callers that wait for the disk.
    flushing: usize,
    closing: bool,
}

impl State {
    /// What one backend has said.
    pub(super) fn cache(&self, backend: BackendIndex) -> Option<&Cache> {
        self.caches.get(backend.0)
    }

    fn hurried(&self) -> bool {
        let first = self.dirty.first();
        self.closing || self.flushing > 0 || matches!(first, Some(Slot::Connected(_)))
    }

    fn payload(&self, slot: Slot) -> Vec<u8> {
        match slot {
            Slot::Connected(_) | Slot::Boot => Vec::new(),
            Slot::List(backend, kind) => {
                let list = self.cache(backend).and_then(|cache| cache.list(kind));
                list.map(|list| list.to_vec()).unwrap_or_default()
            }
            Slot::Statuses(backend, kind) => {
                let statuses = self.cache(backend).map(|cache| cache.statuses(kind));
                statuses.unwrap_or_default().encode_to_vec()
            }
            Slot::Ids(backend) => {
                let ids = |kind| self.owners.ids(backend, kind);
                let [sandboxes, containers, images] = Kind::ALL.map(ids);
                Ids {
                    sandboxes,
                    containers,
                    images,
                }
                .encode_to_vec()
            }
        }
    }
}

impl Shared {
    /// Holds what was loaded.
    pub(super) fn new(place: Place, loaded: Loaded) -> Self {
        let Loaded {
            owners,
            caches,
            dirty,
        } = loaded;
        let state = State {
            owners,
            caches,
            dirty,
            writing: false,
            flushing: 0,
            closing: false,
        };
        Self {
            place,
            state: Mutex::new(state),
            wake: Condvar::new(),
            written: Condvar::new(),
        }
    }

    /// Looks at the state.
    pub(super) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.lock())
    }

    /// Changes the state; wakes the writer if a file is due.
    pub(super) fn change(&self, write: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        write(&mut state);
        if !state.dirty.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Waits until nothing is due.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        state.flushing += 1;
        self.wake.notify_one();
        let due = |state: &mut State| state.writing || !state.dirty.is_empty();
        let (mut state, timed_out) = self
            .written
            .wait_timeout_while(state, limit, due)
            .unwrap_or_else(PoisonError::into_inner);
        state.flushing -= 1;
        !timed_out.timed_out()
    }

    /// Lets the writer end after one more round.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut failing = false;
        loop {
            let state = self.lock();
            let idle = |state: &mut State| state.dirty.is_empty() && !state.closing;
            let mut state = self
                .wake
                .wait_while(state, idle)
                .unwrap_or_else(PoisonError::into_inner);
            let due = std::mem::take(&mut state.dirty);
            if due.is_empty() {
                return;
            }
            state.writing = true;
            drop(state);
            let left = self.write(due, &mut failing);
            failing = !left.is_empty();
            let mut state = self.lock();
            state.writing = false;
            state.dirty.extend(left);
            self.written.notify_all();
            if state.closing && failing {
                return;
            }
            self.pause(state, if failing { RETRY } else { PACE }, failing);
        }
    }

    /// Waits for the next round, not at all when a caller waits for the write and the disk works.
    fn pause(&self, state: MutexGuard<'_, State>, time: Duration, failing: bool) {
        let calm = |state: &mut State| !(state.closing || !failing && state.hurried());
        let waited = self.wake.wait_timeout_while(state, time, calm);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// One round; returns what could not be written.
    fn write(&self, due: BTreeSet<Slot>, failing: &mut bool) -> BTreeSet<Slot> {
        let mut left = BTreeSet::new();
        for slot in due {
            if slot == Slot::Boot && !left.is_empty() {
                left.insert(slot);
                continue;
            }
            let payload = self.read(|state| state.payload(slot));
            let path = self.place.path(slot);
            let started = Instant::now();
            if let Err(reason) = files::replace(&path, &self.place.boot_id, &payload) {
                if !*failing {
                    tracing::error!(path = %path.display(), error = %reason, "state not written");
                    *failing = true;
                }
                left.insert(slot);
            } else {
                tracing::trace!(path = %path.display(), took = ?started.elapsed(), "state written");
            }
        }
        left
    }
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("state-writer".into())
        .spawn(move || shared.run())
}
