//! Wakes all that look at the world.
//!
//! Tokio's `watch` wakes those that wait in an order of chance; this wakes them in the order in which they
//! began to wait.
//!
//! Invariant: a change that comes while nothing waits is seen by the next wait.
//! Failure: none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The sending side. Clones send the same changes.
#[derive(Clone, Default)]
pub(super) struct Signal(Arc<State>);

#[derive(Default)]
struct State {
    changes: AtomicU64,
    waiting: Notify,
}

impl Signal {
    pub(super) fn send(&self) {
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        self.0.waiting.notify_waiters();
    }

    /// Whether anything was ever sent.
    pub(super) fn was_sent(&self) -> bool {
        self.0.changes.load(Ordering::Relaxed) > 0
    }

    /// Returns once something was sent.
    pub(super) async fn sent(&self) {
        Changes {
            signal: self.clone(),
            seen: 0,
        }
        .changed()
        .await;
    }

    /// What is sent from now on.
    pub(super) fn changes(&self) -> Changes {
        Changes {
            signal: self.clone(),
            seen: self.0.changes.load(Ordering::Relaxed),
        }
    }
}

/// The receiving side.
pub(super) struct Changes {
    signal: Signal,
    seen: u64,
}

impl Changes {
    /// Returns when there was a change since the last call.
    pub(super) async fn changed(&mut self) {
        loop {
            let state = &self.signal.0;
            let woken = state.waiting.notified();
            let changes = state.changes.load(Ordering::Relaxed);
            if changes != self.seen {
                self.seen = changes;
                return;
            }
            woken.await;
        }
    }
}
