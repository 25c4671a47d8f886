//! Console logs: what QEMU appended to the raw file becomes the log that kubelet reads.
//!
//! QEMU writes the raw file itself, so the guest neither waits for the daemon nor notices its
//! restart. A [`Follower`] per running machine copies the bytes on as CRI log lines and gives the
//! disk space of copied bytes back. It sends them to the [`Client`]s of the console as well; what
//! these type, QEMU reads from a FIFO.
//!
//! Invariant: every byte is in the log once, also when the daemon is killed at any point and
//! started again; at most one follower works on a raw file.
//! Failure: an error of the log or its disk is retried; the bytes wait in the raw file meanwhile. Of
//! more than 64 MiB that wait, the first are dropped with a warning: by the follower, or by the
//! tapmanager where no daemon follows.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

mod clients;
mod error;
mod follow;
mod followers;
mod lines;
mod log_file;
mod position;
mod raw_file;
mod server;
mod timestamp;
mod transfer;
mod watch;

pub use clients::Client;
pub(super) use clients::Files;
pub use error::{Error, Result};
pub(super) use followers::Consoles;
pub(super) use lines::{Lines, Rest, Tag};
pub(super) use log_file::LogFile;
pub(super) use position::Mark;
pub(super) use server::socket;
pub(super) use timestamp::rfc3339;

use clients::Output;
use follow::{Command, Follow};
use position::PositionFile;
use server::Server;
use transfer::Transfer;
use watch::Watch;

const WRITTEN: &str = "console.written";

/// Crash points for tests: a batch is in the log, its position not saved.
pub const FAULT_POINTS: &[&str] = &[WRITTEN];

/// The deadline for each call of the API but [`Follower::stop`].
const DEADLINE: Duration = Duration::from_secs(10);
/// The deadline for [`Follower::stop`], which belongs to the shutdown of the daemon.
const STOP_DEADLINE: Duration = Duration::from_secs(3);

/// Blocking threads for all consoles: enough for a fast disk, few of the runtime's when it is
/// stuck.
static THREADS: Semaphore = Semaphore::const_new(32);

/// The files of a console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// What QEMU appends to. The position is kept beside it, with `.pos` and `.pos.new` appended to
    /// the name. Its directory exists.
    pub raw: PathBuf,
    /// The log at the path that kubelet gave; created with its directory when missing.
    pub log: PathBuf,
}

/// How a follower paces itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Text without a newline is shown after this time without more.
    pub idle: Duration,
    /// The least time between two batches.
    pub gather: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(1),
            gather: Duration::from_millis(20),
        }
    }
}

/// Copies one console to its log until it is stopped. Dropping it means [`Follower::stop`]
/// without waiting; the raw file is free for another follower a little later.
#[derive(Debug)]
pub struct Follower {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
    output: Output,
    raw: PathBuf,
    /// For clients on the node; absent while its socket cannot be made.
    server: Option<Server>,
    /// Whether an operator was warned of that.
    is_warned: bool,
}

impl Follower {
    /// Starts following, from where an earlier follower of the same raw file stopped. The raw file
    /// is created empty (mode 0600) when missing: start before QEMU does, which appends.
    ///
    /// A failed write to the log is not returned: it is retried.
    pub async fn start(paths: Paths) -> Result<Self> {
        Self::start_with(paths, Settings::default()).await
    }

    /// As [`Follower::start`], at another pace.
    pub async fn start_with(paths: Paths, settings: Settings) -> Result<Self> {
        let opened = paths.clone();
        let output = Output::new();
        let sent = output.clone();
        let open = move || {
            let mut transfer = Transfer::open(opened.clone(), sent)?;
            let watch = Watch::on(transfer.raw().file()).map_err(|source| Error::Watch {
                path: opened.raw,
                source,
            })?;
            let log = transfer.reopen();
            Ok((transfer, watch, log))
        };
        let (transfer, watch, log) = soon_on_thread(open).await?;
        let (commands, received) = mpsc::channel(1);
        let raw = paths.raw.clone();
        let follow = Follow::new(transfer, watch, paths, settings, log);
        let task = tokio::spawn(follow.run(received));
        Ok(Self {
            commands,
            task,
            output,
            raw,
            server: None,
            is_warned: false,
        })
    }

