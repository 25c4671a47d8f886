//! One command with its streams.
//!
//! Invariant: the end of the command is reported after all of its output; output that others write
//! after its end is not waited for. A process is signalled only before it is reaped, so that its
//! number is its own.
//! Failure: a stream that breaks ends; the others go on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

use guestapi::{CHUNK, Credit, Data, Exited, Stream, Terminal};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, pipe2, read, write};

use crate::command::Running;
use crate::outbox::Outbox;
use crate::processes::kill_session;
use crate::sys;
use crate::window::Window;

/// What a terminal takes as the end of its input.
const END_OF_INPUT: u8 = 4;

/// The part of a session that the reader of the port has.
#[derive(Debug)]
pub(crate) struct Session {
    pid: Pid,
    /// Whether the process exists: running, or ended and not reaped.
    exists: Mutex<bool>,
    input: Mutex<Option<Sender<Input>>>,
    stdout: Window,
    stderr: Window,
    terminal: Option<OwnedFd>,
}

/// What the host sends to standard input.
#[derive(Debug)]
enum Input {
    Bytes(Vec<u8>),
    End,
}

impl Session {
    /// Lets a session run in threads of its own. `ended` is called before its end is reported.
    pub(crate) fn run<'scope, 'env>(
        id: u64,
        running: Running,
        outbox: Arc<Outbox<'env>>,
        scope: &'scope Scope<'scope, 'env>,
        ended: impl FnOnce() + Send + 'scope,
    ) -> io::Result<Arc<Self>> {
        let (sender, receiver) = channel();
        let pid = Pid::from_raw(running.child.id().cast_signed());
        let session = Arc::new(Self {
            pid,
            exists: Mutex::new(true),
            input: Mutex::new(running.stdin.is_some().then_some(sender)),
            stdout: Window::default(),
            stderr: Window::default(),
            terminal: running.terminal,
        });
        let has_terminal = session.terminal.is_some();
        let begin = || {
            // Its reading end is readable when the process has ended.
            let (life, alive) = pipe2(OFlag::O_CLOEXEC)?;
            let life = Arc::new(life);
            if let Some(stdin) = running.stdin {
                fcntl(&stdin, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
                let (outbox, life) = (Arc::clone(&outbox), Arc::clone(&life));
                let stdin = Stdin { stdin, life };
                let feed = move || stdin.feed(id, &receiver, has_terminal, &outbox);
                thread::Builder::new().spawn_scoped(scope, feed)?;
            }
            let mut outputs = Vec::new();
            for (stream, file) in [
                (Stream::Stdout, running.stdout),
                (Stream::Stderr, running.stderr),
            ] {
                let Some(file) = file else {
                    continue;
                };
                let (session, outbox) = (Arc::clone(&session), Arc::clone(&outbox));
                let life = Arc::clone(&life);
                let send = move || session.send(id, stream, &file, life.as_fd(), &outbox);
                outputs.push(thread::Builder::new().spawn_scoped(scope, send)?);
            }
            let (this, child) = (Arc::clone(&session), running.child);
            thread::Builder::new().spawn_scoped(scope, move || {
                let code = this.await_end(child);
                drop(alive);
                for output in outputs {
                    // A thread that panicked has sent what it could.
                    let _ = output.join();
                }
                this.input().take();
                ended();
                outbox.send(Exited { session: id, code });
            })?;
            Ok(())
        };
        let begun: io::Result<()> = begin();
        if begun.is_err() {
            session.close();
        }
        begun.map(|()| session)
    }

    /// Bytes for standard input.
    pub(crate) fn write(&self, bytes: Vec<u8>, end: bool) {
        let mut input = self.input();
        let Some(sender) = &*input else {
            return;
        };
        // Without a reader the process has ended.
        if !bytes.is_empty() {
            let _ = sender.send(Input::Bytes(bytes));
        }
        if end {
            let _ = sender.send(Input::End);
            *input = None;
        }
    }

    /// The host has consumed bytes of a stream.
    pub(crate) fn acknowledge(&self, stream: Stream, bytes: u32) {
        let window = match stream {
            Stream::Stdin => return,
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        window.give(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Sets the size of the terminal, if there is one.
    pub(crate) fn resize(&self, size: Terminal) {
        if let Some(terminal) = &self.terminal {
            // A terminal whose processes have ended needs no size.
            let _ = sys::resize(terminal, size);
        }
    }

    /// Signals the command's process group.
    pub(crate) fn signal(&self, number: i32) {
        let exists = self.exists.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Ok(signal)) = (*exists, Signal::try_from(number)) {
            // The group has changed or ended.
            let _ = killpg(self.pid, signal);
        }
    }

    /// Ends the session: everything in it is killed, and its output is not sent.
    pub(crate) fn close(&self) {
        self.stdout.close();
        self.stderr.close();
        self.input().take();
        let exists = self.exists.lock().unwrap_or_else(PoisonError::into_inner);
        if *exists {
            kill_session(self.pid);
        }
    }

    fn input(&self) -> std::sync::MutexGuard<'_, Option<Sender<Input>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the process and reaps it.
    fn await_end(&self, mut child: Child) -> i32 {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(self.pid), flags) == Err(Errno::EINTR) {}
        let mut exists = self.exists.lock().unwrap_or_else(PoisonError::into_inner);
        *exists = false;
        child.wait().map_or(-1, code)
    }

    /// Sends a stream to its end, or to that of the process.
    fn send(
        &self,
        id: u64,
        stream: Stream,
        file: &OwnedFd,
        life: BorrowedFd<'_>,
        outbox: &Outbox<'_>,
    ) {
        let window = match stream {
            Stream::Stderr => &self.stderr,
            _ => &self.stdout,
        };
        let mut buffer = vec![0; CHUNK];
        let mut is_connected = true;
        while is_connected {
            let room = window.take(CHUNK);
            if room == 0 {
                return;
            }
            let length = match has_more(file.as_fd(), life) {
                true => read_some(file, &mut buffer[..room]),
                false => 0,
            };
            window.give(room - length);
            is_connected = length > 0
                && outbox.send(Data {
                    session: id,
                    stream: stream.into(),
                    data: buffer[..length].to_vec().into(),
                    end: false,
                });
        }
        outbox.send(Data {
            session: id,
            stream: stream.into(),
            data: Default::default(),
            end: true,
        });
    }
}

/// Our end of a process's input.
struct Stdin {
    stdin: OwnedFd,
    /// Readable when the process has ended.
    life: Arc<OwnedFd>,
}

impl Stdin {
    /// Writes the input, and acknowledges what the process can read. What a process does not read
    /// because it has closed its input is dropped: the client may send it all the same.
    fn feed(&self, id: u64, input: &Receiver<Input>, has_terminal: bool, outbox: &Outbox<'_>) {
        for input in input {
            match input {
                Input::Bytes(bytes) => {
                    self.write_all(&bytes);
                    outbox.send(Credit {
                        session: id,
                        stream: Stream::Stdin.into(),
                        bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    });
                }
                Input::End if has_terminal => self.write_all(&[END_OF_INPUT]),
                Input::End => return,
            }
        }
    }

    /// Gives up when no process reads any more.
    fn write_all(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match write(&self.stdin, bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let mut files = [
                        PollFd::new(self.stdin.as_fd(), PollFlags::POLLOUT),
                        PollFd::new(self.life.as_fd(), PollFlags::POLLIN),
                    ];
                    let polled = poll(&mut files, PollTimeout::NONE);
                    if polled.is_ok() && files[1].any() == Some(true) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}

/// Waits until there is something to read, or the process has ended and there is nothing.
fn has_more(file: BorrowedFd<'_>, life: BorrowedFd<'_>) -> bool {
    loop {
        let mut files = [file, life].map(|file| PollFd::new(file, PollFlags::POLLIN));
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) => return files[0].any().unwrap_or(true),
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// 0 at the end; a terminal whose processes have ended gives an error instead.
fn read_some(file: &OwnedFd, buffer: &mut [u8]) -> usize {
    loop {
        match read(file, buffer) {
            Err(Errno::EINTR) => {}
            // Two of our descriptors share the flag O_NONBLOCK of a terminal.
            Err(Errno::EAGAIN) => {
                let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut files, PollTimeout::NONE);
            }
            other => return other.unwrap_or(0),
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    by_signal.or(status.code()).unwrap_or(-1)
}
