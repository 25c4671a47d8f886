//! Greetings: the agent of a guest answers the last one, and ends what it runs when it is greeted.
//!
//! Invariant: no greeting follows an answer: one lock has both. An answer to an earlier greeting counts for nothing.
//! Failure: none here; a greeting without an answer is repeated.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guestapi::{HostHello, OLDEST, VERSION};
use tokio::time::Instant;

use super::Outbox;

/// Least time between two greetings.
pub(super) const GREET_AGAIN: Duration = Duration::from_millis(500);

/// The greeting that counts: the last one. The guest ends what it runs when it is greeted, so that no
/// greeting may follow an answer: one lock has both.
#[derive(Debug, Default)]
pub(super) struct Greeting(Mutex<Option<Last>>);

/// The last greeting.
#[derive(Debug, Clone, Copy)]
struct Last {
    connection: u64,
    at: Instant,
    is_answered: bool,
}

/// What an agent has answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::guest) struct Version {
    /// Of the protocol.
    pub(in crate::guest) protocol: u32,
    /// Of its program, shortened.
    pub(in crate::guest) program: String,
    /// It thaws what it froze also when it is killed.
    pub(in crate::guest) watches_freezes: bool,
}

/// What the guest has answered to the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Greeted {
    NotYet,
    Yes(Version),
    /// It speaks no version of ours.
    Incompatible,
}

impl Greeting {
    pub(super) fn send(&self, outbox: &Outbox) {
        Self::greet(&mut self.lock(), outbox);
    }

    /// Greets once more when the last greeting has no answer. A guest may get it before its kernel
    /// knows that the host is connected, and then cannot answer.
    pub(super) fn again(&self, outbox: &Outbox) {
        let is_due = |last: Last| !last.is_answered && last.at.elapsed() >= GREET_AGAIN;
        let mut last = self.lock();
        // The first one comes from the reader.
        if last.is_some_and(is_due) {
            Self::greet(&mut last, outbox);
        }
    }

    fn greet(last: &mut Option<Last>, outbox: &Outbox) {
        let connection = number();
        *last = Some(Last {
            connection,
            at: Instant::now(),
            is_answered: false,
        });
        outbox.notify(HostHello {
            oldest: OLDEST,
            newest: VERSION,
            connection,
        });
    }

    /// Takes an answer, if it is that to the last greeting.
    pub(super) fn takes(&self, connection: u64) -> bool {
        let mut last = self.lock();
        let last = last.as_mut().filter(|last| last.connection == connection);
        last.is_some_and(|last| {
            last.is_answered = true;
            true
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Last>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random number but 0.
pub(in crate::guest) fn number() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    (high ^ low).max(1)
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_greeting_follows_an_answer() {
        let (requests, _waiting) = mpsc::channel(1);
        let (notices, mut urgent) = mpsc::channel(8);
        let outbox = Outbox {
            requests,
            notices,
            broken: CancellationToken::new(),
        };
        let greeting = Greeting::default();
        greeting.again(&outbox);
        assert!(urgent.try_recv().is_err(), "the reader greets first");
        greeting.send(&outbox);
        urgent.try_recv().unwrap();
        tokio::time::advance(GREET_AGAIN).await;
        greeting.again(&outbox);
        urgent.try_recv().expect("without an answer it is repeated");
        let connection = greeting.lock().unwrap().connection;
        assert!(!greeting.takes(connection ^ 1), "of another greeting");
        assert!(greeting.takes(connection));
        // A request that saw no answer yet comes here after it.
        tokio::time::advance(GREET_AGAIN).await;
        greeting.again(&outbox);
        assert!(urgent.try_recv().is_err(), "the guest ends what it runs");
        // The agent has started again.
        greeting.send(&outbox);
        urgent.try_recv().unwrap();
        tokio::time::advance(GREET_AGAIN).await;
        greeting.again(&outbox);
        urgent.try_recv().expect("that one has no answer");
    }
}
