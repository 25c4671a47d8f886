//! Messages to the host.
//!
//! Invariant: each message is written whole, or its rest is lost with the host that it was for.
//! Failure: false: no host is connected, or the port is lost, which its reader notices.

use std::sync::{Arc, Mutex, PoisonError};

use guestapi::{FromGuest, encode};

use crate::port::Port;

/// Where messages are written.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    port: &'a Port,
    turn: Mutex<()>,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(port: &'a Port) -> Arc<Self> {
        let turn = Mutex::new(());
        Arc::new(Self { port, turn })
    }

    /// Sends a message; blocks while the host does not read.
    pub(crate) fn send(&self, message: impl Into<FromGuest>) -> bool {
        let frame = encode(&message.into());
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.port.write_all(&frame).is_ok()
    }
}
