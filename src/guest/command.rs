//! A command that runs in a guest, with its streams.
//!
//! Invariant: a command ends with its [`Ended`]: dropped, it makes the guest kill what runs, unless
//! the guest keeps its session. Output of a kept session is acknowledged only after its reader has
//! stored it: until then the guest has it, too.
//! Failure: [`Error`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guestapi::{
    Adopt, CHUNK, Close, Credit, Data, Resize, Signal, Start, Stream, Terminal, ToGuest, WINDOW,
};
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::sync::{Semaphore, oneshot};

use super::link::{Link, number};
use super::sessions::{Pipe, Slot};
use super::{Agent, Error};

/// The first version of the protocol with kept sessions.
const KEEPING: u32 = 2;
/// The first one with all that a process needs.
const PROCESSES: u32 = 3;
/// The first one with volumes of processes.
const VOLUMES: u32 = 4;
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
    /// Whether the reader acknowledges what it has stored.
    is_kept: bool,
    /// Read or stored, and not acknowledged.
    consumed: usize,
}

/// The terminal of a command.
#[derive(Debug, Clone)]
pub struct Control {
    session: Arc<Session>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Its exit code, or 128 and the number of the signal that killed it.
    pub code: i32,
    /// The kernel killed one of its processes because of a limit of memory.
    pub out_of_memory: bool,
}

/// The end of a command.
#[derive(Debug)]
pub struct Ended {
    result: oneshot::Receiver<Result<End, Error>>,
    /// Ends the session when this is dropped.
    guard: Guard,
}

#[derive(Debug)]
struct Session {
    id: u64,
    link: Arc<Link>,
}

/// Makes the guest end the session, unless it keeps it.
#[derive(Debug)]
struct Guard {
    session: Arc<Session>,
    is_kept: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let session = self.session.id;
        if self.session.link.sessions.remove(session) && !self.is_kept {
            self.session.link.outbox.notify(Close { session });
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
        self.run(Start {
            command,
            input,
            terminal,
            ..Start::default()
        })
        .await
    }

    /// Starts a command with all that the protocol has; the number of the session is set here.
    ///
    /// # Errors
    ///
    /// [`Error`]; then nothing runs, unless the guest keeps the session and did not answer in time.
    pub async fn run(&self, start: Start) -> Result<Command, Error> {
        let program = start.command.first().cloned().unwrap_or_default();
        let is_kept = !start.keep.is_empty();
        let has_volumes = start.view.iter().any(|view| !view.volumes.is_empty());
        let is_process = is_kept || start != of_a_machine(&start);
        let needed = if !is_process {
            0
        } else if has_volumes {
            VOLUMES
        } else {
            PROCESSES
        };
        if self.protocol < needed {
            return Err(Error::TooOld(self.version.clone()));
        }
        let with_session = move |session| Start { session, ..start }.into();
        match self.session(is_kept, with_session).await {
            Err(Error::NoCommand(_)) => Err(Error::NoCommand(program)),
            other => other,
        }
    }

    /// Continues a session that the guest keeps under this name, with the output after what was
    /// stored: so many bytes of standard output and standard error.
    ///
    /// # Errors
    ///
    /// [`Error::NoSession`] when the guest has none of this name.
    pub async fn adopt(&self, keep: &str, stored: (u64, u64)) -> Result<Command, Error> {
        if self.protocol < KEEPING {
            return Err(Error::NoSession(self.version.clone()));
        }
        let (stdout, stderr) = stored;
        let keep = keep.to_owned();
        let with_session = move |session| {
            let adopt = Adopt {
                session,
                keep,
                stdout,
                stderr,
            };
            adopt.into()
        };
        self.session(true, with_session).await
    }

    async fn session(
        &self,
        is_kept: bool,
        request: impl FnOnce(u64) -> ToGuest,
    ) -> Result<Command, Error> {
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
        let guard = Guard {
            session: Arc::clone(&session),
            is_kept,
        };
        let message = request(id);
        let request = async {
            if !self.link.outbox.request(message).await || !self.link.is_alive() {
                return Err(Error::Lost);
            }
            starts.await.unwrap_or(Err(Error::Lost))
        };
        match tokio::time::timeout(START, request).await {
            Ok(started) => started?,
            Err(_) => {
                self.link.doubt();
                return Err(Error::Silent(START));
            }
        }
        let output = |stream, bytes| Output {
            session: Arc::clone(&session),
            stream,
            bytes,
            is_kept,
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

/// The part of a start that the first version of the protocol has.
fn of_a_machine(start: &Start) -> Start {
    Start {
        session: start.session,
        command: start.command.clone(),
        environment: start.environment.clone(),
        directory: start.directory.clone(),
        input: start.input,
        terminal: start.terminal,
        user: start.user.clone(),
        ..Start::default()
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
        if !self.is_kept {
            self.acknowledge(length);
        }
        Ok(length)
    }

    /// Lets the guest forget bytes that were read from a kept session and are stored.
    pub fn acknowledge(&mut self, length: usize) {
        self.consumed += length;
        if self.consumed >= WINDOW / 2 {
            let bytes = std::mem::take(&mut self.consumed);
            let link = &self.session.link;
            let id = self.session.id;
            if link.sessions.consumed(id, self.stream, bytes) {
                link.outbox.notify(Credit {
                    session: id,
                    stream: self.stream.into(),
                    bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                });
            }
        }
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

    /// Signals the command's process group.
    pub async fn signal(&self, number: i32) {
        let session = self.session.id;
        let message = Signal { session, number };
        self.session.link.outbox.request(message).await;
    }

    /// Makes the guest kill what runs in the session, and forget it.
    pub fn close(&self) {
        let session = self.session.id;
        self.session.link.outbox.notify(Close { session });
    }
}

impl Ended {
    /// Waits for the end of the command.
    pub async fn wait(&mut self) -> Result<End, Error> {
        let result = &mut self.result;
        result.await.unwrap_or(Err(Error::Lost))
    }

    /// Kills the command and all that it started; waits a moment for the guest to report it.
    pub async fn kill(mut self) {
        let Session { id, link } = &*self.guard.session;
        link.outbox.notify(Close { session: *id });
        // A guest that does not report is not waited for: it has the order.
        let _ = tokio::time::timeout(KILL, &mut self.result).await;
    }
}
