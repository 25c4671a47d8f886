//! Starts a process: the pod machine first, then the command in it.
//!
//! Invariant: the sandbox's lock is not held while the guest boots: other containers of the pod
//! start beside this one, and a stop ends the wait.
//! Failure: a process that does not run is EXITED with reason `StartError`; when a helper is
//! missing it stays CREATED, and the call may be repeated.

use std::sync::Arc;
use std::time::Duration;

use podspec::ContainerId;
use tokio::time::Instant;

use super::live::Live;
use super::log::Log;
use crate::clock;
use crate::guest::{self, Agent, Command, Start};
use crate::platform::Platform;
use crate::vm::disks::seed::Surroundings;
use crate::vm::error::{Error, Result};
use crate::vm::model::{Container, Exit};
use crate::vm::process::PodMachineError;
use crate::vm::service::Containers;
use crate::vm::shares::Supplies;
use crate::vm::state::{Event, Phase};

/// Time for the guest to boot and its `vmlet-guest` to answer.
const BOOT: Duration = Duration::from_secs(100);
/// Time for it to answer one connection.
const ANSWER: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl<P: Platform> Containers<P> {
    pub(in crate::vm) async fn start_process(self: &Arc<Self>, id: &ContainerId) -> Result<()> {
        let sandbox = self.row(id)?.sandbox.clone();
        let (row, live) = {
            let _lock = self.parts.locks.lock(sandbox.as_str()).await;
            let row = self.row(id)?;
            if row.phase == Phase::Running {
                return Ok(());
            }
            self.ready_sandbox(&sandbox)?;
            let refused = || Error::Phase {
                id: id.clone(),
                phase: row.phase,
                verb: "started",
            };
            // Another request starts it.
            let live = self.processes.begin(id).ok_or_else(refused)?;
            let begun = self.begin_process(&row).await;
            match begun {
                Ok(row) => (row, live),
                Err(e) => {
                    self.processes.end(id);
                    return Err(e);
                }
            }
        };
        let started = tokio::select! {
            started = self.launch_process(&row, &live) => started,
            () = live.stop.cancelled() => Err(Error::Stopped(id.clone())),
        };
        let error = match started {
            Ok((agent, command)) => {
                faultpoint::point("process.start.running");
                let now = clock::now();
                live.begin_usage(now);
                let set = |row: &mut Container| row.started_at = now;
                let control = command.control.clone();
                match self.move_on(&row, Event::Started, "started", set).await {
                    Ok(_) => {
                        tracing::info!(container = %id, "process started");
                        self.spawn_follower(id, live, Some((agent, command)));
                        return Ok(());
                    }
                    Err(e) => {
                        control.close();
                        e
                    }
                }
            }
            Err(e) => e,
        };
        self.processes.end(id);
        tracing::warn!(container = %id, error = crate::one_line(&error), "process start failed");
        self.record_process_error(&row, &error).await?;
        Err(error)
    }

    /// Starts the pod machine and records that the process is to start; the caller holds the
    /// sandbox's lock.
    async fn begin_process(self: &Arc<Self>, row: &Container) -> Result<Arc<Container>> {
        let row = match row.phase {
            // A start that an earlier daemon began.
            Phase::Starting => self.undo_process_start(row).await?,
            _ => self.row(&row.id)?,
        };
        let refused = || PodMachineError::Gone(row.sandbox.clone());
        let machine = self.pod_machine(&row.sandbox).ok_or_else(refused)?;
        let machine = match machine.phase {
            Phase::Exited => self.make_again(&machine).await?,
            _ => machine,
        };
        self.start_locked(&machine.id).await?;
        let row = self
            .move_on(&row, Event::StartRequested, "started", |_| {})
            .await?;
        faultpoint::point("process.start.recorded");
        Ok(row)
    }

    /// A pod machine in the place of one that has ended, with the same disk.
    async fn make_again(&self, old: &Container) -> Result<Arc<Container>> {
        let sandbox = self.ready_sandbox(&old.sandbox)?;
        let files = self
            .guest_data(&sandbox, &old.spec.config, Surroundings::default())
            .await?;
        self.remove_stopped(old).await?;
        let spec = &old.spec;
        let supplies = Supplies {
            data: files,
            shares: spec.shares.clone(),
            ..Supplies::default()
        };
        self.create_machine(&sandbox, spec.config.clone(), spec.part, supplies)
            .await
    }

    async fn launch_process(&self, row: &Container, live: &Live) -> Result<(Agent, Command)> {
        let log = row.spec.log_path.clone();
        let saved = self.paths.process_position(&row.id);
        let opened = tokio::task::spawn_blocking(move || Log::open(&log, &saved)).await;
        let opened = opened.map_err(crate::tasks::Aborted::from)?;
        *live.log.lock().await = Some(opened?);
        let agent = self.await_agent(row).await?;
        let start = self.start_with_volumes(row).await?;
        let command = match agent.run(start.clone()).await {
            // An earlier daemon started it, and did not record that.
            Err(guest::Error::NoSession(_)) => {
                forget(&agent, &row.id).await;
                agent.run(start).await
            }
            other => other,
        };
        Ok((agent, command.map_err(crate::vm::exec::Error::from)?))
    }

    /// Mounts the volumes of a process; what it is started with, for commands in it, too.
    async fn start_with_volumes(&self, row: &Container) -> Result<Start> {
        let mut start = self.read_start(&row.id).await?;
        let volumes = self.attach_volumes(row).await?;
        if !volumes.is_empty() {
            start.view.get_or_insert_default().volumes = volumes;
            self.write_start(&row.id, &start).await?;
        }
        Ok(start)
    }

    /// Waits for `vmlet-guest` of the pod machine.
    async fn await_agent(&self, row: &Container) -> Result<Agent> {
        let deadline = Instant::now() + BOOT;
        loop {
            let refused = || PodMachineError::Gone(row.sandbox.clone());
            let machine = self.pod_machine(&row.sandbox).ok_or_else(refused)?;
            if !machine.phase.may_run() {
                return Err(PodMachineError::Gone(row.sandbox.clone()).into());
            }
            let socket = self.guest_port(&machine);
            if let Some(agent) = self.guests.agent(&machine.id, &socket, ANSWER).await {
                return Ok(agent);
            }
            if Instant::now() > deadline {
                return Err(PodMachineError::Silent(row.sandbox.clone(), BOOT).into());
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// `vmlet-guest` of the pod machine that a process runs in.
    pub(super) async fn agent_of(&self, row: &Container) -> Result<Agent> {
        let refused = || PodMachineError::Gone(row.sandbox.clone());
        let machine = self.pod_machine(&row.sandbox).ok_or_else(refused)?;
        let socket = self.guest_port(&machine);
        let agent = self.guests.agent(&machine.id, &socket, ANSWER).await;
        let no_answer = || crate::vm::exec::Error::from(guest::Error::NoAnswer(ANSWER));
        Ok(agent.ok_or_else(no_answer)?)
    }

    /// Makes the guest kill and forget a process that no task follows, if it has one: an earlier
    /// daemon was killed between a step and its record. Without an answer the guest keeps it until
    /// the pod machine ends.
    pub(in crate::vm) async fn forget_session(&self, row: &Container) {
        let machine = self.pod_machine(&row.sandbox);
        let Some(machine) = machine.filter(|machine| machine.phase.runs()) else {
            return;
        };
        let socket = self.guest_port(&machine);
        if let Some(agent) = self.guests.agent(&machine.id, &socket, ANSWER).await {
            forget(&agent, &row.id).await;
        }
    }

    /// Records that a process never ran.
    pub(super) async fn record_process_error(&self, row: &Container, error: &Error) -> Result<()> {
        let exit = Exit::never_ran(crate::one_line(error));
        let now = clock::now();
        let ended = |row: &mut Container| {
            row.finished_at = now;
            row.exit = Some(exit);
        };
        let row = self.move_on(row, Event::Ended, "ended", ended).await?;
        self.let_go(&row).await
    }

    pub(super) async fn undo_process_start(&self, row: &Container) -> Result<Arc<Container>> {
        self.forget_session(row).await;
        self.move_on(row, Event::StartUndone, "given back", |_| {})
            .await
    }
}

/// Makes the guest kill and forget a session, if it keeps one.
async fn forget(agent: &Agent, id: &ContainerId) {
    if let Ok(command) = agent.adopt(id.as_str(), (0, 0)).await {
        command.control.close();
    }
}
