//! Runs commands in guests: by `vmlet-guest` when it answers, else by the QEMU guest agent.
//!
//! Invariant: a command that did not end in time, or whose client disconnected, is killed with all
//! that it started. Both streams return byte for byte up to a bound, so that no output, however
//! long, can break the channel to an agent. All output that is held has a budget of bytes.
//! Failure: [`Error`] states what is missing in the guest; a command's own exit code, whatever it
//! is, is no failure.

use std::sync::Arc;
use std::time::Duration;

use libvirt::guest::Process;
use podspec::ContainerId;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod budget;
mod collect;
mod command;
pub(super) mod error;
mod probe;
pub(super) mod slots;

pub(super) use budget::Budget;
pub use budget::Stream;
pub use error::Error;

use super::console::Client;
use super::error::Result;
use super::model::Container;
use super::service::Containers;
use crate::clock;
use crate::guest;
use crate::machine_socket::MachineSocket;
use crate::platform::Platform;
use crate::vm::process::PodMachineError;
use collect::{Limits, collect};
use command::Run;
use slots::{Length, Slot};

/// What a command without a time-out gets.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// How long a command waits for those of other machines: well below the two minutes that kubelet
/// gives a request beyond the time-out of the command.
const TURN: Duration = slots::SHORT;

/// How long a command waits at most for those of its own machine.
const MACHINE_TURN: Duration = Duration::from_secs(120);

/// In the first two minutes of a machine, in nanoseconds, its agent is waited for: the guest may
/// still boot.
const BOOT: i64 = 120 * 1_000_000_000;
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Time for `vmlet-guest` to answer a new connection before the QEMU guest agent is tried.
const FIRST_ANSWER: Duration = Duration::from_millis(250);
/// Time for it to answer a new connection when there is no other agent.
const ONLY_ANSWER: Duration = Duration::from_secs(5);

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub struct Output {
    /// Standard output; at most 16 MiB of it.
    pub out: Stream,
    /// Standard error; at most 16 MiB of it.
    pub err: Stream,
    /// Its exit code, or 128 and the number of the signal that killed it.
    pub code: i32,
}

