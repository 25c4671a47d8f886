//! Stops machines with a grace period: requests a power-off, waits, and kills the guest in the end.
//!
//! Invariant: at most one task sees a stop through; it kills at the earliest deadline that any
//! caller gave, also when every caller has disconnected, and also after a restart of the daemon.
//! A guest that is paused is resumed first, since it could not respond to a request.
//! Failure: a kill that libvirt does not carry out is reported, and repeated by the next stop
//! request or by reconciliation. A guest that cannot run is killed at once.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use libvirt::{End, Hypervisor, Shutdown, State};
use podspec::{ContainerId, SandboxId};
use service::boot_clock::Deadline;
use tokio::time::Instant;

use crate::metadata::TableError;
use crate::platform::Platform;
use crate::steps::{step, trace};
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::power::stalled::{Attempts, Unresponsive};
use crate::vm::service::Containers;
use crate::vm::state::{Event, Phase};

/// Interval of the requests to the guest: a booting guest ignores the first ones.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// How long the power button waits for the guest agent, which may have to wait for agents of other guests.
const AGENT_FIRST: Duration = Duration::from_secs(5);

/// How long after a kill its confirmation is waited for.
const CONFIRMATION: Duration = Duration::from_secs(20);

impl<P: Platform> Containers<P> {
    pub(in crate::vm) async fn stop_to_end(
        self: Arc<Self>,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<()> {
        let Some(row) = self.parts.table.get(id) else {
            return Ok(self.parts.table.aside().refuse(id.as_str())?);
        };
        self.check_readable(&row)?;
        if row.phase == Phase::Starting && row.is_process() {
            self.stop_process_start(&row).await?;
        } else if row.phase == Phase::Starting {
            // A start in progress holds this lock, and ends where it waits for libvirt; one that was
            // cut short is settled.
            let stop = self.stops.request(&row.sandbox);
            let _lock = self.parts.locks.lock(row.sandbox.as_str()).await;
            // Other containers of the sandbox are not stopped.
            drop(stop);
            let row = self.row(id)?;
            if row.phase == Phase::Starting {
                self.give_start_up(&row).await?;
            }
        }
        let kill_at = Deadline::after(grace);
        loop {
            let Some(row) = self.parts.table.get(id) else {
                return Ok(());
            };
            if !row.phase.runs() {
                return Ok(());
            }
            if !row.is_process() {
                if !row.boots() {
                    return self.give_place_up(&row).await;
                }
                self.check_connected("stop").await?;
            }
            let earlier = |row: &mut Container| {
                let first = row.kill_at.map_or(kill_at, |before| before.min(kill_at));
                row.kill_at = Some(first);
            };
            match self
                .move_on(&row, Event::StopRequested, "stopped", earlier)
                .await
            {
                Ok(_) => break,
                // It ended, or another stop was faster: look again.
                Err(Error::Table(TableError::Raced { .. })) => {}
                Err(e) => return Err(e),
            }
        }
        faultpoint::point("vm.stop.recorded");
        self.see_through(id);
        let grace_seconds = grace.as_secs();
        let step = step!("machine.stop", container = %id, grace_seconds);
        trace(step, self.wait_for_end(id)).await
    }

    /// Starts the task that sees a stop through, unless it runs.
    pub(in crate::vm) fn see_through(self: &Arc<Self>, id: &ContainerId) {
        let mut stoppers = self.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
        if !stoppers.insert(id.clone()) {
            return;
        }
        let this = Arc::clone(self);
        let id = id.clone();
        self.parts.tasks.spawn(async move {
            if let Err(e) = this.run_stop(&id).await {
                tracing::warn!(container = %id, error = crate::one_line(&e), "container stop failed");
            }
            this.stoppers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&id);
        });
    }

    /// Whether a task sees the stop of a container through.
    #[cfg(test)]
    pub(super) fn is_seen_through(&self, id: &ContainerId) -> bool {
        let stoppers = self.stoppers.lock();
        stoppers
            .unwrap_or_else(PoisonError::into_inner)
            .contains(id)
    }

    async fn run_stop(&self, id: &ContainerId) -> Result<()> {
        let mut changes = self.parts.table.changes();
        let Some(mut row) = self.stopping(id) else {
            return Ok(());
        };
        let first = Arc::clone(&row);
        // Boxed to be dropped before the kill: a future that is not polled any more must not hold
        // the turn of a look that the kill waits for.
        let mut requests = Box::pin(self.keep_requesting(&first));
        let mut kill_at = Instant::now() + grace_left(&row);
        let unresponsive = loop {
            tokio::select! {
                () = tokio::time::sleep_until(kill_at) => break None,
                // It may have ended, or have got an earlier deadline.
                _ = changes.changed() => {}
                // A guest that cannot run gains nothing by the rest of its time.
                unresponsive = &mut requests => break Some(unresponsive),
            }
            row = match self.stopping(id) {
                Some(row) => row,
                None => return Ok(()),
            };
            // Only ever earlier.
            kill_at = kill_at.min(Instant::now() + grace_left(&row));
        };
        drop(requests);
        match unresponsive {
            Some(unresponsive) => self.cut_short(&row, unresponsive).await,
            None => self.kill(&row).await,
        }
    }

    fn stopping(&self, id: &ContainerId) -> Option<Arc<Container>> {
        let row = self.parts.table.get(id)?;
        (row.phase == Phase::Stopping).then_some(row)
    }

