//! Reads what the guest sends.
//!
//! Invariant: it waits for no client and no writer. What no client gets is read at a bounded speed, and before an
//! answer to the last greeting nothing reaches a session.
//! Failure: the connection ends, and with it all sessions.

use std::sync::Arc;

use guestapi::from_guest::Kind;
use guestapi::{Decoder, FromGuest, GuestHello, MAX_FRAME_OF_GUEST, OLDEST, VERSION};
use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

use super::greeting::{Greeted, Greeting};
use super::{Outbox, Version};
use crate::guest::Error;
use crate::guest::allowance::Allowance;
use crate::guest::sessions::{Sessions, printable};
use crate::guest::silence::Silence;

/// Bytes that are read at once.
const READ: usize = 32 << 10;

/// Overhead of frames that is no flood: output in pieces of a few bytes.
const OVERHEAD: usize = 8;

/// What the guest sends, and whom it concerns.
pub(super) struct Reader {
    pub(super) sessions: Arc<Sessions>,
    pub(super) outbox: Outbox,
    pub(super) greets: watch::Sender<Greeted>,
    pub(super) greeting: Arc<Greeting>,
    pub(super) silence: Arc<Silence>,
}

impl Reader {
    pub(super) async fn run(mut self, guest: OwnedReadHalf) {
        let broken = self.outbox.broken.clone();
        broken.run_until_cancelled(self.read(guest)).await;
        broken.cancel();
        // First the end, then that of the sessions: one that starts now notices one of them.
        drop(self.greets);
        self.sessions.fail(&Error::Lost);
    }

    async fn read(&mut self, mut guest: OwnedReadHalf) {
        let mut decoder = Decoder::new(MAX_FRAME_OF_GUEST);
        let mut allowance = Allowance::default();
        let mut buffer = vec![0; READ];
        let mut pending = 0;
        self.greeting.send(&self.outbox);
        while let Ok(length @ 1..) = guest.read(&mut buffer).await {
            pending += length;
            for message in decoder.feed::<FromGuest>(&buffer[..length]) {
                pending = pending.saturating_sub(OVERHEAD * self.handle(message));
            }
            // What has arrived of one frame is not surplus yet.
            if let Some(surplus) = pending.checked_sub(MAX_FRAME_OF_GUEST) {
                pending = MAX_FRAME_OF_GUEST;
                allowance.spend(surplus).await;
            }
        }
    }

    /// Returns the bytes that a client gets.
    fn handle(&mut self, message: FromGuest) -> usize {
        self.silence.end();
        match message.kind {
            // A kind of a later version, which the guest does not send to us.
            None => 0,
            Some(Kind::GuestHello(hello)) => {
                self.hello(&hello);
                0
            }
            // What belongs to a connection of before.
            Some(_) if !matches!(*self.greets.borrow(), Greeted::Yes(_)) => 0,
            Some(other) => {
                let (delivered, broken) = self.sessions.handle(other);
                if let Some(session) = broken {
                    self.outbox.notify(guestapi::Close { session });
                }
                delivered
            }
        }
    }

    fn hello(&mut self, hello: &GuestHello) {
        if hello.connection == 0 {
            // The agent has started: it knows nothing of what another one had. A session that begins
            // meanwhile is either lost, or starts after the greeting.
            self.greets.send_replace(Greeted::NotYet);
            self.greeting.send(&self.outbox);
            self.sessions.fail(&Error::Lost);
        } else if self.greeting.takes(hello.connection) {
            let answer = match hello.version {
                version @ OLDEST..=VERSION => Greeted::Yes(Version {
                    protocol: version,
                    program: printable(&hello.program),
                    watches_freezes: hello.watches_freezes,
                }),
                _ => Greeted::Incompatible,
            };
            self.greets.send_replace(answer);
        }
    }
}
