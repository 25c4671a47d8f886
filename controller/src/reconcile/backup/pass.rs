//! What the steps of a pass over a backup share.
//!
//! Invariant: the draft of the status is what was read until a step changes it, and is written where it differs.
//! Failure: none of its own.

use std::time::Duration;

use crds::conditions::{self, Status};
use crds::{VirtualMachineBackup, VirtualMachineBackupStatus};
use kube::ResourceExt;

use crate::context::{Context, Key};
use crate::flow::Outcome;
use crate::reconcile::vm::shortened;

use super::write;

/// Shortest delay before an attempt is repeated, in seconds.
const FIRST_HOLD: i64 = 10;

/// One pass.
#[allow(missing_debug_implementations, reason = "stores have none")]
pub(super) struct Pass<'a> {
    pub(super) ctx: &'a Context,
    pub(super) key: &'a Key,
    /// As it was read, or written last.
    pub(super) backup: VirtualMachineBackup,
    /// What the status is to be.
    pub(super) draft: VirtualMachineBackupStatus,
    /// When the backup is to be looked at again, at the latest.
    pub(super) again: Option<Duration>,
    /// The pod that has the claim mounted stays.
    pub(super) needs_pod: bool,
}

impl<'a> Pass<'a> {
    pub(super) fn new(ctx: &'a Context, key: &'a Key, backup: &VirtualMachineBackup) -> Self {
        Self {
            ctx,
            key,
            backup: backup.clone(),
            draft: backup.status.clone().unwrap_or_default(),
            again: None,
            needs_pod: false,
        }
    }

    pub(super) fn uid(&self) -> String {
        self.backup.uid().unwrap_or_default()
    }

    /// The machine that the backup is of, or is to be of.
    pub(super) fn machine(&self) -> Key {
        Key::new(&self.key.namespace, &self.backup.spec.vm_name)
    }

    pub(super) fn seconds(&self) -> i64 {
        (self.ctx.clock)().0.as_second()
    }

    /// Looks at the backup again after this time, or sooner.
    pub(super) fn requeue_within(&mut self, time: Duration) {
        self.again = Some(self.again.map_or(time, |known| known.min(time)));
    }

    /// Sets a condition of the draft.
    pub(super) fn condition(&mut self, kind: &str, status: Status, reason: &str, message: &str) {
        let generation = self.backup.metadata.generation;
        let now = (self.ctx.clock)();
        let message = shortened(message);
        let all = &mut self.draft.conditions;
        conditions::set(all, kind, status, reason, message, generation, &now);
    }

    /// Writes the draft, if it differs.
    pub(super) async fn write(&mut self) -> Outcome<()> {
        if self.backup.status.as_ref() == Some(&self.draft) {
            return Ok(());
        }
        self.backup = write::apply_status(self.ctx, &self.backup, &self.draft).await?;
        Ok(())
    }

    /// Seconds from the end of the last attempt to the next one, at most `longest`.
    pub(super) fn hold(&self, longest: i64) -> i64 {
        let doubled = FIRST_HOLD.checked_shl(self.draft.failed_attempts.min(16));
        doubled.map_or(longest, |seconds| seconds.min(longest))
    }
}
