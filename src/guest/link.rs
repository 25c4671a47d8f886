//! The connection to the agent of one machine.
//!
//! Invariant: the reader waits for no client and no writer; frames for the guest wait in a queue of
//! bounded length. A guest whose agent restarts is greeted again, and its sessions end. One that has
//! not answered is greeted again whenever its agent is requested.
//! Failure: a connection that ends is not alive; the next request makes another one.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use guestapi::from_guest::Kind;
use guestapi::{
    Decoder, FromGuest, GuestHello, HostHello, MAX_FRAME_OF_GUEST, OLDEST, Request, ToGuest,
    VERSION, encode, to_guest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Error;
use super::allowance::Allowance;
use super::sessions::{Sessions, printable};
use super::silence::Silence;
use crate::machine_socket::MachineSocket;

/// Time for the emulator to accept.
const CONNECT: Duration = Duration::from_secs(5);
/// Least time between two greetings.
const GREET_AGAIN: Duration = Duration::from_millis(500);
/// Bytes that are read at once.
const READ: usize = 32 << 10;
/// Frames with requests and input that wait for the guest.
const WAITING: usize = 8;
/// Notices that wait for the guest: several times what its sessions cause.
const NOTICES: usize = 1024;
/// Overhead of frames that is no flood: output in pieces of a few bytes.
const OVERHEAD: usize = 8;

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

/// The greeting that counts: the last one. The guest ends what it runs when it is greeted, so that no
/// greeting may follow an answer: one lock has both.
#[derive(Debug, Default)]
struct Greeting(Mutex<Option<Last>>);

/// The last greeting.
#[derive(Debug, Clone, Copy)]
struct Last {
    connection: u64,
    at: Instant,
    is_answered: bool,
}

/// Frames for the guest.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    /// Requests and input; each waits for room.
    requests: mpsc::Sender<Waiting>,
    /// Acknowledgements, ends and greetings.
    notices: mpsc::Sender<Bytes>,
    /// The connection is of no use any more.
    broken: CancellationToken,
}

/// A request or input that waits for room.
#[derive(Debug)]
struct Waiting {
    frame: Bytes,
    /// The session that it starts.
    starts: Option<u64>,
}

/// What an agent has answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    /// Of the protocol.
    pub(super) protocol: u32,
    /// Of its program, shortened.
    pub(super) program: String,
    /// It thaws what it froze also when it is killed.
    pub(super) watches_freezes: bool,
}

/// What the guest has answered to the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Greeted {
    NotYet,
    Yes(Version),
    /// It speaks no version of ours.
    Incompatible,
}

impl Outbox {
    /// Sends a request or input, when there is room; false when the connection has ended.
    pub(super) async fn request(&self, message: impl Into<ToGuest>) -> bool {
        let message = message.into();
        let starts = match &message.kind {
            Some(to_guest::Kind::Start(start)) => Some(start.session),
            _ => None,
        };
        let frame = encode(&message);
        self.requests.send(Waiting { frame, starts }).await.is_ok()
    }

    /// Sends a notice without waiting. After the end of the connection no notice is needed; a
    /// guest that takes none of very many ends it.
    pub(super) fn notify(&self, message: impl Into<ToGuest>) {
        if self.notices.try_send(encode(&message.into())).is_err() {
            self.broken.cancel();
        }
    }
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

struct Reader {
    sessions: Arc<Sessions>,
    outbox: Outbox,
    greets: watch::Sender<Greeted>,
    greeting: Arc<Greeting>,
    silence: Arc<Silence>,
}

impl Reader {
    async fn run(mut self, guest: OwnedReadHalf) {
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

impl Greeting {
    fn send(&self, outbox: &Outbox) {
        Self::greet(&mut self.lock(), outbox);
    }

    /// Greets once more when the last greeting has no answer. A guest may get it before its kernel
    /// knows that the host is connected, and then cannot answer.
    fn again(&self, outbox: &Outbox) {
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
    fn takes(&self, connection: u64) -> bool {
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
pub(super) fn number() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    (high ^ low).max(1)
}

/// Writes frames until the connection ends or no sender is left. The end of a session overtakes its
/// start, if that still waits: then the session must not start.
async fn write(
    mut guest: OwnedWriteHalf,
    mut waiting: mpsc::Receiver<Waiting>,
    mut urgent: mpsc::Receiver<Bytes>,
    sessions: Arc<Sessions>,
) {
    loop {
        let frame = tokio::select! {
            biased;
            Some(frame) = urgent.recv() => frame,
            Some(Waiting { frame, starts }) = waiting.recv() => {
                if starts.is_some_and(|session| !sessions.has(session)) {
                    continue;
                }
                frame
            }
            else => return,
        };
        if guest.write_all(&frame).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
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
