//! Has a complete backup verified by a node that reaches its target.
//!
//! Invariant: a request is answered once: what was found, and for which request, is written in one write.
//! Failure: a damaged backup is not Ready, and says what is damaged; a target that no node reaches is waited for.

use crds::conditions::{BACKUP_READY, BACKUP_VERIFIED, Status};
use crds::{
    BackupRequest, BackupVerification, TaskKind, TaskState, VirtualMachineBackup,
    VirtualMachineTask, VirtualMachineTaskStatus,
};
use kube::ResourceExt;

use super::pass::Pass;
use super::place::{self, Place};
use super::{node, task};
use crate::flow::Outcome;

/// Longest delay before an attempt is repeated, in seconds.
const LONGEST_HOLD: i64 = 300;
/// Reason of [`BACKUP_VERIFIED`], Unknown: no node can verify it at present.
const WAITING: &str = "VirtualMachineBackupWaiting";
/// Reason of the same: a node verifies it.
const IN_PROGRESS: &str = "VirtualMachineBackupVerificationInProgress";
/// Reason of [`BACKUP_VERIFIED`] and [`BACKUP_READY`], False: the target does not have it as it was made.
pub(super) const DAMAGED: &str = "VirtualMachineBackupDamaged";

/// Whether a verification is requested that has not ended.
pub(super) fn is_due(backup: &VirtualMachineBackup) -> bool {
    let status = backup.status.as_ref();
    let known = status.and_then(|status| status.verification.as_ref());
    let request = backup.spec.verify_request.as_ref();
    let is_requested = match known {
        Some(known) => request.is_some() && known.observed_request.as_ref() != request,
        None => request.is_some() || backup.spec.verify,
    };
    is_requested && backup.is_completed()
}

pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome<()> {
    if !is_due(&pass.backup) {
        return Ok(());
    }
    if let Some(task) = task::find(pass, TaskKind::VerifyBackup) {
        return follow(pass, &task).await;
    }
    match node::any(pass.ctx, &pass.backup, TaskKind::VerifyBackup) {
        Ok(node) => {
            if let Place::Waits(why) | Place::Gone(why) = place::reach(pass, &node).await? {
                return show(pass, WAITING, &why).await;
            }
            show(pass, IN_PROGRESS, &format!("node {node} verifies it")).await?;
            let request = BackupRequest {
                manifest_sha256: pass.draft.manifest_sha256.clone(),
                ..task::request(pass)
            };
            task::create(pass, &node, TaskKind::VerifyBackup, request).await
        }
        Err(why) => show(pass, WAITING, &why).await,
    }
}

async fn follow(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    let status = task.status.clone().unwrap_or_default();
    let node = &task.spec.node_name;
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) => {
            task::take_back(pass, task).await.map(drop)
        }
        Some(TaskState::Success) => {
            pass.condition(BACKUP_VERIFIED, Status::True, "", "");
            pass.condition(BACKUP_READY, Status::True, "", "");
            conclude(pass, task, &status).await
        }
        Some(TaskState::Error) if task::is_judged(task) => {
            let why = format!("node {node} found it damaged: {}", status.message);
            pass.condition(BACKUP_VERIFIED, Status::False, DAMAGED, &why);
            pass.condition(BACKUP_READY, Status::False, DAMAGED, &why);
            conclude(pass, task, &status).await?;
            pass.ctx.events.warning(&pass.backup, "BackupDamaged", &why);
            Ok(())
        }
        Some(TaskState::Error | TaskState::Cancelled) => {
            let why = format!(
                "node {node} failed to verify it, and tries again: {}",
                status.message
            );
            pass.condition(BACKUP_VERIFIED, Status::Unknown, WAITING, &why);
            if !task::is_due(pass, task, LONGEST_HOLD) {
                return pass.write().await;
            }
            pass.draft.failed_attempts = pass.draft.failed_attempts.saturating_add(1);
            pass.write().await?;
            task::remove(pass, task).await
        }
    }
}

/// Records the end of a verification. A request that was written since it began is the next one.
async fn conclude(
    pass: &mut Pass<'_>,
    task: &VirtualMachineTask,
    status: &VirtualMachineTaskStatus,
) -> Outcome<()> {
    let is_of_today = task.name_any() == task::name(pass, TaskKind::VerifyBackup);
    let earlier = pass.draft.verification.take();
    pass.draft.verification = Some(BackupVerification {
        time: status.completion_time.clone(),
        observed_request: if is_of_today {
            pass.backup.spec.verify_request.clone()
        } else {
            earlier.and_then(|earlier| earlier.observed_request)
        },
    });
    pass.draft.failed_attempts = 0;
    pass.write().await?;
    task::remove(pass, task).await
}

async fn show(pass: &mut Pass<'_>, reason: &str, why: &str) -> Outcome<()> {
    pass.requeue_within(task::RECHECK);
    pass.condition(BACKUP_VERIFIED, Status::Unknown, reason, why);
    pass.write().await
}