/// What runs a command.
enum Runner {
    /// `vmlet-guest`.
    Ours(guest::Agent),
    /// The QEMU guest agent, which has started it.
    Qemu(Process),
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
        let running = self.parts.metrics.begin("command");
        let ended = self.exec_to_end(id, command, timeout).await;
        running.end(ended.is_ok());
        ended
    }

    async fn exec_to_end(
        self: &Arc<Self>,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<Output> {
        let row = self.check_exec(id)?;
        let machine = self.machine_of(&row)?;
        let start = self.exec_start(id, command.clone(), false, None).await?;
        self.check_connected("run a command in").await?;
        let length = Length::from_timeout(timeout);
        let timeout = timeout.unwrap_or(LONGEST);
        let machine_slot = self.machine_slot(id, length, timeout).await?;
        let mut ours = None;
        let mut node_slot = None;
        if !row.is_process() {
            let socket = self.guest_port(&machine);
            ours = self.guests.agent(&machine.id, &socket, FIRST_ANSWER).await;
            if ours.is_none() {
                node_slot = Some(self.node_slot(&machine, length).await?);
            }
        }
        let deadline = Instant::now() + timeout;
        let gone = CancellationToken::new();
        let _gone = gone.clone().drop_guard();
        let limits = Limits {
            timeout,
            deadline,
            gone: gone.clone(),
            budget: self.exec_budget.clone(),
        };
        let run = Run::new(
            Arc::clone(&self.parts.hypervisor),
            machine.domain(),
            command,
            (timeout, deadline),
            gone,
            self.exec_budget.clone(),
        );
        let this = Arc::clone(self);
        let (starts, started) = oneshot::channel();
        let to_end = async move {
            let _slot = machine_slot;
            let first = match ours {
                Some(agent) => Ok(Runner::Ours(agent)),
                None if row.is_process() => this.only_ours(&machine).await,
                None => this.first_agent(&machine, &run, &limits).await,
            };
            // It appeared meanwhile, and needs no place of the node.
            let _slot_of_qemu = node_slot.filter(|_| !matches!(first, Ok(Runner::Ours(_))));
            let ended = match first {
                Ok(Runner::Ours(agent)) => match agent.run(start).await {
                    Ok(command) => {
                        starts.send(()).ok();
                        collect(command, &limits).await
                    }
                    Err(e) => Err(e.into()),
                },
                Ok(Runner::Qemu(process)) => {
                    starts.send(()).ok();
                    run.finish(process).await
                }
                Err(e) => Err(e),
            };
            match ended {
                // Without a machine there is no agent either.
                Err(
                    Error::NoAgent(_)
                    | Error::Silent(_)
                    | Error::Timeout(_)
                    | Error::Guest(guest::Error::Lost),
                ) if !this.is_running(&machine.id) => Err(Error::Ended.into()),
                other => Ok(other?),
            }
        };
        tokio::select! {
            ended = self.parts.tasks.finish(to_end) => ended,
            // The work continues without the client, and kills what it still starts.
            () = too_late(started, deadline) => Err(Error::NotStarted(timeout).into()),
        }
    }

    /// A place in the machine, for which a command waits in its own time.
    async fn machine_slot(
        &self,
        id: &ContainerId,
        length: Length,
        timeout: Duration,
    ) -> std::result::Result<Slot, Error> {
        let wait = timeout.min(MACHINE_TURN);
        let slot = tokio::time::timeout(wait, self.exec_slots.in_machine(id, length)).await;
        slot.map_err(|_| {
            if wait < timeout {
                Error::MachineCrowded
            } else {
                Error::Timeout(timeout)
            }
        })
    }

    /// A place on the node, for a command of the QEMU guest agent.
    async fn node_slot(
        &self,
        machine: &Container,
        length: Length,
    ) -> std::result::Result<Slot, Error> {
        let namespace = self.namespace(machine);
        let slot = tokio::time::timeout(TURN, self.exec_slots.on_node(&namespace, length)).await;
        slot.map_err(|_| Error::Crowded)
    }

    /// The QEMU guest agent would run a command without what a process has.
    async fn only_ours(&self, machine: &Container) -> std::result::Result<Runner, Error> {
        let socket = self.guest_port(machine);
        let agent = self.guests.agent(&machine.id, &socket, ONLY_ANSWER).await;
        agent
            .map(Runner::Ours)
            .ok_or(Error::Guest(guest::Error::NoAnswer(ONLY_ANSWER)))
    }

    /// A command as it runs in a container: in a process's with its user, its environment, its
    /// directory and its limits.
    pub async fn exec_start(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        input: bool,
        terminal: Option<guestapi::Terminal>,
    ) -> Result<guest::Start> {
        let surroundings = if self.row(id)?.is_process() {
            self.read_start(id).await?
        } else {
            guest::Start::default()
        };
        Ok(guest::Start {
            command,
            input,
            terminal,
            keep: String::new(),
            within: surroundings.keep.clone(),
            // They are those of the process, within which it runs.
            limits: Vec::new(),
            sysctls: Vec::new(),
            ..surroundings
        })
    }

    /// The machine that a container is, or is a process of.
    fn machine_of(&self, row: &Arc<Container>) -> Result<Arc<Container>> {
        if row.is_process() {
            self.pod_machine(&row.sandbox)
                .ok_or_else(|| PodMachineError::Gone(row.sandbox.clone()).into())
        } else {
            Ok(Arc::clone(row))
        }
    }

    /// The agent that runs a command: with that of QEMU it runs already. Waits for one while the
    /// guest boots.
    async fn first_agent(
        &self,
        row: &Container,
        run: &Run<P::Hypervisor>,
        limits: &Limits,
    ) -> std::result::Result<Runner, Error> {
        let booted = row.started_at.saturating_add(BOOT);
        let socket = self.guest_port(row);
        let ours = |limit| self.guests.agent(&row.id, &socket, limit);
        loop {
            if let Some(agent) = ours(FIRST_ANSWER).await {
                return Ok(Runner::Ours(agent));
            }
            match run.start().await {
                Ok(process) => return Ok(Runner::Qemu(process)),
                Err(Error::NoAgent(_))
                    if self.is_running(&row.id)
                        && clock::now() < booted
                        && limits.deadline > Instant::now() + RETRY_INTERVAL
                        && !limits.gone.is_cancelled() =>
                {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(Error::NoAgent(e)) => {
                    let agent = ours(ONLY_ANSWER).await;
                    return agent.map(Runner::Ours).ok_or(Error::NoAgent(e));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// `vmlet-guest` in a running machine, if it answers within this time after the daemon has
    /// connected.
    pub async fn guest_agent(
        &self,
        id: &ContainerId,
        limit: Duration,
    ) -> Result<Option<guest::Agent>> {
        let machine = self.machine_of(&self.check_exec(id)?)?;
        let socket = self.guest_port(&machine);
        Ok(self.guests.agent(&machine.id, &socket, limit).await)
    }

    /// What `vmlet-guest` in a running machine reports, if it answers.
    pub async fn guest_facts(&self, id: &ContainerId) -> Option<Arc<guestapi::Facts>> {
        let agent = self.guest_agent(id, Duration::ZERO).await.ok()??;
        match agent.facts().await {
            Ok(facts) => Some(self.guests.remember(id, &agent, facts)),
            Err(error) => {
                let error = crate::one_line(&error);
                tracing::debug!(container = %id, error, "guest facts not reported");
                None
            }
        }
    }

    /// The last report of `vmlet-guest` in a running machine.
    pub fn last_guest_report(&self, id: &ContainerId) -> Option<guest::Report> {
        self.guests.report(id)
    }

    /// The machine of a container, if it runs and can run commands.
    pub fn check_exec(&self, id: &ContainerId) -> Result<Arc<Container>> {
        self.check_runs(id, "asked to run a command")
    }

    /// A client of a machine's console; `None` when that is at libvirt's socket, see
    /// [`Self::console_socket`].
    pub async fn attach_console(&self, id: &ContainerId) -> Result<Option<Client>> {
        self.follow_running(id).await?;
        Ok(self.consoles.attach(id).await?)
    }

    /// Whether our own socket leads to a machine's console, and not that of libvirt.
    pub(in crate::vm) async fn serves_console(&self, id: &ContainerId) -> Result<bool> {
        self.follow_running(id).await?;
        Ok(self.consoles.is_served(id).await?)
    }

    /// Not followed yet when the daemon has just started and libvirt is away.
    async fn follow_running(&self, id: &ContainerId) -> Result<()> {
        let _end = self.end_lock(id).await;
        let row = self.check_runs(id, "attached to")?;
        self.follow(&row).await
    }

    /// libvirt's socket for the serial console of a machine, which serves one client at a time if the
    /// machine's emulator is that of an earlier version, or its wrapper could not change the port;
    /// `None` for a process, which has none.
    pub fn console_socket(&self, id: &ContainerId) -> Result<Option<MachineSocket>> {
        let row = self.check_runs(id, "attached to")?;
        let socket = |path| self.machine_socket(&row, path);
        let path = (!row.is_process()).then(|| self.paths.console_socket(&row.id));
        Ok(path.map(socket))
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
        if !row.boots() && !row.is_process() {
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
