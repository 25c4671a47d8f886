//! The places of a socket: how many connections it serves, and how many of their requests wait.
//!
//! Invariant: a connection takes a place while it is silent and while a short request of it is
//! answered. A request that may wait for plugins or for a sandbox gives the place back while it
//! does, so that short requests are always served.
//! Failure: a request that finds [`MAX_WAITING`] others waiting is refused.

use std::sync::Arc;

use tapmanager::wire::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections served at once; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
/// Requests that wait at once: each keeps a descriptor.
pub(super) const MAX_WAITING: usize = 1024;

/// The places of one socket; clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Places {
    connections: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    held: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        }
    }

    /// A place, once there is one.
    pub(super) async fn next(&self) -> Place {
        let mut place = Place {
            places: self.clone(),
            held: None,
        };
        place.hold().await;
        place
    }
}

impl Place {
    /// Takes the place again after [`Self::leave`].
    pub(super) async fn hold(&mut self) {
        if self.held.is_none() {
            // It is never closed.
            self.held = Arc::clone(&self.places.connections)
                .acquire_owned()
                .await
                .ok();
        }
    }

    /// Gives the place to another connection while a request waits, which ends when the result is
    /// dropped; `None` when too many do.
    pub(super) fn leave(&mut self) -> Option<OwnedSemaphorePermit> {
        let waiting = Arc::clone(&self.places.waiting).try_acquire_owned().ok()?;
        self.held = None;
        Some(waiting)
    }
}

/// Whether a request may wait for plugins, or for what another request does with its sandbox.
pub(super) const fn may_wait(request: &Request) -> bool {
    match request {
        Request::Hello { .. }
        | Request::List {}
        | Request::Status {}
        | Request::Counters { .. } => false,
        Request::Add(_)
        | Request::Get { .. }
        | Request::Check { .. }
        | Request::Del { .. }
        | Request::Gc { .. }
        | Request::Routes { .. }
        | Request::PrepareStart(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::unconstrained;

    use super::*;

    #[tokio::test]
    async fn requests_that_wait_take_no_place_and_are_bounded() {
        let places = Places::new();
        let mut waiting = Vec::new();
        for _ in 0..MAX_WAITING {
            let mut place = places.next().await;
            waiting.push((place.leave().unwrap(), place));
        }
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(places.next().await);
        }
        let one_more = unconstrained(places.next()).now_or_never();
        assert!(one_more.is_none());
        assert!(silent[0].leave().is_none(), "one request too many");

        // One has its answer and says more: it waits for a place.
        let (turn, mut answered) = waiting.pop().unwrap();
        drop(turn);
        let held = unconstrained(answered.hold()).now_or_never();
        assert!(held.is_none());
        assert!(silent[0].leave().is_some());
        answered.hold().await;
        answered.hold().await;
        assert!(answered.held.is_some());
    }
}
