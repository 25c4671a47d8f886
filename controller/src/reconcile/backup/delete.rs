//! Deletes what a target has of a backup that is being deleted.
//!
//! Invariant: the finalizer goes when a node has deleted the data, or nothing was to be deleted: no node was requested to
//! make it, the object says that the data are retained, or its namespace ends. A backup that a later one builds upon,
//! or that one which is being made may build upon, is deleted after that one; the node checks that again. A node that has
//! the target no more has let go of its layer before another one takes its place.
//! Failure: `VirtualMachineBackupReady` says what is in the way; the work is repeated with a growing delay.

use crds::conditions::{BACKUP_READY, BACKUP_VERIFIED, Status};
use crds::names::{BACKUP_CLAIMS, BACKUP_FINALIZER};
use crds::{BackupDeletionPolicy, TaskKind, TaskState, VirtualMachineTask};
use kube::ResourceExt;

use super::claim::Claim;
use super::node::Reach;
use super::pass::Pass;
use super::place::{self, Place};
use super::verify::DAMAGED;
use super::{base, node, task, write};
use crate::flow::Outcome;
use crate::stores::{Relation, backup_of};

/// Reason of [`BACKUP_READY`], False: it is being deleted.
const DELETING: &str = "VirtualMachineBackupDeletionInProgress";
/// Reason of the same: something is in the way.
const DELETION_FAILED: &str = "VirtualMachineBackupDeletionFailed";

/// What to do about a backup whose claim is gone.
const LEFT: &str = "What its volume may still have of the backup, no node reaches: set spec.deletionPolicy to Retain, and the \
                    object goes";

/// What a user can do where a node does not reach the target.
const RETAIN: &str = "or set spec.deletionPolicy to Retain, and the data stay";

/// Longest delay before an attempt is repeated, in seconds.
const LONGEST_HOLD: i64 = 1800;

/// What becomes of the data in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    /// There are none.
    None,
    /// They stay.
    Stay,
    /// A node deletes them.
    Go,
}

pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome<()> {
    if !pass
        .backup
        .finalizers()
        .iter()
        .any(|known| known == BACKUP_FINALIZER)
    {
        return Ok(());
    }
    keep_damage(pass);
    let data = data(pass);
    for kind in [TaskKind::Backup, TaskKind::VerifyBackup] {
        if let Some(task) = task::find(pass, kind) {
            let is_over = end(pass, &task).await?;
            if !is_over && data == Data::Go {
                let why = format!(
                    "task {} ends first. Where its node is lost, the deletion of the Node object ends that, or \
                     spec.deletionPolicy: Retain, and the data stay",
                    task.name_any()
                );
                return show(pass, DELETING, &why).await;
            }
        }
    }
    match data {
        Data::None => write::release(pass).await,
        Data::Stay => {
            write::release(pass).await?;
            if !pass.backup.is_completed() || task::find(pass, TaskKind::DeleteBackup).is_some() {
                return Ok(());
            }
            let place = pass.backup.spec.place();
            let text = format!("the data of the backup stay in {place}, and no object names them");
            pass.ctx
                .events
                .normal(&pass.backup, "BackupRetained", &text);
            Ok(())
        }
        Data::Go => remove(pass).await,
    }
}

/// `Ready` is about the deletion from now on: a damage that no verification has refuted stays on record beside it, for
/// the backups that build upon this one.
fn keep_damage(pass: &mut Pass<'_>) {
    let ready = pass.backup.condition(BACKUP_READY);
    let found = ready.filter(|ready| ready.status == "False" && ready.reason == DAMAGED);
    let found = found.map(|ready| ready.message.clone());
    if let Some(why) = found {
        pass.condition(BACKUP_VERIFIED, Status::False, DAMAGED, &why);
    }
}

