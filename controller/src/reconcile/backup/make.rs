//! Makes a backup: from the gates to the task's result.
//!
//! Invariant: disk, node and manifest are written just before the task is created, and the result before anything else sees
//! the backup as made: each step can be repeated. A backup that failed stays so: another object is another backup.
//! Failure: a failure that may pass is repeated with a growing delay, under the same UID; any other is final and has the
//! node's words.

use crds::conditions::{BACKUP_COMPLETED, BACKUP_FAILED, BACKUP_READY, Status};
use crds::{
    BackupMode, BackupRequest, RawRecord, TaskKind, TaskState, VirtualMachine, VirtualMachineTask,
    names,
};
use kube::ResourceExt;
use lifecycle::snapshot::{freeze_seconds, manifest};

use super::claim::Claim;
use super::gates::{self, Disk, Gate};
use super::health::needs_full;
use super::pass::Pass;
use super::place::{self, Place};
use super::{result, task, write};
use crate::flow::Outcome;

/// Reason of [`BACKUP_COMPLETED`], False: something is in the way.
const WAITING: &str = "VirtualMachineBackupWaiting";
/// Reason of the same: a node makes it.
const IN_PROGRESS: &str = "VirtualMachineBackupInProgress";
/// Longest delay before an attempt is repeated, in seconds.
const LONGEST_HOLD: i64 = 300;
/// Reason of [`BACKUP_READY`], False: it is not made.
const WAITING_FOR_COMPLETION: &str = "VirtualMachineBackupWaitingForCompletion";

pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome<()> {
    if is_restored(pass) {
        let why = "its object was restored from a backup or copied, and the target has no data of it: delete it, and create \
                   one without the annotation vmlet.dev/backup-uid";
        return fail(pass, why).await;
    }
    match task::find(pass, TaskKind::Backup) {
        Some(task) => follow(pass, &task).await,
        None => begin(pass).await,
    }
}

/// Whether a backup tool has restored the object: the target has the data under the UID of an earlier one, if at all.
fn is_restored(pass: &Pass<'_>) -> bool {
    let requested = pass.backup.annotations().get(names::BACKUP_UID);
    requested.is_some() && requested != pass.backup.metadata.uid.as_ref()
}

async fn begin(pass: &mut Pass<'_>) -> Outcome<()> {
    let vm = pass.ctx.stores.vm(&pass.machine());
    let disk = match gates::check(pass, vm.as_deref()) {
        Gate::Waits(why) => {
            pass.requeue_within(task::RECHECK);
            return wait(pass, WAITING, &why).await;
        }
        Gate::Fails(why) => return fail(pass, &why).await,
        Gate::Open(disk) => disk,
    };
    let Some(vm) = vm else {
        return Ok(());
    };
    write::claim(pass).await?;
    let node = disk.node.clone();
    if let Some(Claim::Usable(claim)) = place::claim(pass) {
        pass.draft.target_claim_uid = Some(claim.uid);
        // Before the node can write there.
        pass.write().await?;
    }
    if let Place::Waits(why) | Place::Gone(why) = place::reach(pass, &node).await? {
        return wait(pass, WAITING, &why).await;
    }
    // Not while the pod waits: what is on record a node may have.
    record(pass, &vm, disk);
    show(pass, IN_PROGRESS, &format!("node {node} makes the backup"));
    pass.write().await?;
    let spec = &pass.backup.spec;
    let known = pass.ctx.stores.backups_of(&pass.machine());
    let disk_uid = pass.draft.disk_uid.as_deref().unwrap_or_default();
    let request = BackupRequest {
        full: spec.mode == BackupMode::Full || needs_full(&known, disk_uid, spec.place()),
        quiesce_seconds: spec.quiesce.as_ref().map(freeze_seconds),
        ..task::request(pass)
    };
    task::create(pass, &node, TaskKind::Backup, request).await
}

/// What the backup is of. What an earlier attempt has recorded stays: the target may have it, as of then.
fn record(pass: &mut Pass<'_>, vm: &VirtualMachine, disk: Disk) {
    let draft = &mut pass.draft;
    draft.disk_uid = Some(disk.uid);
    draft.node_name = Some(disk.node);
    draft.progress_percent = 0;
    let status = vm.status.as_ref();
    draft.image = status.and_then(|status| status.image.clone());
    draft.image_url = status.and_then(|status| status.image_url.clone());
    if draft.manifest.is_none() {
        // A machine of more than that is restored by a specification of its own.
        let record = RawRecord::from(&manifest::record(vm));
        draft.manifest = Some(record).filter(|record| record.fields().is_some());
    }
}

async fn follow(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    let status = task.status.clone().unwrap_or_default();
    let node = &task.spec.node_name;
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) => {
            if !task::await_end(pass, task).await? {
                let why = format!("node {node}, which made the backup, does not exist any more");
                return wait(pass, WAITING, &why).await;
            }
            pass.draft.progress_percent = status.progress_percent.min(100) / 10 * 10;
            let mut text = format!("node {node} makes the backup");
            if !pass.ctx.stores.agents.lives(node) {
                text.push_str(
                    ", and its vmlet-agent does not renew its lease: check its pod there",
                );
            }
            wait(pass, IN_PROGRESS, &text).await
        }
        Some(TaskState::Success) => result::record(pass, task).await,
        Some(TaskState::Error) if task::is_judged(task) => {
            let why = format!("node {node} failed to make the backup: {}", status.message);
            fail(pass, &why).await
        }
        Some(TaskState::Cancelled) => again(pass, task, "it was cancelled").await,
        Some(TaskState::Error) => again(pass, task, &status.message).await,
    }
}

/// An attempt failed, and another one may succeed.
async fn again(pass: &mut Pass<'_>, task: &VirtualMachineTask, why: &str) -> Outcome<()> {
    let vm = pass.ctx.stores.vm(&pass.machine());
    if let Gate::Fails(why) = gates::check(pass, vm.as_deref()) {
        return fail(pass, &why).await;
    }
    let node = &task.spec.node_name;
    let text = format!("node {node} failed to make the backup, and tries again: {why}");
    show(pass, IN_PROGRESS, &text);
    if !task::is_due(pass, task, LONGEST_HOLD) {
        return pass.write().await;
    }
    // Before the task goes: the next attempt is of another time, and waits for longer after a failure.
    pass.draft.failed_attempts = pass.draft.failed_attempts.saturating_add(1);
    pass.draft.manifest = None;
    pass.write().await?;
    task::remove(pass, task).await
}

/// Says what the backup waits for.
async fn wait(pass: &mut Pass<'_>, reason: &str, why: &str) -> Outcome<()> {
    show(pass, reason, why);
    pass.write().await
}

fn show(pass: &mut Pass<'_>, reason: &str, why: &str) {
    pass.condition(BACKUP_COMPLETED, Status::False, reason, why);
    pass.condition(BACKUP_READY, Status::False, WAITING_FOR_COMPLETION, "");
}

/// The backup is not made, and never will be.
async fn fail(pass: &mut Pass<'_>, why: &str) -> Outcome<()> {
    wait(pass, BACKUP_FAILED, why).await?;
    pass.ctx.events.warning(&pass.backup, "BackupFailed", why);
    Ok(())
}