    /// Makes the socket for clients on the node, unless it is there. Of failures in a row the first
    /// is a warning.
    async fn serve(&mut self) {
        if self.server.is_some() {
            return;
        }
        match Server::start(&self.raw, self.output.clone()).await {
            Ok(server) => {
                self.server = server;
                self.is_warned = false;
            }
            Err(error) => {
                let raw = self.raw.display();
                let error: &dyn std::error::Error = &error;
                if self.is_warned {
                    tracing::debug!(%raw, error, "console still has no socket for clients on the node");
                } else {
                    tracing::warn!(%raw, error, "console has no socket for clients on the node");
                }
                self.is_warned = true;
            }
        }
    }

    /// Whether clients on the node find a socket.
    fn is_served(&self) -> bool {
        self.server.is_some()
    }

    /// A client of the console; `None` when the emulator reads no FIFO. It ends with the follower.
    pub async fn attach(&self) -> Result<Option<Client>> {
        self.output.client(&self.raw).await
    }

    /// Opens the log at its path again, after kubelet renamed it. When this returns the new file
    /// exists and everything later goes there. Repeatable.
    pub async fn reopen(&self) -> Result<()> {
        in_time(self.send(Command::Reopen)).await
    }

    /// The machine has ended: copies the rest, ends an unfinished line, saves the position and
    /// stops following. The files stay; after an error the same can be tried again with a new
    /// follower.
    pub async fn finish(self) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        in_time(self.send(|reply| Command::Finish(reply, deadline))).await?;
        self.ended().await
    }

    /// Stops following, at the end of the daemon: the machine continues and a later follower takes
    /// over here. Returns after a few seconds even if a disk is stuck.
    pub async fn stop(self) {
        let stopped = async {
            // Fails when the task has ended before.
            let _ = self.commands.send(Command::Stop).await;
            // A task that panicked has ended, too.
            let _ = self.task.await;
        };
        // After the deadline the task ends by itself when its disk answers.
        let _ = timeout(STOP_DEADLINE, stopped).await;
    }

    /// Whether copying has ended although it was not requested: start another one.
    pub fn is_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends its task as a lost thread does.
    #[cfg(test)]
    async fn lose(&self) {
        self.task.abort();
        while !self.is_ended() {
            tokio::task::yield_now().await;
        }
    }

    async fn send(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<()>>) -> Command,
    ) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| Error::Ended)?;
        answer.await.map_err(|_| Error::Ended)?
    }

    async fn ended(self) -> Result<()> {
        in_time(async { self.task.await.map_err(|_| Error::Ended) }).await
    }
}

/// Opens the files of a console for an emulator.
pub(super) async fn open(paths: &Paths) -> Result<Files> {
    let raw = paths.raw.clone();
    let opened = move || clients::open(&raw).map_err(|source| Error::OpenRaw { path: raw, source });
    soon_on_thread(opened).await
}

/// Removes the raw file and what is beside it, once no follower is left; the log is kubelet's. Missing
/// files are fine.
pub async fn remove(paths: &Paths) -> Result<()> {
    let raw = paths.raw.clone();
    let removed = move || {
        let position = PositionFile::beside(&raw);
        let [live, spare] = position.paths();
        // The raw file first: a position without it is harmless, the reverse would repeat lines.
        let beside = [clients::input(&raw), socket(&raw)];
        [&raw, &beside[0], &beside[1], live, spare]
            .into_iter()
            .try_for_each(remove_file)
    };
    soon_on_thread(removed).await
}

fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Remove {
            path: path.into(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Runs `work` on a blocking thread, also to its end when the caller has disconnected.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    on_thread_of(place().await?, work).await
}

/// As [`on_thread`], within the deadline. The wait for the place of a thread has one of its own.
async fn soon_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let place = timeout(DEADLINE, place()).await;
    let place = place.map_err(|_| Error::Crowded)??;
    in_time(async { on_thread_of(place, work).await? }).await
}

/// The place of a thread.
async fn place() -> Result<SemaphorePermit<'static>> {
    THREADS.acquire().await.map_err(|_| Error::Ended)
}

async fn on_thread_of<T: Send + 'static>(
    permit: SemaphorePermit<'static>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    // The permit returns with the answer, when the thread is free for the next work.
    let (answer, _permit) = spawn_blocking(move || (work(), permit))
        .await
        .map_err(|_| Error::Ended)?;
    Ok(answer)
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(DEADLINE, work).await.map_err(|_| Error::Stuck)?
}

/// Writes a position for the fixtures of later versions.
#[cfg(test)]
pub(crate) fn write_position(raw: &Path) {
    let position = position::Position {
        raw_inode: 17,
        offset: 7,
        line_open: true,
        log: None,
    };
    PositionFile::beside(raw).save(&position).unwrap();
}

#[cfg(test)]
mod tests;
