//! Programs of the node that the daemon starts, and those among them that read bytes of strangers,
//! such as `qemu-img`.
//!
//! Invariant: a program that reads such bytes runs as an unprivileged user without any capability,
//! which no other run has at the time, and never as the owner of a file. It gets its files as descriptors
//! and nothing else of the daemon. Network, processes, messages and mounts are its own: it sees programs
//! and libraries, and no other file of the node; by Landlock it opens none. A filter leaves it the
//! system calls that such programs need. It has limits on address space, CPU time, file size and
//! processes; who runs it sets a deadline. It runs with all of its limits or not at all.
//! Failure: the start fails with what the kernel refused; a limit ends the program. A kernel
//! without Landlock, or one that refuses namespaces, leaves the other walls, and the node says so.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use nix::libc;

mod calls;
mod child;
mod confine;
mod namespaces;
mod start;
mod users;
mod wall;

pub(crate) use child::{Child, watch};
use confine::Confinement;
use start::Inherited;
pub(crate) use start::{Start, Stream, Streams, prepare, refused_namespaces};
use users::Turn;
pub(crate) use users::{Exhausted, FIRST as FIRST_USER};

/// Where helper programs are, and all that their environment has.
const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("LC_ALL", "C"),
];

/// What a helper did whose file became too large.
pub(crate) const WROTE_TOO_MUCH: &str = "wrote more than the disk may take";

/// A user and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    /// The user.
    pub(crate) uid: u32,
    /// Its group.
    pub(crate) gid: u32,
}

/// What a helper may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of address space.
    pub(crate) address_space: u64,
    /// Seconds of CPU time.
    pub(crate) cpu: u64,
    /// Largest file that it may write, in bytes; devices have no such limit.
    pub(crate) file: u64,
}

/// A program and how it is confined.
#[derive(Debug, Clone)]
pub(crate) struct Helper {
    program: PathBuf,
    /// Who it runs as, where the daemon may change users.
    user: User,
    /// The program, where it is a file that the daemon has open.
    executable: Option<Arc<File>>,
    /// The turn of its user, where that is the user of one run.
    turn: Option<Arc<Turn>>,
    /// Whether each run has a user of its own.
    has_turns: bool,
    /// What it may open beside its own files and the system's: nothing, but in tests.
    within_reach: Vec<PathBuf>,
    /// Whether it is behind Landlock, where the kernel has that: always, but in tests.
    has_wall: bool,
}

impl Helper {
    /// A program of which each [run](Self::for_run) has a user of its own, in this group.
    pub(crate) fn new(program: impl Into<PathBuf>, gid: u32) -> Self {
        let uid = FIRST_USER;
        Self {
            program: program.into(),
            user: User { uid, gid },
            executable: None,
            turn: None,
            has_turns: true,
            within_reach: Vec::new(),
            has_wall: true,
        }
    }

    /// The program of this process, whatever has its place by now, without a group that may read anything.
    pub(crate) fn own() -> io::Result<Self> {
        let file = Arc::new(File::open("/proc/self/exe")?);
        Ok(Self {
            executable: Some(Arc::clone(&file)),
            ..Self::new(path_of(&file), FIRST_USER)
        })
    }

    /// A program that runs as this user.
    #[cfg(test)]
    pub(crate) fn as_user(program: impl Into<PathBuf>, user: User) -> Self {
        Self {
            user,
            has_turns: false,
            ..Self::new(program, user.gid)
        }
    }

    /// The program for one run, to which its files are lent: its user is that of no other run until this
    /// and its clones are dropped.
    pub(crate) fn for_run(&self) -> Result<Self, Exhausted> {
        let mut this = self.clone();
        if self.has_turns {
            let turn = Turn::begin()?;
            this.user.uid = turn.uid();
            this.turn = Some(Arc::new(turn));
        }
        Ok(this)
    }

    /// Who the program runs as.
    pub(crate) const fn user(&self) -> User {
        self.user
    }

    /// The same program, as on a kernel that has no Landlock.
    #[cfg(test)]
    pub(crate) fn without_landlock(mut self) -> Self {
        self.has_wall = false;
        self
    }

    /// The same program, which may also open this file, or what is in this directory.
    #[cfg(test)]
    pub(crate) fn reaching(mut self, path: impl Into<PathBuf>) -> Self {
        self.within_reach.push(path.into());
        self
    }

    /// The program with these arguments, which inherits `files` and no other descriptor. Its
    /// arguments name the files by [`path_of`]. Its start blocks where the servers of the files do
    /// not answer.
    pub(crate) fn start<F>(
        &self,
        limits: Limits,
        files: Vec<F>,
        arguments: Vec<OsString>,
        streams: Streams,
    ) -> Start
    where
        F: AsFd + Send + Sync + 'static,
    {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(ENVIRONMENT).current_dir("/");
        command.args(arguments);
        let confinement = Confinement {
            program: self.program.clone(),
            user: self.user,
            limits,
            within_reach: self.within_reach.clone(),
            has_wall: self.has_wall,
            executable: self.executable.clone(),
            _turn: self.turn.clone(),
        };
        let files = files.into_iter().map(|file| Box::new(file) as Inherited);
        let executable = self.executable.clone();
        let executable = executable.map(|file| Box::new(file) as Inherited);
        let files = files.chain(executable).collect();
        Start::new(command, streams).confined(confinement, files)
    }
}

/// How a helper names a file that it inherits: opening it leads through no directory.
pub(crate) fn path_of(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Which limit ended a program.
pub(crate) fn limit_that_ended(status: ExitStatus) -> Option<&'static str> {
    match status.signal()? {
        libc::SIGXFSZ => Some(WROTE_TOO_MUCH),
        libc::SIGXCPU => Some("used up its CPU time"),
        libc::SIGKILL => Some("was killed: the node may lack memory, or its CPU time is used up"),
        libc::SIGSEGV | libc::SIGBUS | libc::SIGABRT => Some("crashed: the image may be malformed"),
        _ => None,
    }
}

/// Whether a program ended by a defect of its own.
pub(crate) fn has_crashed(status: ExitStatus) -> bool {
    matches!(
        status.signal(),
        Some(libc::SIGSEGV | libc::SIGBUS | libc::SIGABRT)
    )
}

/// A program that runs on when the daemon ends, and gives its privileges up by itself.
#[derive(Debug)]
pub(crate) struct Service(PathBuf);

impl Service {
    /// The helper that this program is.
    pub(crate) fn new(program: impl Into<PathBuf>) -> Self {
        Self(program.into())
    }

    /// A command that inherits no descriptor but the standard ones, in a session of its own; for
    /// [`Start`].
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.env_clear().envs(ENVIRONMENT).current_dir("/");
        confine::detach(&mut command);
        command
    }
}

#[cfg(test)]
mod tests;
