//! Programs of the node that the daemon starts, and those among them that read bytes of strangers,
//! such as `qemu-img`.
//!
//! Invariant: a program that reads such bytes runs as an unprivileged user without any capability,
//! and never as the owner of a file. It gets its files as descriptors and nothing else of the daemon,
//! opens no other file but those of the system where the kernel has Landlock, and has limits on
//! address space, CPU time and file size; who runs it sets a deadline. It runs with all of its limits
//! or not at all.
//! Failure: the start fails with what the kernel refused; a limit ends the program by a signal.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use nix::libc;

mod child;
mod confine;
mod start;
mod wall;

pub(crate) use child::{Child, watch};
use confine::Confinement;
pub(crate) use start::{Start, Stream, Streams, prepare};

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
    /// What it may open beside its own files and the system's: nothing, but in tests.
    within_reach: Vec<PathBuf>,
}

impl Helper {
    /// A program that runs as this user.
    pub(crate) fn new(program: impl Into<PathBuf>, user: User) -> Self {
        Self {
            program: program.into(),
            user,
            within_reach: Vec::new(),
        }
    }

    /// Who the program runs as.
    pub(crate) const fn user(&self) -> User {
        self.user
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
        };
        let files = files.into_iter().map(|file| Box::new(file) as _);
        Start::new(command, streams).confined(confinement, files.collect())
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

/// A program that runs on when the daemon ends, and gives its privileges up by itself.
#[derive(Debug)]
pub(crate) struct Service(PathBuf);

impl Service {
    /// This program.
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
