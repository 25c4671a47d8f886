//! Starts programs with a table of descriptors that has none of the daemon's.
//!
//! A fork copies the descriptors of the thread that forks, and the execution closes the copies. For a
//! file of a FUSE or NFS volume each close waits for the server of the volume: copies of all open files
//! would let one volume that hangs hold up all programs of the node. So a thread begins before the
//! daemon opens files, with a table of its own. Each program has a thread that gets a copy of this
//! table, fetches from the daemon what the program is to have, and forks. A thread that left the
//! daemon's table later would not do: the kernel copies the first 64 descriptors even so, and closes
//! the copies.
//!
//! Invariant: a program starts with the standard streams and the files that are meant for it; no
//! other file of the daemon is copied or closed on the way. A descriptor of the daemon is known to
//! such a thread by its number only: to drop it there would close another one. For the same reason
//! these threads take no signal: the handlers of the runtime write to a descriptor of the daemon, and
//! that number may be a file of a program there.
//! Failure: a kernel that lacks the means (before Linux 5.9), or a filter that forbids them, is a
//! warning in the log, and programs start with copies of all descriptors. A start fails with what the
//! kernel refused.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigSet;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::child::{Child, Pipes, Process};
use super::confine::{self, Confinement};
use super::namespaces;

/// The thread with its own table; `None` where there can be none.
static STARTER: LazyLock<Option<Starter>> = LazyLock::new(|| {
    let begun = Starter::begin();
    if let Err(error) = &begun {
        tracing::warn!(%error, "programs start with copies of all descriptors");
    }
    begun.ok()
});

/// Why helpers have no namespaces of their own, if they have none.
static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
    // Tests run as users that may make none.
    if !nix::unistd::geteuid().is_root() {
        return Some("the daemon is not root".to_owned());
    }
    let tried = match STARTER.as_ref() {
        Some(starter) => starter.ask(|answer| answer(namespaces::probe())).flatten(),
        None => Err(io::Error::other(
            "programs start with copies of all descriptors",
        )),
    };
    let refusal = tried.err()?.to_string();
    tracing::warn!(
        error = refusal,
        "helper programs share the namespaces of the daemon"
    );
    Some(refusal)
});

/// What a standard stream of a program is.
#[derive(Debug, Default)]
pub(crate) enum Stream {
    /// Nothing.
    #[default]
    Null,
    /// A pipe, of which the daemon has the other end.
    Pipe,
    /// Something open.
    Open(OwnedFd),
}

/// The standard streams of a program.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// What it reads.
    pub(crate) stdin: Stream,
    /// What it writes.
    pub(crate) stdout: Stream,
    /// What it reports.
    pub(crate) stderr: Stream,
}

/// A program to be started.
pub(crate) struct Start {
    /// With no descriptor.
    command: Command,
    streams: Streams,
    files: Vec<Inherited>,
    confinement: Option<Confinement>,
}

/// Something open that the program has under the same number.
pub(super) type Inherited = Box<dyn AsFd + Send + Sync>;

/// The ends of the program's streams: none is `/dev/null`.
type Ends = [Option<OwnedFd>; 3];

/// The numbers of what a program gets.
struct Numbers {
    streams: [Option<RawFd>; 3],
    files: Vec<RawFd>,
}

/// A thread that has a table of descriptors of its own, with the standard streams.
#[derive(Debug)]
struct Starter {
    jobs: mpsc::Sender<Job>,
}

/// What a thread does that has a copy of this table.
type Job = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The table of descriptors of the daemon, for a thread that has another one.
struct Table(OwnedFd);

/// Begins the thread that starts programs. Before the daemon opens files of volumes.
pub(crate) fn prepare() {
    LazyLock::force(&REFUSED);
}

/// Why helpers have no namespaces of their own, if they have none: what the kernel refused.
pub(crate) fn refused_namespaces() -> Option<&'static str> {
    REFUSED.as_deref()
}

impl Start {
    /// A command without any descriptor, and its streams.
    pub(crate) fn new(command: Command, streams: Streams) -> Self {
        Self {
            command,
            streams,
            files: Vec::new(),
            confinement: None,
        }
    }

