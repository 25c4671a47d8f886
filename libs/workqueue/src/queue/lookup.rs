//! Read-only queries of a queue.
//!
//! Invariant: no clock and no search but over what is in flight.
//! Failure: none.

use std::hash::Hash;
use std::time::Duration;

use super::{Queue, nanos};
use crate::{Metrics, Running};

impl<K: Hash + Eq + Clone, M: Metrics> Queue<K, M> {
    /// How often the key was pushed with back-off since it was last forgotten.
    #[must_use]
    pub fn failures(&self, key: &K) -> u8 {
        self.slots
            .find(key)
            .map_or(0, |slot| self.slots[slot].failures)
    }

    /// Number of ready keys, those included that are also in flight; keys whose time has not come
    /// are not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ready
    }

    /// Whether no key is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Number of keys whose time has not come.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When the next waiting key becomes ready.
    #[must_use]
    pub fn next_ready_at(&self) -> Option<Duration> {
        self.waiting.first().map(|due| Duration::from_nanos(due.at))
    }

    /// What is in flight.
    #[must_use]
    pub fn running(&self, now: Duration) -> Running {
        let mut running = Running {
            count: self.flights.len(),
            ..Running::default()
        };
        for flight in &self.flights {
            let age = Duration::from_nanos(nanos(now).saturating_sub(flight.since));
            running.unfinished += age;
            running.longest = running.longest.max(age);
        }
        running
    }
}
