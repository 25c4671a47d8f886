//! Events of sandboxes and containers, for clients that follow them instead of listing.
//!
//! Invariant: each change of the state that lists show is one event, in commit order, with the pod
//! as it was directly after the change; times increase strictly. The daemon never waits for a
//! client.
//! Failure: [`Ended`] is the last item of a subscription: the client has missed events from then
//! on, and must list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podspec::{ContainerId, SandboxId};
use tokio::sync::mpsc;

use crate::clock;
use crate::metadata::Table;
use crate::sandbox::Sandbox;
use crate::vm::{Container, Part};

mod stage;

pub use stage::Change;
use stage::Stage;

/// Events that wait for a client. Past them the subscription ends.
const WAITING: usize = 1000;

/// Something that happened to a sandbox or a container.
#[derive(Debug, Clone)]
pub struct Event {
    /// The sandbox or the container.
    pub id: String,
    /// What happened.
    pub change: Change,
    /// Nanoseconds since the epoch; greater than that of the event before.
    pub at: i64,
    /// The pod's sandbox after the change; as it was last when the change is its deletion.
    pub sandbox: Option<Arc<Sandbox>>,
    /// The pod's containers after the change that lists show.
    pub containers: Vec<Arc<Container>>,
}

/// Why there are no more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The client reads more slowly than things happen.
    #[error(
        "the client is too slow: {WAITING} events wait for it. List sandboxes and containers, \
         then request the events again"
    )]
    TooSlow,
    /// The daemon stops.
    #[error("the daemon is stopping: request the events again when it is back")]
    Stopping,
}

/// What a client receives: [`Ended`] is the last.
pub type Subscription = mpsc::Receiver<Result<Event, Ended>>;

/// Makes events of the changes of two tables.
#[derive(Debug, Default)]
pub struct Events {
    state: Mutex<State>,
}

/// A copy of what lists show, which changes in the order of the events.
#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<SandboxId, Pod>,
    clients: Vec<mpsc::Sender<Result<Event, Ended>>>,
    last: i64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Pod {
    sandbox: Option<Arc<Sandbox>>,
    containers: BTreeMap<ContainerId, Arc<Container>>,
}

impl Events {
    /// Follows both tables.
    pub fn following(sandboxes: &Table<Sandbox>, containers: &Table<Container>) -> Arc<Self> {
        let events = Arc::new(Self::default());
        let of_sandboxes = Arc::clone(&events);
        sandboxes.observe(move |before, after| of_sandboxes.lock().sandbox(before, after));
        let of_containers = Arc::clone(&events);
        containers.observe(move |before, after| of_containers.lock().container(before, after));
        events
    }

    /// What happens from now on.
    pub fn subscribe(&self) -> Subscription {
        // The last place is for the reason of the end.
        let (sender, receiver) = mpsc::channel(WAITING + 1);
        let mut state = self.lock();
        if state.closed {
            end(&sender, Ended::Stopping);
        } else {
            state.clients.push(sender);
        }
        receiver
    }

    /// Ends all subscriptions, and those to come.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for client in state.clients.drain(..) {
            end(&client, Ended::Stopping);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn sandbox(&mut self, before: Option<&Arc<Sandbox>>, after: Option<&Arc<Sandbox>>) {
        let Some(id) = after.or(before).map(|sandbox| sandbox.id.clone()) else {
            return;
        };
        let stage = |sandbox: &Arc<Sandbox>| Stage::of_sandbox(sandbox.phase);
        let changes = Stage::changes(before.and_then(stage), after.and_then(stage));
        // A deleted sandbox is in the event of its deletion.
        self.pods.entry(id.clone()).or_default().sandbox = after.or(before).cloned();
        self.publish(&id, id.as_str(), &changes);
        if after.is_none() {
            self.forget(&id, |pod| pod.sandbox = None);
        }
    }

    fn container(&mut self, before: Option<&Arc<Container>>, after: Option<&Arc<Container>>) {
        let Some(container) = after.or(before) else {
            return;
        };
        let stage = |container: &Arc<Container>| Stage::of_container(container.phase);
        let changes = Stage::changes(before.and_then(stage), after.and_then(stage));
        if container.spec.part == Part::PodMachine {
            return;
        }
        let id = container.id.clone();
        let sandbox = container.sandbox.clone();
        match after.filter(|container| container.phase.is_listed()) {
            Some(container) => {
                let pod = self.pods.entry(sandbox.clone()).or_default();
                pod.containers.insert(id.clone(), Arc::clone(container));
            }
            None => self.forget(&sandbox, |pod| {
                pod.containers.remove(&id);
            }),
        }
        self.publish(&sandbox, id.as_str(), &changes);
    }

    /// Removes something of a pod, and the pod with its last part.
    fn forget(&mut self, id: &SandboxId, remove: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.get_mut(id) {
            remove(pod);
            if pod.sandbox.is_none() && pod.containers.is_empty() {
                self.pods.remove(id);
            }
        }
    }

    fn publish(&mut self, pod: &SandboxId, id: &str, changes: &[Change]) {
        for change in changes {
            self.last = clock::now().max(self.last + 1);
            let pod = self.pods.get(pod);
            let event = Event {
                id: id.to_owned(),
                change: *change,
                at: self.last,
                sandbox: pod.and_then(|pod| pod.sandbox.clone()),
                containers: pod.map_or_else(Vec::new, |p| p.containers.values().cloned().collect()),
            };
            self.clients.retain(|client| send(client, &event));
        }
    }
}

/// Whether the client receives further events.
fn send(client: &mpsc::Sender<Result<Event, Ended>>, event: &Event) -> bool {
    if client.is_closed() {
        return false;
    }
    if client.capacity() > 1 {
        return client.try_send(Ok(event.clone())).is_ok();
    }
    tracing::warn!(
        waiting = WAITING,
        "event stream ended: the client is too slow"
    );
    end(client, Ended::TooSlow);
    false
}

/// Sends the reason of the end; a client that has disconnected needs none.
fn end(client: &mpsc::Sender<Result<Event, Ended>>, reason: Ended) {
    let _ = client.try_send(Err(reason));
}

#[cfg(test)]
mod tests;
