//! Programs that run.
//!
//! Invariant: one ends with its handle, unless that says otherwise, and none stays a zombie: the
//! runtime waits for one whose handle is gone. Nothing else of the daemon waits for these processes.
//! Failure: the kernel's; a program that cannot be watched is killed, and its start fails.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Output};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::runtime::Handle;

/// Our ends of the pipes of a program.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// To what it reads.
    pub(crate) stdin: Option<Sender>,
    /// From what it writes.
    pub(crate) stdout: Option<Receiver>,
    /// From what it reports.
    pub(crate) stderr: Option<Receiver>,
}

/// A program that was started.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pipes: Pipes,
    process: Process,
    is_killed: bool,
}

#[derive(Debug)]
pub(super) enum Process {
    /// One that a thread of ours started.
    Own {
        pid: Pid,
        /// `None` once it has been waited for.
        end: Option<AsyncFd<OwnedFd>>,
        status: Option<ExitStatus>,
        runtime: Handle,
    },
    /// One of a kernel that gives threads no table of their own.
    OfRuntime(tokio::process::Child),
}

impl Child {
    pub(super) const fn new(process: Process, pipes: Pipes) -> Self {
        Self {
            pipes,
            process,
            is_killed: true,
        }
    }

    /// The program runs on when the handle goes.
    pub(crate) const fn outlive(&mut self) {
        self.is_killed = false;
    }

    /// Its number; `None` once it has ended and been waited for.
    pub(crate) fn id(&self) -> Option<u32> {
        match &self.process {
            Process::Own { pid, end, .. } => end.as_ref().map(|_| pid.as_raw_pid().cast_unsigned()),
            Process::OfRuntime(child) => child.id(),
        }
    }

    /// Kills it. It may have ended.
    pub(crate) fn kill(&mut self) {
        let _ = match &mut self.process {
            Process::Own { end: None, .. } => Ok(()),
            Process::Own { end: Some(end), .. } => {
                pidfd_send_signal(end.get_ref(), Signal::KILL).map_err(io::Error::from)
            }
            Process::OfRuntime(child) => child.start_kill(),
        };
    }

    /// Waits for its end; may be repeated.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Waits for its end; what it wrote meanwhile.
    pub(crate) async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.pipes.stdin.take());
        let stdout = self.pipes.stdout.take();
        let stderr = self.pipes.stderr.take();
        let (status, stdout, stderr) =
            tokio::try_join!(self.process.wait(), read(stdout), read(stderr))?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    }
}

async fn read(pipe: Option<Receiver>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.is_killed {
            // Before its input closes, which may be the permission to begin.
            self.kill();
        }
        if let Process::Own {
            pid, end, runtime, ..
        } = &mut self.process
            && let Some(end) = end.take()
        {
            let pid = *pid;
            // At the end of the runtime the daemon ends, and its children get another parent.
            runtime.spawn(async move { ended(pid, &end).await });
        }
    }
}

impl Process {
    /// A child that nothing else waits for. Within a runtime; blocks if it fails.
    pub(super) fn adopt(pid: Pid) -> io::Result<Self> {
        let watched = pidfd_open(pid, PidfdFlags::empty());
        match watched.map_err(io::Error::from).and_then(watch) {
            Ok(end) => Ok(Self::Own {
                pid,
                end: Some(end),
                status: None,
                runtime: Handle::current(),
            }),
            Err(error) => {
                // The number is its own until it is waited for.
                let _ = kill_process(pid, Signal::KILL);
                let _ = waitpid(Some(pid), WaitOptions::empty());
                Err(error)
            }
        }
    }

    /// A child of the runtime. Within one.
    pub(super) fn of_runtime(command: Command) -> io::Result<Self> {
        let mut command = tokio::process::Command::from(command);
        command.spawn().map(Self::OfRuntime)
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::OfRuntime(child) => child.wait().await,
            Self::Own {
                pid, end, status, ..
            } => {
                if let Some(watched) = end {
                    *status = Some(ended(*pid, watched).await?);
                    *end = None;
                }
                status.ok_or_else(|| io::Error::other("its end was lost"))
            }
        }
    }
}

/// Waits for the end of a child.
async fn ended(pid: Pid, end: &AsyncFd<OwnedFd>) -> io::Result<ExitStatus> {
    loop {
        let mut ready = end.readable().await?;
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG)? {
            return Ok(ExitStatus::from_raw(status.as_raw()));
        }
        ready.clear_ready();
    }
}

/// Hands the descriptor of a process, which is readable at its end, to the reactor of the current
/// runtime.
#[allow(unsafe_code)] // The registration has no safe form; the comment states why it is sound.
pub(crate) fn watch(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, stays the same number for as long as it lives, and lives inside
    // the returned value, which lends it out by shared reference only.
    Ok(unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?)
}
