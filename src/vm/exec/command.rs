//! One command in one guest, from its start to its last byte.
//!
//! Invariant: `run.sh` bounds what the agent has to carry and keeps more aside for us to fetch;
//! `kill.sh` ends whatever `run.sh` started. Between them and us are only guest-exec and
//! guest-exec-status.
//! Failure: a refusal of the agent names its step; missing replies are tolerated for a while, also
//! libvirt's.

use std::sync::Arc;
use std::time::Duration;

use libvirt::Hypervisor;
use libvirt::guest::{self, Ended, How, LARGEST_STREAM, Process, Program};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Budget, Error, Output, Stream};

const RUN: &str = include_str!("run.sh");
const KILL: &str = include_str!("kill.sh");

/// Most of a stream that is returned; `run.sh` keeps no more.
pub(super) const LONGEST_STREAM: usize = 16 << 20;
/// Time for the agent to start a program. A client with a shorter time-out gets its answer before;
/// a start that is given up may happen all the same.
const START: Duration = Duration::from_secs(30);
/// Time for the agent to answer how a program is doing, with all of its output.
const STATUS: Duration = Duration::from_secs(30);
/// Time for a kill, and for each step of fetching.
const STEP: Duration = Duration::from_secs(30);
/// Time for all that `run.sh` kept aside: with its removal below the two minutes that kubelet gives a request beyond
/// the time-out of its command.
const FETCH: Duration = Duration::from_secs(60);
/// How long an agent or libvirt may be away while a command runs.
const TROUBLE: Duration = Duration::from_secs(30);
/// The first pause between two looks at a program; each is longer than the one before, up to the
/// last.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause, for a guest that takes as long to answer.
const SLOW_PAUSE: Duration = Duration::from_secs(2);
/// The signal by which `run.sh` reports that there is no such command.
const NO_COMMAND: i32 = 10;
/// What the agent reports when a program cannot be started.
const NOT_STARTED: &str = "Failed to execute child process";

/// A command to be run.
#[derive(Debug)]
pub(super) struct Run<H> {
    hypervisor: Arc<H>,
    domain: Uuid,
    command: Vec<String>,
    /// Where `run.sh` keeps output aside, in the guest.
    stem: String,
    timeout: Duration,
    deadline: Instant,
    gone: CancellationToken,
    budget: Budget,
}

impl<H: Hypervisor> Run<H> {
    pub(super) fn new(
        hypervisor: Arc<H>,
        domain: Uuid,
        command: Vec<String>,
        (timeout, deadline): (Duration, Instant),
        gone: CancellationToken,
        budget: Budget,
    ) -> Self {
        Self {
            hypervisor,
            domain,
            command,
            stem: format!("/tmp/.vmlet-exec-{}", Uuid::new_v4().simple()),
            timeout,
            deadline,
            gone,
            budget,
        }
    }

    /// Waits for the end of the command; when it has to be given up it is killed first.
    pub(super) async fn finish(self, process: Process) -> Result<Output, Error> {
        let ended = tokio::select! {
            ended = self.wait(process) => ended?,
            () = tokio::time::sleep_until(self.deadline) => {
                self.kill(process).await;
                return Err(Error::Timeout(self.timeout));
            }
            () = self.gone.cancelled() => {
                self.kill(process).await;
                return Err(Error::Abandoned);
            }
        };
        let code = match ended.how {
            How::Code(code) => code,
            How::Signal(NO_COMMAND) => {
                return Err(Error::NoCommand(
                    self.command.into_iter().next().unwrap_or_default(),
                ));
            }
            How::Signal(signal) => 128 + signal,
        };
        let is_cut = ended.out.len() >= LARGEST_STREAM || ended.err.len() >= LARGEST_STREAM;
        let mut out = Stream::default();
        let mut err = Stream::default();
        let held = self
            .push(&mut out, &ended.out)
            .and_then(|()| self.push(&mut err, &ended.err));
        if is_cut {
            let fetched = tokio::select! {
                fetched = async {
                    held?;
                    self.fetch(&mut out, &mut err).await
                } => fetched,
                () = tokio::time::sleep(FETCH) => Err(Error::Fetch(FETCH)),
                () = self.gone.cancelled() => Err(Error::Abandoned),
            };
            // The next boot of the guest removes what stays.
            tokio::time::timeout(STEP, self.clear()).await.ok();
            fetched?;
        } else {
            held?;
        }
        Ok(Output { out, err, code })
    }

    /// Starts the command in a session of its own: one that signals its group must not hit the
    /// agent.
    pub(super) async fn start(&self) -> Result<Process, Error> {
        let mut arguments = shell(RUN, "vmlet-exec", &[&self.stem]);
        arguments.extend(self.command.iter().cloned());
        let program = |path: &str, arguments: &[String]| Program {
            path: path.to_owned(),
            arguments: arguments.to_vec(),
            input: Vec::new(),
            capture: true,
        };
        let setsid = program("setsid", &arguments);
        let plain = program("/bin/sh", arguments.get(1..).unwrap_or_default());
        match self.start_process(&setsid, START).await {
            Err(e) if is_not_started(&e) => self.start_process(&plain, START).await,
            other => other,
        }
        .map_err(|e| {
            if is_not_started(&e) {
                Error::NoShell(e)
            } else {
                refused(e)
            }
        })
    }

