//! Placeholder containers, which reserve the place of a virtual machine and boot nothing.
//!
//! Invariant: such a container runs from its start until it is stopped, so that its pod counts for
//! the scheduler; it has no domain, and libvirt is never asked about it.
//! Failure: a start that was cut short is undone, and a stop that was cut short is repeated, as for
//! machines.

use crate::clock;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::{Container, Exit};
use crate::vm::service::Containers;
use crate::vm::state::Event;

impl<P: Platform> Containers<P> {
    /// Starts a placeholder: kubelet has pulled the image, and the pod has its node.
    pub(super) async fn hold_place(&self, row: &Container) -> Result<()> {
        let row = self
            .move_on(row, Event::StartRequested, "started", |_| {})
            .await?;
        let now = clock::now();
        let row = self
            .move_on(&row, Event::Started, "started", |row| row.started_at = now)
            .await?;
        tracing::info!(container = %row.id, "placeholder container started");
        Ok(())
    }

    /// Ends a placeholder at once: no guest has to power off.
    pub(super) async fn give_place_up(&self, row: &Container) -> Result<()> {
        let exit = |_: &Container| Exit {
            code: 0,
            reason: "Provisioned".to_owned(),
            message: "the pod held the place of a virtual machine; nothing booted in it".to_owned(),
        };
        match self.record_end(&row.id, exit).await? {
            Some(row) => self.let_go(&row).await,
            None => Ok(()),
        }
    }
}
