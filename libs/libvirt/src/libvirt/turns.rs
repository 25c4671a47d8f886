//! Calls of which only one is made at a time.
//!
//! Invariant: a turn ends when both the caller and the thread inside libvirt have dropped it, so
//! that a call which outlived its deadline still has its turn. Callers that wait for one hold no
//! permit.
//! Failure: none; callers limit their wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

/// The exclusive right to a call.
pub(super) type Turn = Arc<OwnedMutexGuard<()>>;

/// What is done by one caller at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A command to the agent of a guest.
    Agent(Uuid),
    /// The kill of a machine.
    Kill(Uuid),
    /// A look at a machine.
    State(Uuid),
    /// A request to an emulator.
    Emulator(Uuid),
    /// A look at libvirt or at all domains, by its name.
    Survey(&'static str),
}

/// Who does what.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until no other call with this key is in progress.
    pub(super) async fn take(&self, key: Key) -> Turn {
        let place = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, place| Arc::strong_count(place) > 1);
            Arc::clone(all.entry(key).or_default())
        };
        Arc::new(place.lock_owned().await)
    }

    /// Whether a request waits for the turn that another one has.
    #[cfg(test)]
    pub(super) fn is_waited_for(&self, key: Key) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&key)
            .is_some_and(|place| Arc::strong_count(place) > 2)
    }

    #[cfg(test)]
    pub(super) fn is_taken(&self, key: Key) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&key).is_some_and(|place| place.try_lock().is_err())
    }
}
