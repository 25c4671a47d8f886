//! Sandboxes whose stop is requested and not recorded yet.
//!
//! A stop needs the lock of its sandbox to record itself, and a creation holds that for as long as
//! it copies an image. So the request is known here first: it ends the copy, and the creations that
//! wait for the lock.
//!
//! Invariant: an entry exists only while a stop is requested, or work that a stop ends is in
//! progress.
//! Failure: none; a stop that cannot be recorded leaves its sandbox as it was.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use podspec::SandboxId;
use tokio_util::sync::CancellationToken;

type Entries = Arc<Mutex<HashMap<SandboxId, Entry>>>;

/// The requests for stops.
#[derive(Debug, Default)]
pub(in crate::vm) struct Stops(Entries);

#[derive(Debug, Default)]
struct Entry {
    token: CancellationToken,
    users: usize,
}

/// A stop, or work that one ends, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Stop {
    entries: Entries,
    sandbox: SandboxId,
    token: CancellationToken,
}

impl Stops {
    /// A stop of this sandbox is requested, until the result is dropped.
    pub(in crate::vm) fn request(&self, sandbox: &SandboxId) -> Stop {
        let stop = self.watch(sandbox);
        stop.token.cancel();
        stop
    }

    /// What work for this sandbox is ended by.
    pub(in crate::vm) fn watch(&self, sandbox: &SandboxId) -> Stop {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(sandbox.clone()).or_default();
        entry.users += 1;
        Stop {
            entries: Arc::clone(&self.0),
            sandbox: sandbox.clone(),
            token: entry.token.clone(),
        }
    }

    /// Whether a stop would end some work of this sandbox.
    #[cfg(test)]
    pub(in crate::vm) fn is_watched(&self, sandbox: &SandboxId) -> bool {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.contains_key(sandbox)
    }

    /// Whether a stop of this sandbox is requested.
    pub(in crate::vm) fn is_requested(&self, sandbox: &SandboxId) -> bool {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(sandbox);
        entry.is_some_and(|entry| entry.token.is_cancelled())
    }
}

impl Stop {
    /// Returns when a stop is requested.
    pub(in crate::vm) async fn requested(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get_mut(&self.sandbox) {
            entry.users -= 1;
            if entry.users == 0 {
                entries.remove(&self.sandbox);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_is_known_to_work_before_and_after_it_and_to_no_later_work() {
        let stops = Stops::default();
        let one = SandboxId::generate();
        let other = SandboxId::generate();
        let earlier = stops.watch(&one);
        let stop = stops.request(&one);
        earlier.requested().await;
        stops.watch(&one).requested().await;
        assert!(stops.is_requested(&one) && !stops.is_requested(&other));
        drop(stop);
        assert!(stops.is_requested(&one), "the earlier work has not ended");
        drop(earlier);
        assert!(!stops.is_requested(&one));
        assert!(stops.0.lock().unwrap().is_empty());
    }
}
