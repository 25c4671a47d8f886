//! The connection to the agent of one machine.
//!
//! Invariant: the reader waits for no client and no writer; frames for the guest wait in a queue of
//! bounded length. A guest whose agent restarts is greeted again, and its sessions end. One that has
//! not answered is greeted again whenever a request needs its agent.
//! Failure: a connection that ends is not alive; the next request makes another one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use guestapi::Request;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::sessions::Sessions;
use super::silence::Silence;
use crate::machine_socket::MachineSocket;
use greeting::{GREET_AGAIN, Greeted, Greeting};
use outbox::write;
use reader::Reader;

mod greeting;
mod outbox;
mod reader;

pub(super) use greeting::{Version, number};
pub(super) use outbox::Outbox;

/// Time for the emulator to accept.
const CONNECT: Duration = Duration::from_secs(5);
/// Frames with requests and input that wait for the guest.
const WAITING: usize = 8;
/// Notices that wait for the guest: several times what its sessions cause.
const NOTICES: usize = 1024;

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) sessions: Arc<Sessions>,
    pub(super) outbox: Outbox,
    greeted: watch::Receiver<Greeted>,
    greeting: Arc<Greeting>,
    pub(super) silence: Arc<Silence>,
    since: Instant,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Link {
    pub(super) async fn connect(socket: &MachineSocket) -> io::Result<Arc<Self>> {
        let stream = tokio::time::timeout(CONNECT, socket.connect()).await??;
        Ok(Self::over(stream))
    }

    pub(super) fn over(stream: UnixStream) -> Arc<Self> {
        let (from_guest, to_guest) = stream.into_split();
        let (requests, waiting) = mpsc::channel(WAITING);
        let (notices, urgent) = mpsc::channel(NOTICES);
        let broken = CancellationToken::new();
        let outbox = Outbox {
            requests,
            notices,
            broken: broken.clone(),
        };
        let (greets, greeted) = watch::channel(Greeted::NotYet);
        let sessions = Arc::<Sessions>::default();
        let greeting = Arc::<Greeting>::default();
        let silence = Arc::<Silence>::default();
        let reader = Reader {
            sessions: Arc::clone(&sessions),
            outbox: outbox.clone(),
            greets,
            greeting: Arc::clone(&greeting),
            silence: Arc::clone(&silence),
        };
        let writer = write(to_guest, waiting, urgent, Arc::clone(&sessions));
        let tasks = [
            tokio::spawn(reader.run(from_guest)),
            tokio::spawn(async move {
                broken.run_until_cancelled_owned(writer).await;
            }),
        ];
        Arc::new(Self {
            sessions,
            outbox,
            greeted,
            greeting,
            silence,
            since: Instant::now(),
            _tasks: tasks.map(AbortOnDropHandle::new),
        })
    }

    /// Whether the connection lasts: its reader runs.
    pub(super) fn is_alive(&self) -> bool {
        self.greeted.has_changed().is_ok()
    }

    /// The agent did not answer in time: it is not used until it sends something.
    pub(super) fn doubt(&self) {
        self.silence.doubt();
    }

    /// Ends the connection with all that uses it; the next request makes another one.
    pub(super) fn end(&self) {
        self.outbox.broken.cancel();
    }

    /// Requests an answer of an agent that is in use or in doubt; true when it has left an earlier
    /// probe without one.
    pub(super) fn probe(&self) -> bool {
        if self.sessions.is_empty() && !self.silence.is_doubtful() {
            self.silence.excuse();
            return false;
        }
        let is_silent = self.silence.probe();
        if self.silence.takes_probe() {
            // Every agent refuses a request without an action, and has answered with that.
            self.outbox.notify(Request {
                number: number(),
                action: None,
            });
        }
        is_silent
    }

    /// The versions of the agent, once it has answered; waits until `patience` after the connection
    /// was made.
    pub(super) async fn greeted(&self, patience: Duration) -> Option<Version> {
        if self.silence.is_doubtful() {
            return None;
        }
        if *self.greeted.borrow() == Greeted::NotYet {
            self.greeting.again(&self.outbox);
        }
        let mut greeted = self.greeted.clone();
        let deadline = self.since + patience;
        let mut pause = GREET_AGAIN;
        loop {
            let until = deadline.min(Instant::now() + pause);
            let answered = greeted.wait_for(|greeted| *greeted != Greeted::NotYet);
            match tokio::time::timeout_at(until, answered).await {
                Ok(answer) => match &*answer.ok()? {
                    Greeted::Yes(version) => return Some(version.clone()),
                    Greeted::NotYet | Greeted::Incompatible => return None,
                },
                Err(_) if until == deadline => return None,
                Err(_) => {
                    self.greeting.again(&self.outbox);
                    pause *= 2;
                }
            }
        }
    }
}
