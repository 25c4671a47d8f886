//! Runs commands in guests, through the QEMU guest agent.
//!
//! Invariant: a command that did not end in time, or whose client disconnected, is killed with all
//! that it started. Both streams return byte for byte up to a bound that the guest keeps, so
//! that no output, however long, can break the channel to the agent.
//! Failure: [`Error`] states what is missing in the guest; a command's own exit code, whatever it
//! is, is no failure.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podspec::ContainerId;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod command;
pub(super) mod error;
pub(super) mod slots;

pub use error::Error;

use super::error::Result;
use super::model::Container;
use super::service::Containers;
use crate::clock;
use crate::platform::Platform;
use command::Run;

/// What a command without a time-out gets.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// In the first two minutes of a machine, in nanoseconds, its agent is waited for: the guest may
/// still boot.
const BOOT: i64 = 120 * 1_000_000_000;
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// What a command wrote, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output; at most 16 MiB of it.
    pub out: Vec<u8>,
    /// Standard error; at most 16 MiB of it.
    pub err: Vec<u8>,
    /// Its exit code, or 128 and the number of the signal that killed it.
    pub code: i32,
}

impl<P: Platform> Containers<P> {
    /// Runs a command in a running machine and waits for its end, and for its beginning while the
    /// guest boots. Without a time-out it gets four hours. When the returned future is dropped the
    /// command is killed.
    pub async fn exec(
        self: &Arc<Self>,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<Output> {
        let row = self.check_exec(id)?;
        self.check_connected("run a command in").await?;
        let timeout = timeout.unwrap_or(LONGEST);
        let deadline = Instant::now() + timeout;
        let slot = tokio::time::timeout_at(deadline, self.exec_slots.take(id)).await;
        let Ok(slot) = slot else {
            return Err(Error::Timeout(timeout).into());
        };
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let run = Run::new(
            Arc::clone(&self.parts.hypervisor),
            row.domain(),
            command,
            (timeout, deadline),
            gone.clone(),
        );
        let booted = row.started_at.saturating_add(BOOT);
        let (this, id) = (Arc::clone(self), id.clone());
        let (starts, started) = oneshot::channel();
        let to_end = async move {
            let _slot = slot;
            let process = loop {
                match run.start().await {
                    Err(Error::NoAgent(_))
                        if this.is_running(&id)
                            && clock::now() < booted
                            && deadline > Instant::now() + RETRY_INTERVAL
                            && !gone.is_cancelled() =>
                    {
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                    other => break other,
                }
            };
            let ended = match process {
                Ok(process) => {
                    starts.send(()).ok();
                    run.finish(process).await
                }
                Err(e) => Err(e),
            };
            match ended {
                // Without a machine there is no agent either.
                Err(Error::NoAgent(_) | Error::Silent(_) | Error::Timeout(_))
                    if !this.is_running(&id) =>
                {
                    Err(Error::Ended.into())
                }
                other => Ok(other?),
            }
        };
        tokio::select! {
            ended = self.parts.tasks.finish(to_end) => ended,
            // The work continues without the client, and kills what it still starts.
            () = too_late(started, deadline) => Err(Error::NotStarted(timeout).into()),
        }
    }

    /// The machine of a container, if it runs and can run commands.
    pub fn check_exec(&self, id: &ContainerId) -> Result<Arc<Container>> {
        self.check_runs(id, "asked to run a command")
    }

    /// The socket of a machine's serial console, which accepts one client at a time.
    pub fn console_socket(&self, id: &ContainerId) -> Result<PathBuf> {
        let row = self.check_runs(id, "attached to")?;
        Ok(self.paths.console_socket(&row.id))
    }

    fn check_runs(&self, id: &ContainerId, verb: &'static str) -> Result<Arc<Container>> {
        let row = self.row(id)?;
        if !row.phase.runs() {
            return Err(super::Error::Phase {
                id: id.clone(),
                phase: row.phase,
                verb,
            });
        }
        if !row.boots() {
            return Err(super::Error::Placeholder(id.clone()));
        }
        Ok(row)
    }

    fn is_running(&self, id: &ContainerId) -> bool {
        let row = self.parts.table.get(id);
        row.is_some_and(|row| row.phase.runs())
    }
}

/// Returns at the deadline, unless something has started before.
async fn too_late(started: oneshot::Receiver<()>, deadline: Instant) {
    if tokio::time::timeout_at(deadline, started).await.is_ok() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
