//! The change of a container's row, and what a change waits for.
//!
//! Invariant: a phase is stored before the effect that it announces; an end that the database cannot take is kept, and
//! stored later.
//! Failure: another request has changed the row, the database fails, or libvirt is away.

use std::sync::Arc;
use std::time::Duration;

use libvirt::Hypervisor;
use podspec::ContainerId;

use super::Containers;
use crate::locks::Guard;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::state::Event;

/// How long a request waits for a connection to libvirt that is being made again.
const RECONNECT: Duration = Duration::from_secs(5);

impl<P: Platform> Containers<P> {
    /// Stores the phase after `event`, with whatever else `change` sets.
    pub(in crate::vm) async fn move_on(
        &self,
        row: &Container,
        event: Event,
        verb: &'static str,
        change: impl FnOnce(&mut Container) + Send,
    ) -> Result<Arc<Container>> {
        let refused = || Error::Phase {
            id: row.id.clone(),
            phase: row.phase,
            verb,
        };
        let next = row.phase.on(event).ok_or_else(refused)?;
        let both = |row: &mut Container| {
            row.phase = next;
            change(row);
        };
        let table = &self.parts.table;
        let changed = match event {
            // A row that is Starting in the database is adopted or undone by the next daemon.
            Event::StopRequested
            | Event::Ended
            | Event::RemoveRequested
            | Event::StartUndone
            | Event::Started => table.change_to_end(&row.id, row.phase, both).await,
            Event::Prepared | Event::StartRequested | Event::Superseded => {
                table.change(&row.id, row.phase, both).await
            }
        };
        Ok(changed?)
    }

    /// Writes ends of containers that the database could not take before.
    pub async fn store_late(&self) -> Result<()> {
        Ok(self.parts.table.store_late().await?)
    }

    /// Held while the end of a container is recorded, or its console is worked on while it runs.
    pub(in crate::vm) async fn end_lock(&self, id: &ContainerId) -> Guard {
        self.parts.locks.lock(&format!("end of {id}")).await
    }

    /// Waits a moment for a connection to libvirt that is being made, as after its restart.
    pub(in crate::vm) async fn check_connected(&self, step: &'static str) -> Result<()> {
        let connected = self.parts.hypervisor.connected();
        // Whether it came is looked up: events may be gone for good.
        let _ = tokio::time::timeout(RECONNECT, connected).await;
        if self.parts.hypervisor.is_connected() {
            return Ok(());
        }
        let seconds = RECONNECT.as_secs();
        let reason = format!("the connection is down, and did not come back within {seconds} s");
        Err(hypervisor(step)(libvirt::Error::Unavailable { reason }))
    }
}
