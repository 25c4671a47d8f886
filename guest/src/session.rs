//! One command with its streams.
//!
//! Invariant: the end of the command is reported after all of its output. A process is signalled
//! only before it is reaped, so that its number is its own. A session that is kept outlives its
//! command and its connections; what its command leaves behind is killed with it.
//! Failure: a stream that breaks ends; the others go on.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

use guestapi::{Adopt, Data, Exited, Setting, Start, Stream, Terminal};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::cgroups::{Error, Group, Used};
use crate::command::Running;
use crate::input::{Input, Stdin};
use crate::outbox::Outbox;
use crate::outputs::{Event, Outputs};
use crate::places::Places;
use crate::processes::kill_session;
use crate::sender::Sender;
use crate::sys;

/// The part of a session that the reader of the port has.
#[derive(Debug)]
pub(crate) struct Session {
    /// The name that it is kept under; empty when it ends with its connection.
    keep: String,
    pid: Pid,
    /// Whether the process exists: running, or ended and not reaped.
    exists: Mutex<bool>,
    input: Mutex<Option<mpsc::Sender<Input>>>,
    outputs: Outputs,
    terminal: Option<OwnedFd>,
    /// That of a kept session.
    group: Option<Group>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy)]
struct End {
    code: i32,
    out_of_memory: bool,
}

