//! The readiness probes that this node makes, and their last results.
//!
//! Invariant: a machine is probed exactly while it runs and its record has a probe. A bounded number
//! of connections is tried at a time, in all and for one namespace, each with a deadline that begins
//! with the attempt. Connections go to addresses that were checked right before, and never to the
//! node's own or to special ones: the daemon is in the node's network, and the address may be a
//! tenant's choice.
//! Failure: none; an address that cannot be reached is a result.

mod tally;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use podspec::ContainerId;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{self, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

pub(super) use self::tally::Outcome;
use self::tally::Tally;
use crate::images;
use crate::platform::Platform;
use crate::vm::{Container, Containers, TcpProbe};

/// Connections that are tried at the same time.
const AT_ONCE: usize = 128;

/// The same for the machines of one namespace: one with machines that never answer does not delay
/// those of others.
const PER_NAMESPACE: usize = 16;

/// Longest attempt: the kernel gives up a connection at about that time, too.
const LONGEST: Duration = Duration::from_secs(120);

/// Of these addresses those that a program in the node's network may connect to. Blocks.
type Admit = fn(Vec<IpAddr>) -> Vec<IpAddr>;

/// A probe that is being made.
#[derive(Debug)]
struct Entry {
    probe: TcpProbe,
    tally: Tally,
    /// The loop, which ends with the entry.
    _attempts: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<ContainerId, Entry>,
    /// By namespace; the loops of its probes keep them.
    places: HashMap<String, Weak<Semaphore>>,
}

impl State {
    fn places_of(&mut self, namespace: &str) -> Arc<Semaphore> {
        if let Some(known) = self.places.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        self.places.retain(|_, places| places.strong_count() > 0);
        let new = Arc::new(Semaphore::new(PER_NAMESPACE));
        let weak = Arc::downgrade(&new);
        self.places.insert(namespace.to_owned(), weak);
        new
    }
}

/// The readiness probes of this node.
#[derive(Debug)]
pub struct Probes<P: Platform> {
    containers: Arc<Containers<P>>,
    admit: Admit,
    state: Mutex<State>,
    places: Semaphore,
    generation: watch::Sender<u64>,
}

impl<P: Platform> Probes<P> {
    /// Nothing is probed yet; see [`Self::follow`].
    pub fn new(containers: Arc<Containers<P>>) -> Self {
        Self::admitting(containers, images::foreign_only)
    }

    fn admitting(containers: Arc<Containers<P>>, admit: Admit) -> Self {
        Self {
            containers,
            admit,
            state: Mutex::default(),
            places: Semaphore::new(AT_ONCE),
            generation: watch::Sender::new(0),
        }
    }

    /// Probes the machines whose records say so, without end.
    pub async fn follow(self: Arc<Self>) {
        let mut changes = self.containers.changes();
        loop {
            changes.mark_unchanged();
            self.sync();
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The last result of a machine's present probe.
    pub(super) fn outcome(&self, row: &Container) -> Option<Outcome> {
        let state = self.lock();
        let entry = state.entries.get(&row.id)?;
        let is_present = row.probe.as_ref() == Some(&entry.probe);
        entry.tally.outcome().filter(|_| is_present)
    }

    /// Changes whenever a result does.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Begins and ends loops, as the records require.
    fn sync(self: &Arc<Self>) {
        let rows = self.containers.machines().into_iter();
        let probed: BTreeMap<_, _> = rows
            .filter(|row| row.phase.runs())
            .filter_map(|row| Some((row.id.clone(), (row.probe.clone()?, row))))
            .collect();
        let mut state = self.lock();
        state.entries.retain(|id, entry| {
            let present = probed.get(id).map(|(probe, _)| probe);
            present == Some(&entry.probe)
        });
        for (id, (probe, row)) in probed {
            if state.entries.contains_key(&id) {
                continue;
            }
            let sandbox = self.containers.sandbox_of(&row);
            let pod = sandbox.map(|sandbox| sandbox.config.metadata.clone());
            let places = state.places_of(&pod.unwrap_or_default().namespace);
            let attempts = Arc::clone(self).attempts(id.clone(), probe.clone(), places);
            let entry = Entry {
                probe,
                tally: Tally::default(),
                _attempts: AbortOnDropHandle::new(tokio::spawn(attempts)),
            };
            state.entries.insert(id, entry);
        }
    }

    async fn attempts(self: Arc<Self>, id: ContainerId, probe: TcpProbe, places: Arc<Semaphore>) {
        let period = Duration::from_secs(probe.period_seconds.max(1).into());
        let mut ticks = time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let outcome = self.attempt(&id, &probe, &places).await;
            let mut state = self.lock();
            // Another loop has taken the place of this one, which is about to be aborted.
            let entry = state.entries.get_mut(&id).filter(|e| e.probe == probe);
            let is_change = entry.is_some_and(|entry| entry.tally.take(outcome));
            drop(state);
            if is_change {
                tracing::debug!(container = %id, ?outcome, "readiness probe has another result");
                self.generation.send_modify(|generation| *generation += 1);
            }
        }
    }

    async fn attempt(&self, id: &ContainerId, probe: &TcpProbe, places: &Semaphore) -> Outcome {
        // They are never closed.
        let _of_namespace = places.acquire().await;
        let _of_node = self.places.acquire().await;
        let target = self.containers.probe_target(id, probe);
        let Some(target) = target else {
            return Outcome::NoAddress;
        };
        let admit = self.admit;
        let admitted = tokio::task::spawn_blocking(move || admit(vec![target])).await;
        if admitted.unwrap_or_default().is_empty() {
            return Outcome::NotAllowed;
        }
        let deadline = Duration::from_secs(probe.timeout_seconds.max(1).into()).min(LONGEST);
        let address = SocketAddr::new(target, probe.port.get());
        match time::timeout(deadline, TcpStream::connect(address)).await {
            Ok(Ok(_)) => Outcome::Connected,
            Ok(Err(_)) => Outcome::Refused,
            Err(_) => Outcome::TimedOut,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