    /// The same program, confined, with these files.
    pub(super) fn confined(self, confinement: Confinement, files: Vec<Inherited>) -> Self {
        Self {
            files,
            confinement: Some(confinement),
            ..self
        }
    }

    /// Starts it on a thread; one that starts when the caller has left ends.
    pub(crate) async fn begin(self) -> io::Result<Child> {
        let begun = tokio::task::spawn_blocking(|| self.start()).await;
        begun.map_err(io::Error::other)?
    }

    /// Blocks, if its own files do not answer for as long as that. Within a runtime, which waits for
    /// the end of the program.
    pub(crate) fn start(self) -> io::Result<Child> {
        self.start_by(STARTER.as_ref())
    }

    fn start_by(self, starter: Option<&Starter>) -> io::Result<Child> {
        let (ends, pipes) = self.streams.open()?;
        let numbers = Numbers {
            streams: ends
                .each_ref()
                .map(|end| end.as_ref().map(AsRawFd::as_raw_fd)),
            files: self
                .files
                .iter()
                .map(|file| file.as_fd().as_raw_fd())
                .collect(),
        };
        let process = if let Some(starter) = starter {
            let pid = starter.start(self.command, numbers, self.confinement)?;
            Process::adopt(pid)?
        } else {
            let mut command = self.command;
            if let Some(confinement) = &self.confinement {
                confinement.apply(&mut command, &self.files, false)?;
            }
            attach(&mut command, ends);
            Process::of_runtime(command)?
        };
        Ok(Child::new(process, pipes))
    }
}

impl Streams {
    /// The ends of the program, and ours.
    fn open(self) -> io::Result<(Ends, Pipes)> {
        let (stdin, to_stdin) = match self.stdin {
            Stream::Null => (None, None),
            Stream::Open(open) => (Some(open), None),
            Stream::Pipe => {
                let (theirs, ours) = io::pipe()?;
                (
                    Some(theirs.into()),
                    Some(Sender::from_owned_fd(ours.into())?),
                )
            }
        };
        let (stdout, from_stdout) = self.stdout.output()?;
        let (stderr, from_stderr) = self.stderr.output()?;
        let pipes = Pipes {
            stdin: to_stdin,
            stdout: from_stdout,
            stderr: from_stderr,
        };
        Ok(([stdin, stdout, stderr], pipes))
    }
}

impl Stream {
    fn output(self) -> io::Result<(Option<OwnedFd>, Option<Receiver>)> {
        match self {
            Self::Null => Ok((None, None)),
            Self::Open(open) => Ok((Some(open), None)),
            Self::Pipe => {
                let (ours, theirs) = io::pipe()?;
                let ours = Receiver::from_owned_fd(ours.into())?;
                Ok((Some(theirs.into()), Some(ours)))
            }
        }
    }
}

impl Starter {
    fn begin() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (answer, begun) = mpsc::channel();
        let work = move || {
            // Its threads inherit the mask, and unblock signals for their programs.
            let masked = SigSet::all().thread_block().map_err(io::Error::from);
            let begun = masked.and_then(|()| leave());
            let begun = begun.and_then(|()| Table::open(0)?.fetch(0));
            let is_begun = begun.is_ok();
            // Who began it waits for this.
            let _ = answer.send(begun.map(drop));
            if is_begun {
                queue.into_iter().for_each(run);
            }
        };
        thread::Builder::new()
            .name("starter".to_owned())
            .spawn(work)?;
        begun.recv().map_err(io::Error::other)??;
        Ok(Self { jobs })
    }

    /// Does something on a thread with a table of its own, and waits for its answer.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn(T)) + Send + 'static,
    ) -> io::Result<T> {
        let (answer, answered) = mpsc::channel();
        // The caller waits for an answer of either kind.
        let job = move |table: io::Result<()>| match table {
            Ok(()) => work(&|value| drop(answer.send(Ok(value)))),
            Err(error) => drop(answer.send(Err(error))),
        };
        let no_thread = || io::Error::other("its thread has ended without an answer");
        self.jobs.send(Box::new(job)).map_err(|_| no_thread())?;
        answered.recv().map_err(|_| no_thread())?
    }

    /// The caller keeps open what the numbers stand for until this returns.
    fn start(
        &self,
        command: Command,
        numbers: Numbers,
        confinement: Option<Confinement>,
    ) -> io::Result<Pid> {
        let work = move |answer: &dyn Fn(io::Result<Pid>)| {
            match start_here(command, &numbers, confinement.as_ref()) {
                Err(error) => answer(Err(error)),
                Ok((pid, mut command, files)) => {
                    answer(Ok(pid));
                    // Streams first: to close a file may take as long as its server does.
                    attach(&mut command, [None, None, None]);
                    drop((command, files));
                }
            }
        };
        self.ask(work)?
    }
}

