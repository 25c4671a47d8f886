//! The user's interrupt: Ctrl-C, and the signals with the same meaning.
//!
//! Invariant: a signal that arrives while no task waits is kept and seen by the next call.
//! Failure: none after the handlers are in place.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, which no longer end the process once this exists.
#[derive(Debug)]
pub(crate) struct Interrupts {
    int: Signal,
    term: Signal,
    hangup: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
