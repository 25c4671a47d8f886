//! Follows a process: its output into the log and to clients, its end into the record.
//!
//! Invariant: the guest may forget output, and the process, only after they are recorded. A
//! connection that breaks is made again, and the process continues meanwhile. A process that runs
//! waits for a log that cannot be written; the record of its end does not, but for a moment.
//! Failure: a process ends with its pod machine, and with the `vmlet-guest` that started it.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use guestapi::Stream;
use podspec::ContainerId;
use tokio::time::{Instant, MissedTickBehavior};

use super::live::{Live, Session};
use super::log::Log;
use crate::clock;
use crate::guest::{self, Agent, Command};
use crate::platform::Platform;
use crate::vm::console::Rest;
use crate::vm::error::Result;
use crate::vm::model::{Container, Exit};
use crate::vm::service::Containers;
use crate::vm::stats::{Cpu, Memory, Usage};

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Interval of the attempts to write a log, and to reach the guest again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long the log is attempted once the process has ended, as that of a machine.
const LAST_ATTEMPTS: Duration = Duration::from_secs(10);
/// Interval of the reports of what a process uses.
const USAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Time for `vmlet-guest` to answer a new connection.
const ANSWER: Duration = Duration::from_secs(5);
/// Exit code of a process whose end was not observed.
const UNKNOWN: i32 = 255;
/// Exit code of what is killed.
const KILLED: i32 = 137;
/// The end of what is killed.
const KILL: guest::End = guest::End {
    code: KILLED,
    out_of_memory: false,
};

/// A session that is connected.
pub(super) type Connected = (Agent, Command);

impl<P: Platform> Containers<P> {
    /// Follows a process in a task of its own, from this session on or from one that the guest
    /// keeps. The daemon's end ends the task, not the process.
    pub(super) fn spawn_follower(
        self: &Arc<Self>,
        id: &ContainerId,
        live: Arc<Live>,
        connected: Option<Connected>,
    ) {
        let this = Arc::clone(self);
        let id = id.clone();
        tokio::spawn(async move {
            let exit = this.follow_to_end(&id, &live, connected).await;
            faultpoint::point("process.exit.known");
            let recorded = this.record_end(&id, |_| exit.clone()).await;
            let released = match recorded {
                Ok(Some(row)) => this.let_go(&row).await,
                Ok(None) => Ok(()),
                Err(e) => Err(e),
            };
            faultpoint::point("process.exit.recorded");
            this.processes.end(&id);
            match released {
                Ok(()) => {
                    if let Some(session) = &*live.session.borrow() {
                        session.control.close();
                    }
                }
                Err(e) => {
                    let error = crate::one_line(&e);
                    tracing::warn!(container = %id, error, "container exit not recorded");
                }
            }
        });
    }

