//! Containers that boot nothing: placeholders, which reserve the place of a virtual machine, and those that have the claim of a
//! target of backups mounted.
//!
//! Invariant: such a container runs from its start until it is stopped, so that its pod counts for
//! the scheduler; it has no domain, and libvirt is never asked about it.
//! Failure: a start that was cut short is undone, and a stop that was cut short is repeated, as for
//! machines.

use podspec::Role;

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
        match row.spec.instance.backup_claim {
            Some(claim) => {
                tracing::info!(container = %row.id, %claim, "claim for backups mounted");
            }
            None => tracing::info!(container = %row.id, "placeholder container started"),
        }
        Ok(())
    }

    /// Ends a placeholder at once: no guest has to power off.
    pub(super) async fn give_place_up(&self, row: &Container) -> Result<()> {
        let exit = |row: &Container| {
            let (reason, purpose) = match row.spec.instance.role {
                Role::BackupTarget => ("Completed", "had a claim for backups mounted"),
                Role::Machine | Role::Provision => {
                    ("Provisioned", "held the place of a virtual machine")
                }
            };
            Exit {
                code: 0,
                reason: reason.to_owned(),
                message: format!("the pod {purpose}; nothing booted in it"),
            }
        };
        match self.record_end(&row.id, exit).await? {
            Some(row) => self.let_go(&row).await,
            None => Ok(()),
        }
    }
}