    /// Requests the guest to power off, agent first, until the caller stops listening.
    async fn keep_requesting(&self, row: &Container) -> Unresponsive {
        if grace_left(row).is_zero() {
            return std::future::pending().await;
        }
        if row.is_process() {
            self.request_end(row).await;
            return std::future::pending().await;
        }
        self.request_power_off(row).await
    }

    /// Requests the guest to power off, agent first, again and again; returns for one that cannot
    /// run.
    pub(in crate::vm) async fn request_power_off(&self, row: &Container) -> Unresponsive {
        match self.keep_requesting_power_off(row).await {
            Err(unresponsive) => unresponsive,
            Ok(never) => match never {},
        }
    }

    async fn keep_requesting_power_off(&self, row: &Container) -> Result<Infallible, Unresponsive> {
        let mut attempts = Attempts::default();
        self.wake(row, &mut attempts).await?;
        let mut order = pin!(self.order_power_off(row));
        match tokio::time::timeout(AGENT_FIRST, &mut order).await {
            Ok(is_sent) => {
                if is_sent {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                self.keep_pressing(row, attempts).await
            }
            // Many guests may stop at once: the agent's turn comes while the button is pressed.
            Err(_) => tokio::select! {
                unresponsive = self.keep_pressing(row, attempts) => unresponsive,
                never = async {
                    order.await;
                    std::future::pending().await
                } => never,
            },
        }
    }

    /// Requests the power-off from the agent until the request has reached it, or it has refused or cannot
    /// answer; true: the agent has the request.
    async fn order_power_off(&self, row: &Container) -> bool {
        loop {
            let next = Instant::now() + ASK_AGAIN;
            let order = self
                .parts
                .hypervisor
                .shutdown(row.domain(), Shutdown::Agent);
            let order = order.await;
            if order.as_ref().is_err_and(libvirt::Error::is_unavailable) {
                tokio::time::sleep_until(next).await;
                continue;
            }
            tracing::debug!(
                container = %row.id,
                agent = order.is_ok(),
                "power-off requested from the guest"
            );
            return order.is_ok();
        }
    }

    async fn keep_pressing(
        &self,
        row: &Container,
        mut attempts: Attempts,
    ) -> Result<Infallible, Unresponsive> {
        let hypervisor = &self.parts.hypervisor;
        loop {
            self.wake(row, &mut attempts).await?;
            if let Err(e) = hypervisor.shutdown(row.domain(), Shutdown::Acpi).await {
                tracing::debug!(container = %row.id, error = %e, "ACPI power button event failed");
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Kills a guest that could not power off in any time.
    async fn cut_short(&self, row: &Container, unresponsive: Unresponsive) -> Result<()> {
        let reason = unresponsive.0;
        tracing::warn!(container = %row.id, reason, "machine cannot power off: killed before its grace period ends");
        // The event of the kill may be the first to record the end.
        self.unresponsive(|all| all.insert(row.id.clone(), reason));
        self.kill(row).await
    }

    async fn kill(&self, row: &Container) -> Result<()> {
        if row.is_process() {
            return self.kill_process(row).await;
        }
        let begun = Instant::now();
        {
            let _turn = self.domain_turn(row).await;
            // It may have ended meanwhile, and the next container have the disk and the domain.
            if self.stopping(&row.id).is_none() || !self.owns_domain(row) {
                return Ok(());
            }
            let destroyed = self.parts.hypervisor.destroy(row.domain()).await;
            destroyed.map_err(hypervisor("kill"))?;
        }
        tracing::info!(container = %row.id, took = ?begun.elapsed(), "machine killed");
        faultpoint::point("vm.stop.killed");
        // The guest may have been faster than the kill; libvirt knows, unless it forgot the domain.
        let state = self.parts.hypervisor.state(row.domain()).await;
        let end = match state.map_err(hypervisor("look for"))? {
            Some(State::Inactive(end)) => end,
            Some(State::Active) | None => End::Destroyed,
        };
        self.ended(&row.id, end).await
    }

    /// Returns when the container has ended, or when its kill was not confirmed in time.
    async fn wait_for_end(&self, id: &ContainerId) -> Result<()> {
        let mut changes = self.parts.table.changes();
        let mut deadline = None;
        while let Some(row) = self.stopping(id) {
            let latest = Instant::now() + grace_left(&row) + CONFIRMATION;
            // An earlier kill makes it earlier. Changes of other containers do not put it off.
            let until = deadline.map_or(latest, |deadline: Instant| deadline.min(latest));
            deadline = Some(until);
            let changed = tokio::time::timeout_at(until, changes.changed()).await;
            let is_over = changed.is_err() || Instant::now() >= until;
            if is_over && self.stopping(id).is_some() {
                return Err(Error::StillRunning(id.clone()));
            }
        }
        Ok(())
    }

    /// Kills every machine of the sandbox; success when there is none.
    pub async fn kill_all(self: &Arc<Self>, sandbox: &SandboxId) -> Result<()> {
        for row in self.of_sandbox(sandbox) {
            Arc::clone(self)
                .stop_to_end(&row.id, Duration::ZERO)
                .await?;
        }
        Ok(())
    }
}

/// What is left of the guest's time to power off; nothing without a stop.
fn grace_left(row: &Container) -> Duration {
    row.kill_at.map_or(Duration::ZERO, Deadline::left)
}
