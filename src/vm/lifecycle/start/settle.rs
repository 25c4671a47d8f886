//! Finishes or undoes a start that failed, or that an earlier process cut short.
//!
//! Invariant: a machine that ran is adopted or recorded as ended, never given back; of one that did not run,
//! nothing is left.
//! Failure: a warning; the row stays in Starting until the next request or start-up.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{End, Hypervisor, State};

use crate::clock;
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::{Container, Exit};
use crate::vm::resources::want_size_of_pod;
use crate::vm::service::Containers;
use crate::vm::state::Event;

/// Time for the tapmanager to show that it is there.
const ANSWER: Duration = Duration::from_secs(5);

impl<P: Platform> Containers<P> {
    /// Undoes a start that failed; decides whether it may be repeated.
    pub(super) async fn failed_start(&self, row: &Container, error: Error) -> Error {
        let id = &row.id;
        // The tapmanager may have restarted during the hand-off.
        let repeat = error.is_transient() || !self.network_answers().await;
        let settled = if repeat {
            self.undo_start(row).await.map(drop)
        } else {
            self.record_start_error(row, &error).await
        };
        if let Err(e) = settled {
            tracing::warn!(
                container = %id,
                error = crate::one_line(&e),
                "failed container start not settled yet"
            );
        }
        tracing::warn!(container = %id, repeat, error = crate::one_line(&error), "container start failed");
        error
    }

    async fn network_answers(&self) -> bool {
        let status = tokio::time::timeout(ANSWER, self.parts.network.status());
        matches!(status.await, Ok(Ok(_)))
    }

    async fn record_start_error(&self, row: &Container, error: &Error) -> Result<()> {
        let exit = Exit::never_ran(crate::one_line(error));
        self.drain(row).await;
        let now = clock::now();
        let ended = |row: &mut Container| {
            row.finished_at = now;
            row.exit = Some(exit);
        };
        let row = self.move_on(row, Event::Ended, "ended", ended).await?;
        self.let_go(&row).await
    }

    /// Back to CREATED, with nothing left of the machine.
    async fn undo_start(&self, row: &Container) -> Result<Arc<Container>> {
        {
            let _turn = self.domain_turn(row).await;
            if self.owns_domain(row) {
                let destroyed = self.parts.hypervisor.destroy(row.domain()).await;
                destroyed.map_err(hypervisor("stop"))?;
            }
        }
        self.drain(row).await;
        self.clean_up(row).await?;
        self.move_on(row, Event::StartUndone, "given back", |_| {})
            .await
    }

    /// Ends a start that was cut short, for a stop; the caller holds the sandbox's lock. A guest that
    /// was restored and has not run keeps its memory.
    pub(in crate::vm) async fn give_start_up(&self, row: &Container) -> Result<Arc<Container>> {
        if row.spec.instance.restore && self.has_unused_memory(row) {
            return self.undo_start(row).await;
        }
        self.settle_starting(row).await
    }

    /// Finishes or undoes a start that was cut short; the caller holds the sandbox's lock.
    pub(in crate::vm) async fn settle_starting(&self, row: &Container) -> Result<Arc<Container>> {
        if !row.boots() {
            return self.undo_start(row).await;
        }
        self.check_connected("look for").await?;
        let state = self.parts.hypervisor.state(row.domain()).await;
        let state = state.map_err(hypervisor("look for"))?;
        match state {
            Some(State::Active) => {
                self.follow(row).await?;
                self.watch_servers(row).await;
                self.settle_resume(row).await?;
            }
            // It ran, and ended before its start was recorded.
            Some(State::Inactive(End::GuestShutdown | End::Crashed | End::Saved)) => {}
            // It was never started, or destroyed by an undoing that was cut short.
            Some(State::Inactive(End::Destroyed | End::Unknown)) | None => {
                return self.undo_start(row).await;
            }
        }
        let now = clock::now();
        let row = self
            .move_on(row, Event::Started, "adopted", |row| {
                row.started_at = now;
                want_size_of_pod(row);
            })
            .await?;
        tracing::info!(container = %row.id, "running container adopted");
        if let Some(State::Inactive(end)) = state {
            self.ended(&row.id, end).await?;
        }
        Ok(row)
    }
}
