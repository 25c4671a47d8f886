//! The end of a snapshot, or of another change of layers, that was interrupted: by a crash of the daemon, a lost
//! connection, or a reset of the guest.
//!
//! Invariant: one attempt for each change; a task that works on the change ends it first. It is tried until the change
//! has ended, or the machine.
//! Failure: the log says that a change is not settled yet; the next attempt follows.

use std::sync::{Arc, Weak};
use std::time::Duration;

use podspec::VmUid;
use service::backoff::Backoff;
use tokio::time::Instant;

use super::lock_name;
use crate::disk::{Change, Step};
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// Time to the next attempt to end an interrupted snapshot; each further failure doubles it.
const RETRY: Duration = Duration::from_secs(1);

/// The longest time between these attempts.
const SELDOM: Duration = Duration::from_secs(60);

impl<P: Platform> Containers<P> {
    /// Ends what an earlier attempt left of a snapshot of a machine that runs, unless a task does; no
    /// caller waits for it. It is tried until the machine ends.
    pub(in crate::vm) fn catch_up_snapshot(self: &Arc<Self>, row: &Arc<Container>) {
        let Some(vm) = row.vm() else {
            return;
        };
        let Some(change) = self.parts.disks.change(vm) else {
            return;
        };
        if self.is_merging(vm, change) {
            return;
        }
        // One for each change: that of an earlier one may sleep.
        let kind = match change.step {
            Step::Take { .. } | Step::Revert { .. } => "snapshot",
            Step::Merge { .. } => "merge",
            Step::Pivot { .. } | Step::Resume => "pivot",
        };
        let name = format!("end of the {kind} of {vm} with layer {}", change.layer);
        let Some(alone) = self.parts.locks.try_lock(&name) else {
            return;
        };
        let settled = settle(Arc::downgrade(self), Arc::clone(row), vm, change);
        // Not one that shutdown waits for: the next process goes on.
        tokio::spawn(async move {
            settled.await;
            drop(alone);
        });
    }

    /// Records a reset of a guest for the task that freezes it.
    pub(in crate::vm) fn note_reset(&self, row: &Container) {
        if let Some(vm) = row.vm() {
            self.freezes.note_reset(vm);
        }
    }

    /// Ends what is left of a snapshot whose guest was reset: it is not frozen any more, and what boots now may
    /// have no agent.
    pub(in crate::vm) async fn settle_reset(&self, row: &Container) {
        let disks = &self.parts.disks;
        let Some(vm) = row.vm() else {
            return;
        };
        let Some(change) = disks.change(vm).filter(|change| is_frozen(*change)) else {
            return;
        };
        // A task that is about to freeze the guest may do so after the reset; it has a note of that.
        if self.freezes.has(vm) {
            return;
        }
        let _alone = self.parts.locks.lock(&lock_name(vm)).await;
        if disks.change(vm) != Some(change) {
            return;
        }
        let settled = async {
            disks.set_freezes(vm, change.layer, false).await?;
            self.settle_snapshot(row, vm).await
        };
        report(vm, settled.await);
    }

    /// Ends the change of layers that an earlier attempt left of a machine that runs.
    pub(in crate::vm::power) async fn settle_snapshot(
        &self,
        row: &Container,
        vm: VmUid,
    ) -> Result<()> {
        let disks = &self.parts.disks;
        let Some(change) = disks.change(vm) else {
            return Ok(());
        };
        if !change.step.makes_layer() {
            return self.settle_interrupted_merge(row, vm, change).await;
        }
        if is_frozen(change) {
            self.thaw(row, vm).await?;
        }
        let _turn = self.disk_lock(vm).await;
        if disks.change(vm) != Some(change) || !disks.is_held_by(vm, &row.id) {
            // The machine ended, and the disk's next user ended the change, or will.
            return Ok(());
        }
        self.end_change(row, vm, change, false).await.map(drop)
    }
}

/// Ends what an earlier attempt left of a snapshot or a merge, at first soon and then less often.
async fn settle<P: Platform>(
    containers: Weak<Containers<P>>,
    row: Arc<Container>,
    vm: VmUid,
    change: Change,
) {
    if matches!(change.step, Step::Merge { .. }) {
        // The repetition of its task goes on with it.
        tokio::time::sleep(SELDOM).await;
    }
    let mut backoff = Backoff::new(RETRY, SELDOM);
    loop {
        let wait = {
            let Some(this) = containers.upgrade() else {
                return;
            };
            // A task that takes the snapshot ends it first.
            let _alone = this.parts.locks.lock(&lock_name(vm)).await;
            let now = this.parts.disks.change(vm);
            let now = now.filter(|now| now.layer == change.layer);
            let Some(now) = now.filter(|_| this.parts.disks.is_held_by(vm, &row.id)) else {
                return;
            };
            if !this.is_merging(vm, now) {
                let settled = this.settle_snapshot(&row, vm).await;
                if settled.is_ok() {
                    return;
                }
                report(vm, settled);
            }
            backoff.failed(Instant::now())
        };
        tokio::time::sleep(wait).await;
    }
}

/// Logs a change of layers that is not settled.
pub(in crate::vm::power) fn report(vm: VmUid, settled: Result<()>) {
    if let Err(error) = settled {
        let error = crate::one_line(&error);
        tracing::warn!(%vm, error, "interrupted snapshot not settled yet");
    }
}

/// Whether the guest may have frozen its file systems for a change.
const fn is_frozen(change: Change) -> bool {
    matches!(change.step, Step::Take { freezes: true, .. })
}
