//! The task behind a follower: waits, and has batches copied on blocking threads.
//!
//! Invariant: it sleeps until the raw file is written to, a prompt becomes due, a failed batch is
//! due again or a command comes; between two batches of a file that is being written passes a short
//! while, so that a chatty guest costs a few batches a second. No file is touched on a thread of
//! the runtime.
//! Failure: a failed batch is reported once, when it begins, and once when it is over; retries back
//! off. If a blocking thread is lost, the task ends, and its handle reports it.

use std::future::pending;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::lines::Rest;
use super::transfer::{Batch, Transfer};
use super::watch::Watch;
use super::{Error, Paths, Result, Settings, on_thread};

const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// What the handle requests.
#[derive(Debug)]
pub(super) enum Command {
    Reopen(oneshot::Sender<Result<()>>),
    Finish(oneshot::Sender<Result<()>>, Instant),
    Stop,
}

/// The state of the task.
#[derive(Debug)]
pub(super) struct Follow {
    /// Away while a blocking thread works with it.
    transfer: Option<Transfer>,
    watch: Watch,
    paths: Paths,
    settings: Settings,
    /// The raw file may hold something new.
    unread: bool,
    /// No batch before this time.
    not_before: Instant,
    /// Text that waits for its newline, by its end, and when it is shown without.
    held: Option<(u64, Instant)>,
    /// The pause before the present retry; `None` while all is well.
    trouble: Option<Duration>,
}

enum Wake {
    Command(Option<Command>),
    Written,
    /// A batch; text that waits for its newline and ends at this offset is shown without.
    Due(Option<u64>),
}

impl Follow {
    /// `opened`: the result of opening the log; an error of it is retried.
    pub(super) fn new(
        transfer: Transfer,
        watch: Watch,
        paths: Paths,
        settings: Settings,
        opened: Result<()>,
    ) -> Self {
        let mut follow = Self {
            transfer: Some(transfer),
            watch,
            paths,
            settings,
            unread: true,
            not_before: Instant::now(),
            held: None,
            trouble: None,
        };
        if let Err(error) = opened {
            follow.failed(&error);
        }
        follow
    }

    /// Follows until it is stopped. A dropped handle means stop.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            match self.wake(&mut commands).await {
                Wake::Written => self.unread = true,
                Wake::Due(held) => {
                    if self.step(held).await.is_err() {
                        return;
                    }
                }
                Wake::Command(Some(Command::Reopen(reply))) => {
                    let outcome = self.reopen().await;
                    // The receiver was dropped when the caller's deadline has passed.
                    let _ = reply.send(outcome);
                }
                Wake::Command(Some(Command::Finish(mut reply, deadline))) => {
                    let outcome = self.drain(&mut reply, deadline).await;
                    // As above.
                    let _ = reply.send(outcome);
                    return;
                }
                Wake::Command(Some(Command::Stop) | None) => return self.stop().await,
            }
        }
    }

    async fn wake(&self, commands: &mut mpsc::Receiver<Command>) -> Wake {
        let due = async {
            let flush = self.held.map(|(held, at)| (at, Some(held)));
            let read = self.unread.then_some((Instant::now(), None));
            match read.or(flush) {
                Some((at, held)) => {
                    sleep_until(at.max(self.not_before)).await;
                    held
                }
                None => pending().await,
            }
        };
        let written = async {
            if self.unread {
                pending().await
            } else {
                self.watch.changed().await;
            }
        };
        tokio::select! {
            biased;
            command = commands.recv() => Wake::Command(command),
            () = written => Wake::Written,
            held = due => Wake::Due(held),
        }
    }

    async fn step(&mut self, held: Option<u64>) -> Result<()> {
        self.unread = false;
        let batch = move |transfer: &mut Transfer| match held {
            Some(held) => transfer.flush(held),
            None => transfer.batch(Rest::Hold),
        };
        match self.blocking(batch).await? {
            Ok(batch) => self.copied(batch),
            Err(error) => self.failed(&error),
        }
        Ok(())
    }

    fn copied(&mut self, batch: Batch) {
        let now = Instant::now();
        if self.trouble.take().is_some() {
            let log = self.paths.log.display();
            tracing::info!(%log, "console log resumed");
        }
        self.unread |= batch.more;
        self.not_before = if batch.more {
            now
        } else {
            now + self.settings.gather
        };
        let before = self.held;
        self.held = batch.held.map(|end| match before {
            Some((same, at)) if same == end => (end, at),
            _ => (end, now + self.settings.idle),
        });
    }

    fn failed(&mut self, error: &Error) {
        let pause = self.next_pause();
        if self.trouble.is_none() {
            let log = self.paths.log.display();
            let error: &dyn std::error::Error = error;
            tracing::warn!(%log, error, "console log not written, guest output kept");
        }
        self.trouble = Some(pause);
        self.unread = true;
        self.not_before = Instant::now() + pause;
    }

    fn next_pause(&self) -> Duration {
        self.trouble
            .map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_LAST))
    }

    async fn reopen(&mut self) -> Result<()> {
        let outcome = self
            .blocking(|t| {
                t.reopen()?;
                // Not the caller's concern: the next batch saves first, or fails and is retried.
                Ok(t.save().err())
            })
            .await?;
        if outcome?.is_none() && self.trouble.is_some() {
            self.unread = true;
            self.not_before = Instant::now();
        }
        Ok(())
    }

    /// Copies everything to the end of the raw file; the caller knows that QEMU does not write any
    /// more.
    async fn drain(
        &mut self,
        reply: &mut oneshot::Sender<Result<()>>,
        deadline: Instant,
    ) -> Result<()> {
        loop {
            match self.blocking(|t| t.batch(Rest::End)).await? {
                Ok(Batch { more: false, .. }) => return Ok(()),
                Ok(batch) => self.copied(batch),
                // An end must not wait for space that perhaps only this end makes.
                Err(error) if error.is_unwritable() => return Err(error),
                Err(error) => {
                    self.failed(&error);
                    if self.not_before >= deadline {
                        return Err(error);
                    }
                }
            }
            tokio::select! {
                () = sleep_until(self.not_before) => {}
                () = reply.closed() => return Err(Error::Stuck),
            }
            if reply.is_closed() || Instant::now() >= deadline {
                return Err(Error::Stuck);
            }
        }
    }

    async fn stop(&mut self) {
        if let Ok(Err(error)) = self.blocking(Transfer::save).await {
            let raw = self.paths.raw.display();
            let error: &dyn std::error::Error = &error;
            tracing::warn!(%raw, error, "console position not saved: lines may repeat");
        }
    }

    /// Runs `work` on a blocking thread. The state returns only with the answer: if this task is
    /// aborted, the thread ends it in order.
    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Transfer) -> T + Send + 'static,
    ) -> Result<T> {
        let mut transfer = self.transfer.take().ok_or(Error::Ended)?;
        let (transfer, answer) = on_thread(move || {
            let answer = work(&mut transfer);
            (transfer, answer)
        })
        .await?;
        self.transfer = Some(transfer);
        Ok(answer)
    }
}
