//! Single flight: concurrent pulls of one URL share one download.
//!
//! Invariant: of those at the table of one URL, one leads at a time; when it ends, its outcome is
//! for all who sat down before. A leader that goes away without an outcome is followed by the next.
//! Failure: all callers get the leader's error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::digest::Digest;
use super::error::Error;
use super::progress::{Meter, Progress};

/// What a pull brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrived {
    /// The image's id: of its disk.
    pub(super) digest: Digest,
    /// The digest by which names mean it: of the download, or of the registry's manifest.
    pub(super) content: Digest,
}

/// What a download led to: the content, which is in the store or was refused.
pub(super) type Outcome = Result<Arrived, Error>;

#[derive(Debug, Default)]
struct Flight {
    /// The image's name as the first of them has it; empty for a part of another download.
    name: String,
    meter: Meter,
    outcome: Arc<tokio::sync::Mutex<Option<Outcome>>>,
}

type Flights = Arc<Mutex<HashMap<String, Arc<Flight>>>>;

/// The downloads in progress, by the key of their source, and `/` and a mark of their credentials.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    flights: Flights,
}

/// A place at a table; giving it up as the last one clears the table.
#[derive(Debug)]
pub(super) struct Membership {
    flights: Flights,
    key: String,
    flight: Arc<Flight>,
}

/// The permission to download, and the obligation to report the result.
#[derive(Debug)]
pub(super) struct Leadership {
    membership: Membership,
    outcome: OwnedMutexGuard<Option<Outcome>>,
}

/// What a participant has to do.
#[derive(Debug)]
pub(super) enum Turn {
    /// Download.
    Lead(Leadership),
    /// Use what another one downloaded.
    Follow(Outcome),
}

impl Downloads {
    /// Waits for the outcome of a download in progress, or for the right to download.
    pub(super) async fn turn(&self, key: String, name: &str) -> Turn {
        let membership = self.join(key, name);
        let outcome = Arc::clone(&membership.flight.outcome).lock_owned().await;
        match &*outcome {
            Some(outcome) => Turn::Follow(outcome.clone()),
            None => Turn::Lead(Leadership {
                membership,
                outcome,
            }),
        }
    }

    /// How far the download in progress is, if there is one. Of those with different credentials
    /// the one that is furthest: they share the download itself, which only one of them measures.
    pub(super) fn progress(&self, key: &str) -> Option<Progress> {
        let flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let of_source = |(other, _): &(&String, _)| other.split('/').next() == Some(key);
        let found = flights.iter().filter(of_source);
        found
            .map(|(_, flight)| flight.meter.read())
            .max_by_key(|progress| progress.received)
    }

    /// The names and the progress of all downloads, by name.
    pub(super) fn all(&self) -> Vec<(String, Progress)> {
        let flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let named = flights.values().filter(|flight| !flight.name.is_empty());
        let mut all: Vec<_> = named
            .map(|flight| (flight.name.clone(), flight.meter.read()))
            .collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    fn join(&self, key: String, name: &str) -> Membership {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let flight = flights.entry(key.clone()).or_insert_with(|| {
            Arc::new(Flight {
                name: name.to_owned(),
                ..Flight::default()
            })
        });
        let flight = Arc::clone(flight);
        Membership {
            flights: Arc::clone(&self.flights),
            key,
            flight,
        }
    }
}

impl Leadership {
    /// Where to report progress.
    pub(super) fn meter(&self) -> &Meter {
        &self.membership.flight.meter
    }

    /// Publishes the outcome to all members. Pulls that begin later download again.
    pub(super) fn publish(mut self, outcome: Outcome) {
        self.membership.clear(|_| true);
        *self.outcome = Some(outcome);
    }
}

impl Membership {
    fn clear(&self, when: impl FnOnce(&Arc<Flight>) -> bool) {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = |flight: &&Arc<Flight>| Arc::ptr_eq(flight, &self.flight);
        if flights.get(&self.key).filter(ours).is_some_and(when) {
            flights.remove(&self.key);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The references of the map and of this member: no other member is left.
        self.clear(|flight| Arc::strong_count(flight) <= 2);
    }
}