impl Session {
    /// Lets a session run in threads of its own. `ended` is called before the end of one that is not
    /// kept is reported.
    pub(crate) fn run<'scope, 'env>(
        start: &Start,
        running: Running,
        outbox: Arc<Outbox<'env>>,
        places: &'env Places,
        scope: &'scope Scope<'scope, 'env>,
        ended: impl FnOnce() + Send + 'scope,
    ) -> io::Result<Arc<Self>> {
        let (sender, receiver) = channel();
        let pid = Pid::from_raw(running.child.id().cast_signed());
        let outputs = Outputs::new(start.session, running.stderr.is_some());
        let outputs = outputs.inspect_err(|_| kill_session(pid))?;
        let session = Arc::new(Self {
            keep: start.keep.clone(),
            pid,
            exists: Mutex::new(true),
            input: Mutex::new(running.stdin.is_some().then_some(sender)),
            outputs,
            terminal: running.terminal,
            group: running.group,
        });
        let has_terminal = session.terminal.is_some();
        let begin = || {
            // Set when the process has ended.
            let end = Arc::new(Event::new()?);
            if let Some(stdin) = running.stdin {
                fcntl(&stdin, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
                let stdin = Stdin {
                    stdin,
                    ended: Arc::clone(&end),
                    has_terminal,
                };
                let session = Arc::clone(&session);
                let outbox = Arc::clone(&outbox);
                let feed = move || stdin.feed(&receiver, &session.outputs, &outbox);
                thread::Builder::new().spawn_scoped(scope, feed)?;
            }
            let mut senders = Vec::new();
            for (stream, file) in [
                (Stream::Stdout, running.stdout),
                (Stream::Stderr, running.stderr),
            ] {
                let Some(file) = file else {
                    continue;
                };
                let session = Arc::clone(&session);
                let outbox = Arc::clone(&outbox);
                let sender = Sender {
                    stream,
                    file,
                    ended: Arc::clone(&end),
                };
                let send = move || sender.send(&session.outputs, &outbox);
                senders.push(thread::Builder::new().spawn_scoped(scope, send)?);
            }
            let this = Arc::clone(&session);
            let child = running.child;
            thread::Builder::new().spawn_scoped(scope, move || {
                let ended_as = this.await_end(child, places);
                end.set();
                this.input().take();
                let mut last = this.outputs.await_report();
                while this.is_kept() && !this.outputs.is_closed() {
                    this.report(last, ended_as, &outbox);
                    last = this.outputs.await_report();
                }
                // What a sender has taken is sent before the end.
                this.outputs.close();
                for sender in senders {
                    // A thread that panicked has sent what it could.
                    let _ = sender.join();
                }
                ended();
                this.report(last, ended_as, &outbox);
            })?;
            Ok(())
        };
        let begun: io::Result<()> = begin();
        if begun.is_err() {
            session.close();
        }
        begun.map(|()| session)
    }

    /// The process of the command, which may have ended.
    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// The name that it is kept under; empty when it ends with its connection.
    pub(crate) fn keep(&self) -> &str {
        &self.keep
    }

    /// Whether it outlives its connection.
    pub(crate) const fn is_kept(&self) -> bool {
        !self.keep.is_empty()
    }

    /// Whether the process of the command exists.
    pub(crate) fn exists(&self) -> bool {
        *self.lock_exists()
    }

    /// The number that the host has for it.
    pub(crate) fn number(&self) -> Option<u64> {
        self.outputs.number()
    }

    /// Whether a host can continue it; the reason why not, for people.
    pub(crate) fn check(&self, adopt: &Adopt) -> Result<(), String> {
        self.outputs.check(adopt)
    }

    /// A host continues it.
    pub(crate) fn bind(&self, adopt: &Adopt) {
        self.outputs.bind(adopt);
    }

    /// The host that had it is gone: it is kept, or ends.
    pub(crate) fn leave(&self) {
        self.outputs.unbind();
        if !self.is_kept() {
            self.close();
        }
    }

    /// Bytes for standard input.
    pub(crate) fn write(&self, data: &Data) {
        let mut input = self.input();
        let Some(sender) = &*input else {
            return;
        };
        // Without a reader the process has ended.
        if !data.data.is_empty() {
            let _ = sender.send(Input::Bytes {
                number: data.session,
                bytes: data.data.to_vec(),
            });
        }
        if data.end {
            let _ = sender.send(Input::End);
            *input = None;
        }
    }

    /// The host has consumed bytes of a stream.
    pub(crate) fn acknowledge(&self, stream: Stream, bytes: u32) {
        self.outputs.acknowledge(stream, bytes);
    }

    /// Sets the size of the terminal, if there is one.
    pub(crate) fn resize(&self, size: Terminal) {
        if let Some(terminal) = &self.terminal {
            // A terminal whose processes have ended needs no size.
            let _ = sys::resize(terminal, size);
        }
    }

    /// Signals the command: its process group, or in a kept session its first process alone, as
    /// the stop of a container does.
    pub(crate) fn signal(&self, number: i32) {
        let exists = self.lock_exists();
        if *exists && let Ok(signal) = Signal::try_from(number) {
            // The group has changed or ended.
            let _ = if self.is_kept() {
                kill(self.pid, signal)
            } else {
                killpg(self.pid, signal)
            };
        }
    }

    /// Ends the session: everything in it is killed, and its output is not sent any more.
    pub(crate) fn close(&self) {
        self.input().take();
        let exists = self.lock_exists();
        if *exists {
            self.kill_all();
        }
        drop(exists);
        // The command does not learn of it by the end of its output.
        self.outputs.close();
    }

    /// Changes the limits of what runs in a kept session.
    pub(crate) fn limit(&self, limits: &[Setting]) -> Result<(), Error> {
        match &self.group {
            Some(group) => group.set(limits),
            None => Err(Error::NoCgroups),
        }
    }

    /// What the processes of a kept session use; `None` in a guest without cgroups.
    pub(crate) fn used(&self) -> Option<Used> {
        self.group.as_ref()?.used()
    }

    /// The caller holds the lock of the process.
    fn kill_all(&self) {
        if let Some(group) = &self.group {
            group.kill();
        }
        kill_session(self.pid);
    }

    fn input(&self) -> MutexGuard<'_, Option<mpsc::Sender<Input>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_exists(&self) -> MutexGuard<'_, bool> {
        self.exists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the process and reaps it. What it leaves behind in a kept session is killed.
    fn await_end(&self, mut child: Child, places: &Places) -> End {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(self.pid), flags) == Err(Errno::EINTR) {}
        let group = self.group.as_ref();
        let out_of_memory = group.is_some_and(Group::was_out_of_memory);
        let mut exists = self.lock_exists();
        if self.is_kept() {
            self.kill_all();
        }
        *exists = false;
        let code = child.wait().map_or(-1, code);
        drop(exists);
        if self.is_kept() {
            if let Some(group) = group {
                group.remove();
            }
            places.remove_files(&self.keep);
        }
        End {
            code,
            out_of_memory,
        }
    }

    /// Reports the end to the host that has the session under this number.
    fn report(&self, number: Option<u64>, end: End, outbox: &Outbox<'_>) {
        if let Some(session) = number {
            outbox.send(Exited {
                session,
                code: end.code,
                out_of_memory: end.out_of_memory,
            });
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    by_signal.or(status.code()).unwrap_or(255)
}
