//! The output of a session: what its senders take, and which number it has for the host.
//!
//! Invariant: each stream has one sender, which alone takes from it; whatever the host does to a
//! stream wakes its sender. The end of the command is reported once to each host, after all output.
//! Failure: the kernel's error when the session begins.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use guestapi::{Adopt, CHUNK, Data, Stream};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::tail::{Piece, Tail};

/// The outputs of one session.
#[derive(Debug)]
pub(crate) struct Outputs {
    state: Mutex<State>,
    /// For the one that reports the end.
    changed: Condvar,
    stdout: Event,
    stderr: Event,
}

#[derive(Debug)]
struct State {
    /// The number of the session; `None` while no host has it.
    number: Option<u64>,
    stdout: Tail,
    /// `None` for a terminal.
    stderr: Option<Tail>,
    is_closed: bool,
    /// The host that has the session knows of its end.
    is_reported: bool,
}

/// What a sender does next.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// Sends this.
    Send(Data),
    /// Reads at most so many bytes.
    Read(usize),
    /// Waits for the host.
    Wait,
    /// Nothing more.
    Nothing,
}

impl Outputs {
    /// The outputs of a session that the host has under this number.
    pub(crate) fn new(number: u64, has_stderr: bool) -> nix::Result<Self> {
        Ok(Self {
            state: Mutex::new(State {
                number: Some(number),
                stdout: Tail::default(),
                stderr: has_stderr.then(Tail::default),
                is_closed: false,
                is_reported: false,
            }),
            changed: Condvar::new(),
            stdout: Event::new()?,
            stderr: Event::new()?,
        })
    }

    /// The number of the session; `None` while no host has it.
    pub(crate) fn number(&self) -> Option<u64> {
        self.lock().number
    }

    /// The host has consumed bytes of a stream.
    pub(crate) fn acknowledge(&self, stream: Stream, bytes: u32) {
        if let Some(tail) = self.lock().tail(stream) {
            tail.acknowledge(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        self.event(stream).set();
    }

    /// Whether the streams can be sent from these offsets; the reason why not, for people.
    pub(crate) fn check(&self, adopt: &Adopt) -> Result<(), String> {
        let mut state = self.lock();
        for (stream, name, offset) in [
            (Stream::Stdout, "standard output", adopt.stdout),
            (Stream::Stderr, "standard error", adopt.stderr),
        ] {
            let offsets = state.tail(stream).map_or(0..=0, |tail| tail.offsets());
            if !offsets.contains(&offset) {
                let (first, last) = offsets.into_inner();
                return Err(format!(
                    "the guest has {name} of the session from byte {first} to byte {last}, \
                     not from byte {offset}"
                ));
            }
        }
        Ok(())
    }

    /// A host has the session now, and the streams up to its offsets.
    pub(crate) fn bind(&self, adopt: &Adopt) {
        let mut state = self.lock();
        state.number = Some(adopt.session);
        state.is_reported = false;
        state.stdout.resume(adopt.stdout);
        if let Some(stderr) = &mut state.stderr {
            stderr.resume(adopt.stderr);
        }
        drop(state);
        self.wake();
    }

    /// No host has the session.
    pub(crate) fn unbind(&self) {
        self.lock().number = None;
    }

    /// Nothing more is sent.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.wake();
    }

    /// What the sender of a stream does next.
    pub(crate) fn next(&self, stream: Stream) -> Next {
        let mut state = self.lock();
        let number = state.number;
        let is_closed = state.is_closed;
        let Some(tail) = state.tail(stream).filter(|_| !is_closed) else {
            return Next::Nothing;
        };
        if let Some(session) = number
            && let Some(piece) = tail.take()
        {
            let (data, end) = match piece {
                Piece::Bytes(bytes) => (bytes.into(), false),
                Piece::End => (Default::default(), true),
            };
            return Next::Send(Data {
                session,
                stream: stream.into(),
                data,
                end,
            });
        }
        match tail.room() {
            0 => Next::Wait,
            room => Next::Read(room.min(CHUNK)),
        }
    }

    /// The process has written this.
    pub(crate) fn push(&self, stream: Stream, bytes: &[u8]) {
        if let Some(tail) = self.lock().tail(stream) {
            tail.push(bytes);
        }
    }

    /// The process writes no more.
    pub(crate) fn finish(&self, stream: Stream) {
        if let Some(tail) = self.lock().tail(stream) {
            tail.finish();
        }
    }

    /// The host that has the session under this number was sent the end of a stream.
    pub(crate) fn end_sent(&self, stream: Stream, number: u64) {
        let mut state = self.lock();
        if state.number == Some(number)
            && let Some(tail) = state.tail(stream)
        {
            tail.set_sent();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until a host has to know of the end: its number for the session. `None` when the
    /// session is closed, and no host has it or the host knows.
    pub(crate) fn await_report(&self) -> Option<u64> {
        let waits = |state: &mut State| {
            let can_report = state.number.is_some() && !state.is_reported && state.is_sent();
            !state.is_closed && !can_report
        };
        let waited = self.changed.wait_while(self.lock(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let was_reported = std::mem::replace(&mut state.is_reported, true);
        state.number.filter(|_| !was_reported)
    }

    /// Whether the session is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// What wakes the sender of a stream.
    pub(crate) const fn event(&self, stream: Stream) -> &Event {
        match stream {
            Stream::Stderr => &self.stderr,
            Stream::Stdin | Stream::Stdout => &self.stdout,
        }
    }

    fn wake(&self) {
        self.changed.notify_all();
        self.stdout.set();
        self.stderr.set();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    const fn tail(&mut self, stream: Stream) -> Option<&mut Tail> {
        match stream {
            Stream::Stdin => None,
            Stream::Stdout => Some(&mut self.stdout),
            Stream::Stderr => self.stderr.as_mut(),
        }
    }

    fn is_sent(&self) -> bool {
        self.stdout.is_sent() && self.stderr.as_ref().is_none_or(Tail::is_sent)
    }
}

/// Something that a thread polls for.
#[derive(Debug)]
pub(crate) struct Event(EventFd);

impl Event {
    pub(crate) fn new() -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        EventFd::from_flags(flags).map(Self)
    }

    /// Makes the descriptor readable.
    pub(crate) fn set(&self) {
        // It is readable already when its counter is full.
        let _ = self.0.write(1);
    }

    /// Makes the descriptor unreadable, until it is set again.
    pub(crate) fn clear(&self) {
        // It was not set.
        let _ = self.0.read();
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
