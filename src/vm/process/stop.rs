//! Stops a process: its stop signal, then SIGKILL.
//!
//! Invariant: the deadline is recorded before the signal is sent; a daemon that was restarted goes
//! on with it.
//! Failure: a guest that does not report the end of a killed process is not waited for: the session
//! is closed, which kills what is left, and the end is recorded. A guest that is not connected then
//! gets the same when it is.

use std::time::Duration;

use podspec::ContainerId;

use super::live::{Attached, Session};
use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::model::{Container, Exit, Part};
use crate::vm::service::Containers;
use crate::vm::state::Phase;
use crate::vm::stats::Usage;

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// Time for the guest to report the end of a killed process.
const KILL: Duration = Duration::from_secs(5);

impl<P: Platform> Containers<P> {
    /// Ends the start of a process that is in progress; an earlier daemon's is undone.
    pub(in crate::vm) async fn stop_process_start(&self, row: &Container) -> Result<()> {
        let mut changes = self.parts.table.changes();
        if let Some(live) = self.processes.get(&row.id) {
            live.stop.cancel();
            while self
                .row(&row.id)
                .is_ok_and(|row| row.phase == Phase::Starting)
            {
                if changes.changed().await.is_err() {
                    break;
                }
            }
            return Ok(());
        }
        let _lock = self.parts.locks.lock(row.sandbox.as_str()).await;
        let row = self.row(&row.id)?;
        match row.phase {
            Phase::Starting => self.undo_process_start(&row).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Sends the stop signal, once the guest is connected.
    pub(in crate::vm) async fn request_end(&self, row: &Container) {
        if let Some(session) = self.session_of(row).await {
            let number = match row.spec.part {
                Part::Process { stop_signal, .. } => stop_signal,
                Part::Machine | Part::PodMachine => SIGTERM,
            };
            session.control.signal(number).await;
        }
    }

    /// Kills a process whose grace period has ended.
    pub(in crate::vm) async fn kill_process(&self, row: &Container) -> Result<()> {
        let mut changes = self.parts.table.changes();
        let is_over = || self.row(&row.id).map_or(true, |row| !row.phase.runs());
        let killed = async {
            let session = self.session_of(row).await;
            if let Some(session) = &session {
                session.control.signal(SIGKILL).await;
            }
            while !is_over() && changes.changed().await.is_ok() {}
        };
        if tokio::time::timeout(KILL, killed).await.is_ok() {
            return Ok(());
        }
        if let Some(live) = self.processes.get(&row.id)
            && let Some(session) = &*live.session.borrow()
        {
            session.control.close();
        }
        let exit = |_: &Container| Exit {
            code: 128 + SIGKILL,
            reason: "Error".to_owned(),
            message: "killed: the guest did not report the end".to_owned(),
        };
        match self.record_end(&row.id, exit).await? {
            Some(row) => self.let_go(&row).await,
            None => Ok(()),
        }
    }

    /// Whether a task starts or follows a process.
    pub(in crate::vm) fn is_followed(&self, id: &ContainerId) -> bool {
        self.processes.get(id).is_some()
    }

    /// The session of a process, once it is connected; `None` when no task follows it.
    async fn session_of(&self, row: &Container) -> Option<Session> {
        let live = self.processes.get(&row.id)?;
        let mut session = live.session.subscribe();
        let session = session.wait_for(Option::is_some).await.ok()?;
        session.clone()
    }

    /// Attaches a client to a process that runs.
    pub async fn attach_process(&self, id: &ContainerId) -> Result<Attached> {
        let row = self.row(id)?;
        let refused = || Error::Phase {
            id: id.clone(),
            phase: row.phase,
            verb: "attached to",
        };
        let live = self.processes.get(id).ok_or_else(refused)?;
        let session = self.session_of(&row).await.ok_or_else(refused)?;
        Ok(Attached {
            output: live.output.subscribe(),
            input: session.input,
            control: session.control,
            closes_input: matches!(
                row.spec.part,
                Part::Process {
                    stdin_once: true,
                    ..
                }
            ),
        })
    }

    /// What a process uses, as the guest reported it last.
    pub fn process_usage(&self, id: &ContainerId) -> Usage {
        let live = self.processes.get(id);
        live.map(|live| *live.usage()).unwrap_or_default()
    }
}
