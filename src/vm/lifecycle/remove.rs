//! Removes containers.
//!
//! Invariant: the row goes last, so that whatever is left is found again by it. Where the file system
//! of the state directory takes no writes, files and records stay without a row: the next rounds of
//! reconciliation remove what has no owner, and a daemon that reads the rows again after a crash
//! gets the same request again.
//! Failure: the container stays visible and the call may be repeated.

use std::sync::Arc;
use std::time::Duration;

use podspec::{ContainerId, SandboxId};

use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::state::Event;

impl<P: Platform> Containers<P> {
    /// Removes every container of the sandbox, and the sandbox's root disk.
    pub async fn remove_all(self: &Arc<Self>, sandbox: &SandboxId) -> Result<()> {
        for row in self.of_sandbox(sandbox) {
            Arc::clone(self).remove_to_end(&row.id).await?;
        }
        let removed = self.remove_root_disk(sandbox).await;
        let unwritable = unless_unwritable(removed)?;
        if let Some(error) = unwritable {
            tracing::warn!(%sandbox, error, "root disk not removed yet: the file system takes no writes");
        }
        Ok(())
    }

    pub(in crate::vm) async fn remove_to_end(self: Arc<Self>, id: &ContainerId) -> Result<()> {
        loop {
            Arc::clone(&self).stop_to_end(id, Duration::ZERO).await?;
            let Some(row) = self.parts.table.get(id) else {
                return Ok(());
            };
            let _lock = self.parts.locks.lock(row.sandbox.as_str()).await;
            match self.parts.table.get(id) {
                // It was started before this request got the lock; that happens at most once.
                Some(row) if row.phase.may_run() => {}
                Some(row) => return self.remove_stopped(&row).await,
                None => return Ok(()),
            }
        }
    }

    /// Removes a container whose machine does not run; the caller holds the sandbox's lock.
    pub(in crate::vm) async fn remove_stopped(&self, row: &Container) -> Result<()> {
        let id = &row.id;
        self.move_on(row, Event::RemoveRequested, "removed", |_| {})
            .await?;
        faultpoint::point("vm.remove.recorded");
        let unwritable = unless_unwritable(self.let_go(row).await)?;
        if let Some(error) = unwritable {
            tracing::warn!(container = %id, error, "files not removed yet: the file system takes no writes");
        }
        let own_log = self.paths.default_log(id);
        if row.spec.log_path == own_log {
            // A log at a path that the client chose is the client's; this one is ours.
            let _ = tokio::fs::remove_file(&own_log).await;
        }
        faultpoint::point("vm.remove.cleaned");
        self.parts.table.remove(id).await?;
        self.forget_answer(id);
        faultpoint::point("vm.remove.gone");
        tracing::info!(container = %id, "container removed");
        Ok(())
    }
}

/// The error of a file system that takes no writes, in words; any other is one still.
fn unless_unwritable(outcome: Result<()>) -> Result<Option<String>> {
    match outcome {
        Ok(()) => Ok(None),
        Err(error) if error.is_unwritable() => Ok(Some(crate::one_line(&error))),
        Err(error) => Err(error),
    }
}
