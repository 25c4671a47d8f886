//! A command that runs in a guest, with its streams.
//!
//! Invariant: a command ends with its [`Ended`]: dropped, it makes the guest kill what runs.
//! Failure: [`Error`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guestapi::{CHUNK, Close, Credit, Data, Resize, Start, Stream, Terminal, WINDOW};
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::sync::{Semaphore, oneshot};

use super::link::{Link, number};
use super::sessions::{Pipe, Slot};
use super::{Agent, Error};

/// Time for the agent to start a command.
const START: Duration = Duration::from_secs(30);
/// Time for the agent to report that a command was killed.
const KILL: Duration = Duration::from_secs(5);

/// A command that runs.
#[derive(Debug)]
pub struct Command {
    /// Standard input.
    pub input: Input,
    /// Standard output, or all output of a terminal.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// The terminal.
    pub control: Control,
    /// The end.
    pub ended: Ended,
}

/// Standard input of a command.
#[derive(Debug)]
pub struct Input {
    session: Arc<Session>,
    room: Arc<Semaphore>,
}

/// Output of a command.
#[derive(Debug)]
pub struct Output {
    session: Arc<Session>,
    stream: Stream,
    bytes: DuplexStream,
    /// Read, and not acknowledged.
    consumed: usize,
}

/// The terminal of a command.
#[derive(Debug, Clone)]
pub struct Control {
    session: Arc<Session>,
}

/// The end of a command.
#[derive(Debug)]
pub struct Ended {
    result: oneshot::Receiver<Result<i32, Error>>,
    /// Ends the session when this is dropped.
    guard: Guard,
}

#[derive(Debug)]
struct Session {
    id: u64,
    link: Arc<Link>,
}

/// Makes the guest end the session.
#[derive(Debug)]
struct Guard(Arc<Session>);

impl Drop for Guard {
    fn drop(&mut self) {
        let session = self.0.id;
        if self.0.link.sessions.remove(session) {
            self.0.link.outbox.notify(Close { session });
        }
    }
}

impl Agent {
    /// Starts a command; returns when it runs.
    ///
    /// # Errors
    ///
    /// [`Error`]; then nothing runs.
    pub async fn start(
        &self,
        command: Vec<String>,
        input: bool,
        terminal: Option<Terminal>,
    ) -> Result<Command, Error> {
        let program = command.first().cloned().unwrap_or_default();
        let (started, starts) = oneshot::channel();
        let (ended, ends) = oneshot::channel();
        let (stdout, out) = duplex(WINDOW);
        let (stderr, err) = duplex(WINDOW);
        let room = Arc::new(Semaphore::new(WINDOW));
        let id = number();
        self.link.sessions.insert(
            id,
            Slot {
                started: Some(started),
                ended: Some(ended),
                stdout: Pipe::new(out),
                stderr: Pipe::new(err),
                input: Arc::clone(&room),
            },
        );
        let session = Arc::new(Session {
            id,
            link: Arc::clone(&self.link),
        });
        let guard = Guard(Arc::clone(&session));
        let request = async {
            let start = Start {
                session: id,
                command,
                input,
                terminal,
                ..Start::default()
            };
            if !self.link.outbox.request(start).await || !self.link.is_alive() {
                return Err(Error::Lost);
            }
            starts.await.unwrap_or(Err(Error::Lost))
        };
        match tokio::time::timeout(START, request).await {
            Ok(Ok(())) => {}
            Ok(Err(Error::NoCommand(_))) => return Err(Error::NoCommand(program)),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                self.link.doubt();
                return Err(Error::Silent(START));
            }
        }
        let output = |stream, bytes| Output {
            session: Arc::clone(&session),
            stream,
            bytes,
            consumed: 0,
        };
        Ok(Command {
            input: Input {
                session: Arc::clone(&session),
                room,
            },
            stdout: output(Stream::Stdout, stdout),
            stderr: output(Stream::Stderr, stderr),
            control: Control { session },
            ended: Ended {
                result: ends,
                guard,
            },
        })
    }
}

impl Input {
    /// Sends bytes, when the guest has room; false when the command has ended.
    pub async fn write(&self, bytes: &[u8]) -> bool {
        for chunk in bytes.chunks(CHUNK) {
            let Ok(length) = u32::try_from(chunk.len()) else {
                return false;
            };
            let Ok(room) = self.room.acquire_many(length).await else {
                return false;
            };
            room.forget();
            if !self.send(Bytes::copy_from_slice(chunk), false).await {
                return false;
            }
        }
        true
    }

    /// Sends the end of the input.
    pub async fn end(&self) {
        self.send(Bytes::new(), true).await;
    }

    async fn send(&self, data: Bytes, end: bool) -> bool {
        let message = Data {
            session: self.session.id,
            stream: Stream::Stdin.into(),
            data,
            end,
        };
        self.session.link.outbox.request(message).await
    }
}

impl Output {
    /// Reads something; 0 at the end.
    ///
    /// # Errors
    ///
    /// None that a reader needs to tell apart from the end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.bytes.read(buffer).await?;
        self.consumed += length;
        if self.consumed >= WINDOW / 2 {
            let bytes = std::mem::take(&mut self.consumed);
            let (link, id) = (&self.session.link, self.session.id);
            if link.sessions.consumed(id, self.stream, bytes) {
                link.outbox.notify(Credit {
                    session: id,
                    stream: self.stream.into(),
                    bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                });
            }
        }
        Ok(length)
    }
}

impl Control {
    /// Sets the size of the terminal.
    pub async fn resize(&self, terminal: Terminal) {
        let message = Resize {
            session: self.session.id,
            terminal: Some(terminal),
        };
        self.session.link.outbox.request(message).await;
    }
}

impl Ended {
    /// Waits for the end of the command and its exit code.
    pub async fn wait(&mut self) -> Result<i32, Error> {
        let result = &mut self.result;
        result.await.unwrap_or(Err(Error::Lost))
    }

    /// Kills the command and all that it started; waits a moment for the guest to report it.
    pub async fn kill(mut self) {
        let Session { id, link } = &*self.guard.0;
        link.outbox.notify(Close { session: *id });
        // A guest that does not report is not waited for: it has the order.
        let _ = tokio::time::timeout(KILL, &mut self.result).await;
    }
}