    async fn start_process(&self, program: &Program, time: Duration) -> libvirt::Result<Process> {
        guest::exec(&*self.hypervisor, self.domain, program, time).await
    }

    /// Looks again and again until the program has ended.
    async fn wait(&self, process: Process) -> Result<Ended, Error> {
        let mut pause = FIRST_PAUSE;
        let mut trouble = None;
        loop {
            tokio::time::sleep(pause).await;
            let requested = Instant::now();
            let status = guest::exec_status(&*self.hypervisor, self.domain, process, STATUS).await;
            pause = (pause * 3 / 2).min(LAST_PAUSE);
            match status {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {
                    trouble = None;
                    // Looks at a guest that answers slowly must not take the time of its commands.
                    pause = pause.max(requested.elapsed().min(SLOW_PAUSE));
                }
                Err(libvirt::Error::Refused { call, reason }) => {
                    return Err(Error::Lost(libvirt::Error::Refused { call, reason }));
                }
                Err(e @ libvirt::Error::Agent { .. }) => bear(&mut trouble, e)?,
                Err(e) if e.is_unavailable() => bear(&mut trouble, e)?,
                Err(e) => return Err(refused(e)),
            }
        }
    }

    /// Kills the program with all that it started, and has the agent forget it.
    async fn kill(&self, process: Process) {
        let pid = process.pid.to_string();
        let ended = self.script(KILL, &[&pid, &self.stem]).await;
        let forgotten = match ended {
            Ok(_) => tokio::time::timeout(STEP, self.wait(process)).await,
            Err(e) => Ok(Err(e)),
        };
        if let Ok(Err(e)) = forgotten {
            tracing::warn!(
                domain = %self.domain,
                error = crate::one_line(&e),
                "command may still run in the guest"
            );
        }
    }

    /// Reads what `run.sh` kept aside.
    async fn fetch(&self, out: &mut Stream, err: &mut Stream) -> Result<(), Error> {
        for (stream, suffix) in [(out, 1), (err, 2)] {
            let from = format!("if={}.{suffix}", self.stem);
            let mut block = 0;
            while stream.len() == (block + 1) * LARGEST_STREAM && stream.len() < LONGEST_STREAM {
                let skip = format!("skip={block}");
                let read = "exec dd \"$@\" bs=1048576 count=1 2>/dev/null";
                let part = self.script(read, &[&from, &skip]).await?.out;
                self.push(stream, &part)?;
                block += 1;
            }
        }
        Ok(())
    }

    fn push(&self, stream: &mut Stream, bytes: &[u8]) -> Result<(), Error> {
        stream.push(&self.budget, bytes, LONGEST_STREAM)
    }

    /// Removes what `run.sh` kept aside; the next boot of the guest removes the rest.
    async fn clear(&self) {
        let remove = "exec rm -f \"$1.1\" \"$1.2\"";
        let removed = self.script(remove, &[&self.stem]).await;
        if let Err(e) = removed {
            tracing::debug!(
                domain = %self.domain,
                error = crate::one_line(&e),
                "command files not removed from the guest"
            );
        }
    }

    /// Runs a short script of ours to its end.
    async fn script(&self, text: &str, arguments: &[&str]) -> Result<Ended, Error> {
        let program = Program {
            path: "/bin/sh".to_owned(),
            arguments: shell(text, "vmlet", arguments).split_off(1),
            input: Vec::new(),
            capture: true,
        };
        let process = self.start_process(&program, START).await.map_err(refused)?;
        match tokio::time::timeout(STEP, self.wait(process)).await {
            Ok(ended) => ended,
            Err(_) => Err(Error::Timeout(STEP)),
        }
    }
}

/// Arguments of `setsid` that have a script run.
fn shell(text: &str, name: &str, arguments: &[&str]) -> Vec<String> {
    let words = ["/bin/sh", "-c", text, name];
    let words = words.iter().chain(arguments);
    words.map(|word| (*word).to_owned()).collect()
}

fn is_not_started(error: &libvirt::Error) -> bool {
    matches!(error, libvirt::Error::Refused { reason, .. } if reason.contains(NOT_STARTED))
}

/// Sorts what keeps a program from being run.
fn refused(error: libvirt::Error) -> Error {
    match error {
        libvirt::Error::NoAgent { .. } | libvirt::Error::NoDomain(_) => Error::NoAgent(error),
        libvirt::Error::AgentForbids { .. } => Error::Forbidden(error),
        libvirt::Error::Agent { .. } => Error::Silent(error),
        _ => Error::Hypervisor(error),
    }
}

/// Notes that there is trouble; an error when it has lasted too long.
fn bear(since: &mut Option<Instant>, error: libvirt::Error) -> Result<(), Error> {
    let begun = *since.get_or_insert_with(Instant::now);
    if begun.elapsed() < TROUBLE {
        return Ok(());
    }
    Err(refused(error))
}