/// Ends a task; true: it is over. A verification that no agent works on changes nothing any more.
async fn end(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<bool> {
    let is_open = !task.is_final();
    if is_open && task.spec.kind == TaskKind::VerifyBackup && task::take_back(pass, task).await? {
        return Ok(true);
    }
    task::end(pass, task).await
}

fn data(pass: &Pass<'_>) -> Data {
    // Also of one that failed: its last attempt may not be the only one.
    if pass.draft.disk_uid.is_none() {
        return Data::None;
    }
    let stays = pass.backup.spec.deletion_policy == BackupDeletionPolicy::Retain;
    // Objects cannot be created in a namespace that is being deleted, and what ends with it may have been a mistake.
    if stays || node::is_ending(pass.ctx, &pass.backup) {
        Data::Stay
    } else {
        Data::Go
    }
}

async fn remove(pass: &mut Pass<'_>) -> Outcome<()> {
    if let Some(later) = later(pass) {
        let why = format!("backup {later} builds upon it: it is deleted after that one");
        return show(pass, DELETING, &why).await;
    }
    if let Some(other) = being_made(pass) {
        let why = format!("backup {other} is being made, and may build upon it");
        return show(pass, DELETING, &why).await;
    }
    if let Some(machine) = being_restored(pass) {
        pass.requeue_within(task::SILENCE);
        let why = format!(
            "machine {machine} is being restored from it; spec.deletionPolicy: Retain ends the wait, and the data stay"
        );
        return show(pass, DELETING, &why).await;
    }
    if let Some(task) = task::find(pass, TaskKind::DeleteBackup) {
        return follow(pass, &task).await;
    }
    match node::any(pass.ctx, &pass.backup, TaskKind::DeleteBackup) {
        Ok(node) => {
            let is_own = pass.draft.node_name.as_ref() == Some(&node);
            let why = match place::reach(pass, &node).await? {
                Place::Ready => format!("node {node} deletes it from the target"),
                Place::Waits(why) => {
                    let why = format!("{why}; {RETAIN}");
                    return show(pass, DELETING, &why).await;
                }
                // Its task fails, and lets go of the layer before that.
                Place::Gone(gone) if is_own => {
                    format!("{gone}; node {node} lets go of the layer that it keeps for it")
                }
                Place::Gone(gone) => {
                    let why = format!("{gone}. {LEFT}");
                    return show(pass, DELETION_FAILED, &why).await;
                }
            };
            show(pass, DELETING, &why).await?;
            let request = task::request(pass);
            task::create(pass, &node, TaskKind::DeleteBackup, request).await
        }
        Err(why) => {
            let why = format!("{why}; {RETAIN}");
            show(pass, DELETION_FAILED, &why).await
        }
    }
}

/// A backup that builds upon this one.
fn later(pass: &Pass<'_>) -> Option<String> {
    let uid = pass.uid();
    let known = pass.ctx.stores.backups_of(&pass.machine()).into_iter();
    let mut known = known.filter(|other| other.spec.place() == pass.backup.spec.place());
    let later = known.find(|other| {
        let status = other.status.as_ref();
        let parent = status.and_then(|status| status.parent.as_ref());
        parent.is_some_and(|parent| parent.uid == uid)
    });
    later.map(|later| later.name_any())
}

/// A backup of the same disk to the same target that a node makes.
fn being_made(pass: &Pass<'_>) -> Option<String> {
    let disk_uid = pass.draft.disk_uid.as_deref().unwrap_or_default();
    let uid = pass.uid();
    let target = place::target(pass);
    let tasks = pass.ctx.stores.tasks_of(disk_uid).into_iter();
    let mut tasks = tasks.filter(|task| task.spec.kind == TaskKind::Backup && !task.is_final());
    let found = tasks.find(|task| {
        let request = task.spec.backup.as_ref();
        request.is_some_and(|one| one.uid != uid && one.target == target)
    });
    let owner = found.and_then(|task| backup_of(&task));
    owner.map(|owner| owner.name)
}

/// A machine for which a node makes the disk from it. A daemon goes on where its agent is silent.
fn being_restored(pass: &Pass<'_>) -> Option<String> {
    let uid = pass.uid();
    let machines = pass
        .ctx
        .stores
        .vms_with(&Relation::Backup(pass.key.clone()));
    let found = machines.into_iter().find(|vm| {
        let tasks = pass.ctx.stores.tasks_of(&vm.uid().unwrap_or_default());
        tasks.iter().any(|task| {
            let request = task.spec.backup.as_ref();
            let is_of_it = request.is_some_and(|request| request.uid == uid);
            let is_open = !task.is_final() && node::exists(pass.ctx, &task.spec.node_name);
            task.spec.kind == TaskKind::RestoreBackup && is_of_it && is_open
        })
    });
    found.map(|vm| vm.name_any())
}

async fn follow(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    let status = task.status.clone().unwrap_or_default();
    let node = &task.spec.node_name;
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) => {
            // Another node may take its place: it can be repeated.
            task::take_back(pass, task).await.map(drop)
        }
        Some(TaskState::Success) => {
            base::release_earlier(pass).await?;
            write::release(pass).await
        }
        Some(TaskState::Error | TaskState::Cancelled) => {
            let has_failed = status.state == Some(TaskState::Error);
            // Other failures, however many, may be of the time when the node had the target, and kept the layer.
            let has_let_go = has_failed && task::is_judged(task);
            let place = pass.backup.spec.place();
            let other = node::successor(pass.ctx, node, TaskKind::DeleteBackup, place);
            if let Some(other) = other.filter(|_| has_let_go) {
                return hand_over(pass, task, other).await;
            }
            let why = match place::claim(pass) {
                Some(Claim::Gone(gone)) if has_let_go => {
                    base::release_earlier(pass).await?;
                    format!("{gone}. {LEFT}")
                }
                _ if !has_let_go && waits_for_upgrade(pass, node) => format!(
                    "node {node} has the target no more, and still keeps a layer for the backup: its vmlet is of an earlier \
                     version, which waits for the target ({}). Upgrade vmlet and vmlet-agent there, or bring the target \
                     back; with spec.deletionPolicy: Retain the object goes, and the data stay",
                    status.message
                ),
                _ => format!(
                    "node {node} failed to delete it from the target: {}. It is tried again; with spec.deletionPolicy: \
                     Retain the object goes, and the data stay",
                    status.message
                ),
            };
            pass.condition(BACKUP_READY, Status::False, DELETION_FAILED, &why);
            if !task::is_due(pass, task, LONGEST_HOLD) {
                return pass.write().await;
            }
            pass.draft.failed_attempts = pass.draft.failed_attempts.saturating_add(1);
            pass.write().await?;
            task::remove(pass, task).await
        }
    }
}

/// Whether the node has the target no more, and a daemon to which that is no final answer: earlier versions keep the layer
/// until the target is back.
fn waits_for_upgrade(pass: &Pass<'_>, node: &str) -> bool {
    let place = pass.backup.spec.place();
    let reach = node::reach(pass.ctx, node, TaskKind::DeleteBackup, place);
    matches!(reach, Reach::NoTarget(_)) && !pass.ctx.stores.agents.has(node, BACKUP_CLAIMS)
}

/// The node that made it has let go of the layer, and has the target no more.
async fn hand_over(pass: &mut Pass<'_>, task: &VirtualMachineTask, other: String) -> Outcome<()> {
    let why = format!("node {other} deletes it from the target");
    pass.draft.node_name = Some(other);
    show(pass, DELETING, &why).await?;
    task::remove(pass, task).await
}

async fn show(pass: &mut Pass<'_>, reason: &str, why: &str) -> Outcome<()> {
    pass.requeue_within(task::RECHECK);
    pass.condition(BACKUP_READY, Status::False, reason, why);
    pass.write().await
}
