//! The effect of a node reboot on machines.
//!
//! Invariant: after it no container counts as running, its log holds all that the guest had said,
//! and nothing of libvirt or the tapmanager was needed for that. Domains that libvirt still
//! remembers go with the next reconciliation.
//! Failure: a container whose end cannot be recorded is logged and left to reconciliation: it keeps
//! no other container, and not the node, from its service.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use podspec::ContainerId;

use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::{Container, Exit};
use crate::vm::service::Containers;

/// Exit code of a container whose end was not observed, as containerd gives it after a reboot.
const UNKNOWN: i32 = 255;

/// Containers that are checked at once: reading what is left of a console takes its time.
const ABREAST: usize = 8;

impl<P: Platform> Containers<P> {
    /// Records that every machine ended when the node was rebooted. Before anything is served.
    pub async fn after_reboot(self: &Arc<Self>) {
        let mut rows = self.parts.table.all();
        rows.retain(|row| row.phase.runs());
        let count = rows.len();
        let ends = rows.into_iter().map(|row| {
            let this = Arc::clone(self);
            async move {
                if let Err(e) = this.lost(&row.id).await {
                    let error = crate::one_line(&e);
                    tracing::warn!(container = %row.id, error, "end by a node reboot not settled yet");
                }
            }
        });
        let mut ends = stream::iter(ends).buffer_unordered(ABREAST);
        while let Some(()) = ends.next().await {}
        tracing::info!(
            containers = count,
            "containers marked exited after a node reboot"
        );
    }

    async fn lost(&self, id: &ContainerId) -> Result<()> {
        let lost = |_: &Container| Exit {
            code: UNKNOWN,
            reason: "Unknown".to_owned(),
            message: "the node was rebooted while the virtual machine ran".to_owned(),
        };
        match self.record_end(id, lost).await? {
            Some(row) if row.is_process() => self.let_go(&row).await,
            Some(row) => self.remove_console(&row).await,
            None => Ok(()),
        }
    }
}