/// Leaves the table of descriptors of the daemon, by both calls of this module.
fn leave() -> io::Result<()> {
    confine::leave_descriptors()?;
    Ok(unshare(CloneFlags::CLONE_FILES)?)
}

/// Gives a job a thread, or the reason why it has none.
fn run(job: Job) {
    let slot = Arc::new(Mutex::new(Some(job)));
    let of_thread = Arc::clone(&slot);
    let answer = |slot: &Mutex<Option<Job>>, table| {
        let job = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        job.map(|job| job(table))
    };
    let apart = move || {
        // A thread that fails here would share its table with others.
        let table = unshare(CloneFlags::CLONE_FILES).map_err(io::Error::from);
        answer(&of_thread, table.map_err(failed("unshare its descriptors")));
    };
    let thread = thread::Builder::new().name("start".to_owned()).spawn(apart);
    if let Err(error) = thread {
        answer(&slot, Err(failed("start a thread")(error)));
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("failed to {what}: {error}"))
}

/// Starts the program on a thread that has a table of descriptors of its own. Returns what the thread still has of
/// the program's.
fn start_here(
    mut command: Command,
    numbers: &Numbers,
    confinement: Option<&Confinement>,
) -> io::Result<(Pid, Command, Vec<OwnedFd>)> {
    let highest = numbers.files.iter().max();
    let daemon = Table::open(highest.map_or(0, |highest| highest + 1))?;
    let files = numbers.files.iter();
    let files: Vec<_> = files
        .map(|number| daemon.fetch_as(*number))
        .collect::<io::Result<_>>()?;
    let [stdin, stdout, stderr] = numbers
        .streams
        .map(|number| number.map(|number| daemon.fetch(number)).transpose());
    if let Some(confinement) = confinement {
        let has_namespaces = refused_namespaces().is_none();
        if has_namespaces {
            confinement.enter_namespaces()?;
        }
        confinement.apply(&mut command, &files, has_namespaces)?;
    }
    confine::unblock_signals(&mut command);
    attach(&mut command, [stdin?, stdout?, stderr?]);
    let pid = command.spawn()?.id();
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("it has no number"))?;
    Ok((pid, command, files))
}

fn attach(command: &mut Command, ends: Ends) {
    let [stdin, stdout, stderr] = ends.map(|end| end.map_or_else(Stdio::null, Stdio::from));
    command.stdin(stdin).stdout(stdout).stderr(stderr);
}

impl Table {
    /// Takes itself no number below `least`.
    fn open(least: RawFd) -> io::Result<Self> {
        let daemon = pidfd_open(getpid(), PidfdFlags::empty())?;
        Ok(Self(fcntl_dupfd_cloexec(daemon, least)?))
    }

    fn fetch(&self, number: RawFd) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.0, number, PidfdGetfdFlags::empty())?)
    }

    /// Under the same number.
    fn fetch_as(&self, number: RawFd) -> io::Result<OwnedFd> {
        let fetched = self.fetch(number)?;
        if fetched.as_raw_fd() == number {
            return Ok(fetched);
        }
        let moved = fcntl_dupfd_cloexec(fetched, number)?;
        if moved.as_raw_fd() != number {
            return Err(io::Error::other(format!("descriptor {number} is in use")));
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests;
