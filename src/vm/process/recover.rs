//! Processes that no task follows: after a restart of the daemon.
//!
//! Invariant: a process that the guest keeps is adopted; it is not ended.
//! Failure: see [`follow`](super::follow).

use std::sync::Arc;

use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::state::Phase;

impl<P: Platform> Containers<P> {
    /// One look at a process; the caller holds the sandbox's lock.
    pub(in crate::vm) async fn reconcile_process(self: &Arc<Self>, row: &Container) -> Result<()> {
        match row.phase {
            Phase::Creating => self.drop_creating(row).await,
            Phase::Removing => self.remove_stopped(row).await,
            Phase::Starting if self.processes.get(&row.id).is_none() => {
                self.undo_process_start(row).await.map(drop)
            }
            Phase::Running | Phase::Stopping => {
                self.follow_again(row);
                Ok(())
            }
            Phase::Created | Phase::Starting | Phase::Exited => Ok(()),
        }
    }

    /// Follows a process that runs, unless a task does.
    pub(in crate::vm) fn follow_again(self: &Arc<Self>, row: &Container) {
        if let Some(live) = self.processes.begin(&row.id) {
            self.spawn_follower(&row.id, live, None);
        }
        if row.phase == Phase::Stopping {
            self.see_through(&row.id);
        }
    }
}
