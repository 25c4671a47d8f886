//! Snapshots of a machine: the last step of its update.
//!
//! ```text
//! deleted? ─► its task is cancelled ─► DeleteSnapshot ─► children get its parent ─► finalizer removed
//! open?    ─► gates ─► finalizer ─► status with the manifest ─► Snapshot ─► current snapshot ─► claims ─► Created
//!                                       with quiesce and claims: Freeze ─┴────────────────────────────┘ cancelled
//! ```
//!
//! A task that no agent has taken when its node's becomes silent is withdrawn, and created again later: the power of the
//! machine does not wait for it.
//!
//! Invariant: only passes over the machine write its snapshots, so that there is one writer, and one
//! snapshot is taken or deleted at a time. A finalizer is on record before the task that a node runs; it
//! goes when no node has the snapshot.
//! Failure: a snapshot that cannot be taken says why in its own conditions; the machine is not affected.

mod claims;
mod create;
mod delete;
mod freeze;
mod tree;

use crds::conditions::{SNAPSHOT_CREATED, SNAPSHOT_READY, Status};
use crds::{
    TaskKind, VirtualMachineSnapshot, VirtualMachineSnapshotSpec, VirtualMachineSnapshotStatus,
};

use super::{config, tasks};
use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::error::joined;
use crate::reconcile::vm::observe::snapshots;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::write::snapshot as write;

/// Reason of [`SNAPSHOT_CREATED`], False: it is on its way.
const IN_PROGRESS: &str = "VirtualMachineSnapshotCreationInProgress";
/// Reason of the same: there is no disk yet.
const WAITING_FOR_DISK: &str = "VirtualMachineSnapshotWaitingForDiskRegistration";
/// Reason of [`SNAPSHOT_READY`], False: it is not taken.
const WAITING_FOR_CREATION: &str = "VirtualMachineSnapshotWaitingForCreation";

/// How many open snapshots of a machine have a condition: there can be any number of objects.
const MOST: usize = VirtualMachineSnapshotSpec::MOST;

/// The snapshots of a machine with a disk.
pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let mut all = snapshots::known(pass.ctx, pass.key);
    let mut errors = Vec::new();
    match delete::run(pass, &mut all).await {
        Ok(()) => {}
        Err(PassError::Failed(error)) => errors.push(error),
        Err(conflict) => return Err(conflict),
    }
    for result in [
        tree::run(pass, &mut all).await,
        claims::follow(pass, &mut all).await,
        create::run(pass, &mut all).await,
    ] {
        match result {
            Ok(()) => {}
            Err(PassError::Failed(error)) => errors.push(error),
            Err(conflict) => return Err(conflict),
        }
    }
    match joined(errors) {
        Some(error) => Err(PassError::Failed(error)),
        None => Ok(Flow::Continue),
    }
}

/// Those that are deleted and that no node has: they wait for no node. Tasks that no agent takes: nothing waits
/// for them.
pub(crate) async fn let_go(pass: &mut Pass<'_>) -> Outcome {
    withdraw(pass).await?;
    delete::without_node(pass).await.map(|()| Flow::Continue)
}

async fn withdraw(pass: &mut Pass<'_>) -> Outcome<()> {
    if config::is_admin_paused(pass) {
        return Ok(());
    }
    for task in tasks::all(pass) {
        let kinds = [
            TaskKind::Snapshot,
            TaskKind::DeleteSnapshot,
            TaskKind::Freeze,
        ];
        if kinds.contains(&task.spec.kind) && task.state().is_none() {
            pass.requeue_within(tasks::SILENCE);
            tasks::withdraw(pass, &task).await?;
        }
    }
    Ok(())
}

/// The snapshots of a machine that does not exist, or has no disk yet: they wait, and those that are
/// deleted are let go, since a disk that they were of no longer exists.
pub(crate) async fn without_disk(
    ctx: &Context,
    vm: &Key,
    disk_uid: Option<&str>,
    why: &str,
) -> Outcome<()> {
    let mut waiting = 0;
    for mut snapshot in snapshots::known(ctx, vm) {
        let is_strange = disk_uid.is_none_or(|uid| !snapshots::is_of_disk(&snapshot, uid));
        if snapshot.metadata.deletion_timestamp.is_some() && is_strange {
            write::release(ctx, &snapshot).await?;
        } else if snapshots::is_open(&snapshot) && waiting < MOST {
            waiting += 1;
            wait(ctx, &mut snapshot, WAITING_FOR_DISK, why).await?;
        }
    }
    Ok(())
}

/// Says what an open snapshot waits for.
async fn wait(
    ctx: &Context,
    snapshot: &mut VirtualMachineSnapshot,
    reason: &str,
    why: &str,
) -> Outcome<()> {
    let draft = snapshot.status.clone().unwrap_or_default();
    wait_with(ctx, snapshot, draft, reason, why).await
}

/// The same, with more in its status.
async fn wait_with(
    ctx: &Context,
    snapshot: &mut VirtualMachineSnapshot,
    mut draft: VirtualMachineSnapshotStatus,
    reason: &str,
    why: &str,
) -> Outcome<()> {
    let created = (Status::False, reason, why);
    write::condition(ctx, snapshot, &mut draft, SNAPSHOT_CREATED, created);
    let ready = (Status::False, WAITING_FOR_CREATION, "");
    write::condition(ctx, snapshot, &mut draft, SNAPSHOT_READY, ready);
    write::status(ctx, snapshot, draft).await
}
