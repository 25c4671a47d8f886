//! The host's side of the sessions and requests of one connection.
//!
//! Invariant: of each stream at most a window is held, whatever the guest sends; a session that
//! gets more ends.
//! Failure: messages for sessions that do not exist are dropped.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use guestapi::from_guest::Kind;
use guestapi::{Answer, Data, Exited, Reason, Refused, Stream, WINDOW};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::unconstrained;

use super::{End, Error};

/// The sessions of a connection by number, and the requests that are no sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    slots: Mutex<HashMap<u64, Slot>>,
    requests: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
}

/// What the connection's reader has of a session.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) started: Option<oneshot::Sender<Result<(), Error>>>,
    pub(super) ended: Option<oneshot::Sender<Result<End, Error>>>,
    pub(super) stdout: Pipe,
    pub(super) stderr: Pipe,
    /// Bytes of input that the guest has room for.
    pub(super) input: Arc<Semaphore>,
}

/// Where the output of a stream goes.
#[derive(Debug)]
pub(super) struct Pipe {
    writer: Option<DuplexStream>,
    /// What the guest may still send.
    room: usize,
}

impl Pipe {
    pub(super) const fn new(writer: DuplexStream) -> Self {
        Self {
            writer: Some(writer),
            room: WINDOW,
        }
    }

    /// False when the guest has sent more than it may.
    fn push(&mut self, bytes: &Bytes, end: bool) -> bool {
        let Some(room) = self.room.checked_sub(bytes.len()) else {
            return false;
        };
        self.room = room;
        if let Some(writer) = &mut self.writer
            && !bytes.is_empty()
        {
            // The budget of the reader's task must not look like a full pipe.
            let written = pin!(unconstrained(writer.write(bytes)));
            match written.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(length)) if length == bytes.len() => {}
                // The client reads this stream no more.
                Poll::Ready(Err(_)) => self.writer = None,
                Poll::Ready(Ok(_)) | Poll::Pending => return false,
            }
        }
        if end {
            self.writer = None;
        }
        true
    }
}

impl Slot {
    fn pipe(&mut self, stream: Stream) -> Option<&mut Pipe> {
        match stream {
            Stream::Stdin => None,
            Stream::Stdout => Some(&mut self.stdout),
            Stream::Stderr => Some(&mut self.stderr),
        }
    }

    /// Ends the session with its result.
    fn finish(mut self, result: Result<End, Error>) {
        if let Some(started) = self.started.take() {
            let failed = result.clone().err().unwrap_or(Error::Protocol);
            let _ = started.send(Err(failed));
        }
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(result);
        }
        self.input.close();
    }
}

impl Sessions {
    pub(super) fn insert(&self, id: u64, slot: Slot) {
        self.lock().insert(id, slot);
    }

    /// Whether a session has not ended.
    pub(super) fn has(&self, id: u64) -> bool {
        self.lock().contains_key(&id)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// True when there was one.
    pub(super) fn remove(&self, id: u64) -> bool {
        self.lock().remove(&id).is_some()
    }

    /// The answer to a request, until [`Self::forget`].
    pub(super) fn expect(&self, number: u64) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        self.requests().insert(number, sender);
        answer
    }

    /// A request whose answer is not needed any more.
    pub(super) fn forget(&self, number: u64) {
        self.requests().remove(&number);
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all of them.
    pub(super) fn fail(&self, error: &Error) {
        self.requests().clear();
        for (_, slot) in self.lock().drain() {
            slot.finish(Err(error.clone()));
        }
    }

    /// The client has consumed bytes, and the guest gets to know.
    pub(super) fn consumed(&self, id: u64, stream: Stream, bytes: usize) -> bool {
        let mut sessions = self.lock();
        let pipe = sessions.get_mut(&id).and_then(|slot| slot.pipe(stream));
        let Some(pipe) = pipe else {
            return false;
        };
        pipe.room += bytes;
        true
    }

    /// Handles a message about a session; returns the bytes of output that it has delivered, and
    /// the session that it broke.
    pub(super) fn handle(&self, message: Kind) -> (usize, Option<u64>) {
        let mut sessions = self.lock();
        match message {
            Kind::GuestHello(_) => {}
            Kind::Answer(answer) => {
                if let Some(request) = self.requests().remove(&answer.number) {
                    // A client that waits, or keeps it, has no more than it may.
                    let _ = request.send(answer.bounded());
                }
            }
            Kind::Started(started) => {
                let slot = sessions.get_mut(&started.session);
                if let Some(started) = slot.and_then(|slot| slot.started.take()) {
                    let _ = started.send(Ok(()));
                }
            }
            Kind::Refused(refused) => {
                if let Some(slot) = sessions.remove(&refused.session) {
                    slot.finish(Err(refusal(&refused)));
                }
            }
            Kind::Data(data) => return deliver(&mut sessions, &data),
            Kind::Credit(credit) => {
                if let Some(slot) = sessions.get(&credit.session) {
                    let room = WINDOW.saturating_sub(slot.input.available_permits());
                    let bytes = usize::try_from(credit.bytes).unwrap_or(usize::MAX);
                    slot.input.add_permits(bytes.min(room));
                }
            }
            Kind::Exited(exited) => {
                if let Some(slot) = sessions.remove(&exited.session) {
                    slot.finish(end(&exited));
                }
            }
        }
        (0, None)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process ends by a code of one byte, or by a signal from 1 to 64, which is 129 to 192.
fn end(exited: &Exited) -> Result<End, Error> {
    let is_possible = (0..=255).contains(&exited.code);
    is_possible
        .then_some(End {
            code: exited.code,
            out_of_memory: exited.out_of_memory,
        })
        .ok_or(Error::Protocol)
}

fn deliver(sessions: &mut HashMap<u64, Slot>, data: &Data) -> (usize, Option<u64>) {
    let id = data.session;
    let Some(slot) = sessions.get_mut(&id) else {
        return (0, None);
    };
    let pipe = slot.pipe(data.stream());
    if pipe.is_some_and(|pipe| pipe.push(&data.data, data.end)) {
        return (data.data.len(), None);
    }
    if let Some(slot) = sessions.remove(&id) {
        slot.finish(Err(Error::Protocol));
    }
    (0, Some(id))
}

/// The words of a guest are shown to its user: on one line, and not too many.
fn refusal(refused: &Refused) -> Error {
    let words = service::telemetry::bounded(&printable(&refused.message));
    match refused.reason() {
        Reason::NoCommand => Error::NoCommand(words),
        Reason::NoSession => Error::NoSession(words),
        Reason::Other
        | Reason::NoDirectory
        | Reason::TooMany
        | Reason::NoUser
        | Reason::NoConfinement => Error::Refused(words),
    }
}

/// A text of the guest on one line.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(200).map(shown).collect()
}