    /// Returns how the process ended.
    async fn follow_to_end(
        &self,
        id: &ContainerId,
        live: &Live,
        mut connected: Option<Connected>,
    ) -> Exit {
        loop {
            let session = match connected.take() {
                Some(session) => Ok(session),
                None => self.adopt_process(id, live).await,
            };
            match session {
                Ok((_, command)) if self.is_over(id) => {
                    command.control.close();
                    return exit(KILL);
                }
                Ok((agent, command)) => {
                    let usage = keep_usage(&agent, id, live);
                    let end = tokio::select! {
                        end = carry(live, command) => end,
                        () = usage => continue,
                    };
                    if let Ok(end) = end {
                        return exit(end);
                    }
                }
                Err(guest::Error::NoSession(words)) => {
                    return Exit {
                        code: UNKNOWN,
                        reason: "Unknown".to_owned(),
                        message: format!("vmlet-guest no longer has the process: {words}"),
                    };
                }
                Err(error) => {
                    let error = crate::one_line(&error);
                    tracing::debug!(container = %id, error, "process not reached");
                }
            }
            if let Some(exit) = self.end_of_pod_machine(id) {
                return exit;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Whether the end of a process is recorded: its kill was not confirmed, or it was removed.
    fn is_over(&self, id: &ContainerId) -> bool {
        let row = self.parts.table.get(id);
        row.is_none_or(|row| !row.phase.runs())
    }

    /// Connects to a process that the guest keeps.
    async fn adopt_process(
        &self,
        id: &ContainerId,
        live: &Live,
    ) -> Result<Connected, guest::Error> {
        let row = self.parts.table.get(id).ok_or(guest::Error::Lost)?;
        let machine = self.pod_machine(&row.sandbox).ok_or(guest::Error::Lost)?;
        let socket = self.guest_port(&machine);
        let agent = self.guests.agent(&machine.id, &socket, ANSWER).await;
        let agent = agent.ok_or(guest::Error::Lost)?;
        let mut log = live.log.lock().await;
        if log.is_none() {
            let path = row.spec.log_path.clone();
            let saved = self.paths.process_position(id);
            let opened = tokio::task::spawn_blocking(move || Log::open(&path, &saved)).await;
            match opened {
                Ok(Ok(opened)) => *log = Some(opened),
                Ok(Err(error)) => {
                    let error = crate::one_line(&error);
                    tracing::warn!(container = %id, error, "log of a process not opened");
                }
                Err(_) => {}
            }
        }
        let log = log.as_mut().ok_or(guest::Error::Lost)?;
        log.forget();
        let command = agent.adopt(id.as_str(), log.stored()).await?;
        Ok((agent, command))
    }

    /// How a process ended whose machine has ended.
    fn end_of_pod_machine(&self, id: &ContainerId) -> Option<Exit> {
        let row = self.parts.table.get(id);
        let machine = row.and_then(|row| self.pod_machine(&row.sandbox));
        if machine
            .as_ref()
            .is_some_and(|machine| machine.phase.may_run())
        {
            return None;
        }
        let end = machine.and_then(|machine| machine.exit.clone());
        let end = end.map_or_else(String::new, |end| {
            format!(": {} {}", end.reason, end.message)
        });
        Some(Exit {
            code: KILLED,
            reason: "Error".to_owned(),
            message: format!("the machine of the pod ended{end}")
                .trim()
                .to_owned(),
        })
    }

    /// Continues in a new log after the rotation of the old one.
    pub(in crate::vm) async fn reopen_process_log(&self, row: &Container) -> Result<()> {
        let Some(live) = self.processes.get(&row.id) else {
            return Ok(());
        };
        let mut slot = live.log.lock().await;
        let Some(mut log) = slot.take() else {
            return Ok(());
        };
        let work = move || {
            let reopened = log.reopen();
            (log, reopened)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let (log, reopened) = done.map_err(crate::tasks::Aborted::from)?;
        *slot = Some(log);
        Ok(reopened?)
    }
}

/// Carries a session to the end of the process.
async fn carry(live: &Live, command: Command) -> Result<guest::End, guest::Error> {
    let Command {
        input,
        mut stdout,
        mut stderr,
        control,
        mut ended,
    } = command;
    live.session.send_replace(Some(Session {
        input: Arc::new(input),
        control,
    }));
    let deadline = LogDeadline::default();
    let output = async {
        let mut out = vec![0; PIECE];
        let mut err = vec![0; PIECE];
        let mut has_out = true;
        let mut has_err = true;
        while has_out || has_err {
            // An error of a pipe in memory is its end.
            tokio::select! {
                read = stdout.read(&mut out), if has_out => {
                    let length = read.unwrap_or(0);
                    has_out = length > 0;
                    let stored = store(live, Stream::Stdout, &out[..length], &deadline);
                    stdout.acknowledge(stored.await);
                }
                read = stderr.read(&mut err), if has_err => {
                    let length = read.unwrap_or(0);
                    has_err = length > 0;
                    let stored = store(live, Stream::Stderr, &err[..length], &deadline);
                    stderr.acknowledge(stored.await);
                }
            }
        }
    };
    let mut output = pin!(output);
    let known = tokio::select! {
        () = &mut output => None,
        end = ended.wait() => Some(end),
    };
    let end = match known {
        None => ended.wait().await,
        Some(end) => {
            deadline.begin();
            // To its end: a thread that writes the log is not left alone with it.
            output.await;
            end
        }
    };
    let end = end?;
    deadline.begin();
    for stream in [Stream::Stdout, Stream::Stderr] {
        flush(live, stream, Rest::End, &deadline).await;
    }
    Ok(end)
}

/// Until when a log that cannot be written is attempted: without an end while the process runs.
#[derive(Debug, Default)]
struct LogDeadline(OnceLock<Instant>);

impl LogDeadline {
    /// The process has ended. Again: no effect.
    fn begin(&self) {
        self.0.get_or_init(|| Instant::now() + LAST_ATTEMPTS);
    }

    fn is_over(&self) -> bool {
        self.0.get().is_some_and(|end| Instant::now() >= *end)
    }
}

/// Writes output to the log and sends it to clients; returns how many bytes are stored now.
async fn store(live: &Live, stream: Stream, bytes: &[u8], deadline: &LogDeadline) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    if let Some(log) = &mut *live.log.lock().await {
        log.receive(stream, bytes);
    }
    // Without a client nothing is lost.
    let _ = live.output.send((stream, Bytes::copy_from_slice(bytes)));
    flush(live, stream, Rest::Hold, deadline).await
}

/// Writes what is whole, again and again while the disk is full: the process waits for room. What
/// is not written before the deadline is lost.
async fn flush(live: &Live, stream: Stream, rest: Rest, deadline: &LogDeadline) -> usize {
    persist(deadline, || write(live, stream, rest)).await
}

/// Writes what is whole, once; returns how many bytes are stored, if it could be written.
async fn write(live: &Live, stream: Stream, rest: Rest) -> Option<usize> {
    let mut slot = live.log.lock().await;
    let Some(mut log) = slot.take() else {
        return Some(0);
    };
    let work = move || {
        let stored = log.flush(stream, rest);
        (log, stored)
    };
    let Ok((log, stored)) = tokio::task::spawn_blocking(work).await else {
        return Some(0);
    };
    *slot = Some(log);
    let logged = stored.inspect_err(|error| {
        let error = crate::one_line(error);
        tracing::warn!(error, "log of a process not written");
    });
    logged.ok()
}

/// Attempts until it succeeds or the deadline has passed; returns how many bytes are stored.
async fn persist<F>(deadline: &LogDeadline, mut attempt: impl FnMut() -> F) -> usize
where
    F: Future<Output = Option<usize>>,
{
    loop {
        if let Some(stored) = attempt().await {
            return stored;
        }
        if deadline.is_over() {
            return 0;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Keeps what the process uses, until the connection ends.
async fn keep_usage(agent: &Agent, id: &ContainerId, live: &Live) {
    let mut ticks = tokio::time::interval(USAGE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match agent.usage(id.as_str()).await {
            Ok(Some(used)) => {
                let mut usage = live.usage();
                let at = clock::now();
                let now = cgroup::Memory {
                    usage: used.memory,
                    working_set: used.working_set,
                    rss: used.anonymous,
                    ..cgroup::Memory::default()
                };
                *usage = Usage {
                    cpu: Some(Cpu::after(usage.cpu, at, used.cpu)),
                    memory: Some(Memory { at, now }),
                    ..Usage::default()
                };
            }
            Ok(None) => {}
            Err(error) => {
                let error = crate::one_line(&error);
                tracing::debug!(container = %id, error, "usage of a process not reported");
            }
        }
    }
}

/// The end as clients see it.
fn exit(end: guest::End) -> Exit {
    let reason = match end {
        // Of the first process: what else was killed did not end the container.
        guest::End {
            code: KILLED,
            out_of_memory: true,
        } => "OOMKilled",
        guest::End { code: 0, .. } => "Completed",
        _ => "Error",
    };
    Exit {
        code: end.code,
        reason: reason.to_owned(),
        message: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_process_does_not_wait_for_a_log_that_cannot_be_written() {
        let deadline = LogDeadline::default();
        let attempts = Cell::new(0);
        let fails = || {
            attempts.set(attempts.get() + 1);
            std::future::ready(None)
        };
        let long = Duration::from_secs(3600);
        let running = tokio::time::timeout(long, persist(&deadline, fails)).await;
        assert!(
            running.is_err(),
            "the output of a process that runs was dropped"
        );
        let begun = Instant::now();
        deadline.begin();
        assert_eq!(persist(&deadline, fails).await, 0);
        assert_eq!(begun.elapsed(), LAST_ATTEMPTS);
        assert_eq!(persist(&deadline, || std::future::ready(Some(7))).await, 7);
        deadline.begin();
        let before = attempts.get();
        assert_eq!(persist(&deadline, fails).await, 0);
        assert_eq!(attempts.get(), before + 1, "once more for each piece");
    }
}
