//! The effect of a node reboot on machines.
//!
//! Invariant: after it no container counts as running, its log holds all that the guest had said,
//! and nothing of libvirt or the tapmanager was needed for that. Domains that libvirt still
//! remembers go with the next reconciliation.
//! Failure: the first error; the whole is repeated at the next start, as the boot is recorded only
//! afterwards.

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
    pub async fn after_reboot(self: &Arc<Self>) -> Result<()> {
        let mut rows = self.parts.table.all();
        rows.retain(|row| row.phase.runs());
        let count = rows.len();
        let ends = rows.into_iter().map(|row| {
            let this = Arc::clone(self);
            async move { this.lost(&row.id).await }
        });
        let mut ends = stream::iter(ends).buffer_unordered(ABREAST);
        let mut outcome = Ok(());
        while let Some(one) = ends.next().await {
            outcome = outcome.and(one);
        }
        tracing::info!(
            containers = count,
            "containers marked exited after a node reboot"
        );
        outcome
    }

    async fn lost(&self, id: &ContainerId) -> Result<()> {
        let lost = |_: &Container, _: i64| Exit {
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
