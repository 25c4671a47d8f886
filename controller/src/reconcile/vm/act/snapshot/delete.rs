//! Deletes snapshots of which nodes have the content.
//!
//! Invariant: what a node is asked to delete is named by the UID of the object; snapshots that descend
//! from it stay, and descend from its parent, before its finalizer goes. One that is reverted to is not
//! deleted meanwhile, also if the store does not show the revert yet, nor before the claims that are made of it are filled.
//! Failure: the condition of the snapshot has the node's words; the work is repeated with a growing delay,
//! and when the machine gets or loses its pod. A node that no longer exists took the snapshot with it.

use std::time::Duration;

use crds::conditions::{SNAPSHOT_READY, Status};
use crds::{
    SnapshotReference, SnapshotRequest, TaskKind, TaskState, VirtualMachine,
    VirtualMachineSnapshot, VirtualMachineTask,
};
use kube::ResourceExt;

use super::freeze;
use crate::flow::Outcome;
use crate::reconcile::answers::{again, is_gone};
use crate::reconcile::node_tasks;
use crate::reconcile::vm::act::revert::claims as revert_claims;
use crate::reconcile::vm::act::tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::promotion::back_off;
use crate::reconcile::vm::observe::{snapshots, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::write::{patch, snapshot as write};

const DELETION_FAILED: &str = "VirtualMachineSnapshotDeletionFailed";
const DELETING: &str = "VirtualMachineSnapshotDeletionInProgress";

/// Longest delay before an attempt is repeated, in seconds: a task that ended is not kept for longer.
const LONGEST_HOLD: i64 = 600;

/// Deletes one after the other; those that are gone are taken out of the list.
pub(super) async fn run(pass: &mut Pass<'_>, all: &mut Vec<VirtualMachineSnapshot>) -> Outcome<()> {
    let mut index = 0;
    while index < all.len() {
        if !is_leaving(&all[index]) || !is_removed(pass, &mut all[index]).await? {
            index += 1;
            continue;
        }
        let gone = all.remove(index);
        let_go(pass, &gone, all).await?;
    }
    Ok(())
}

/// Lets those go that no node has any more, whatever the rest of the pass waits for.
pub(super) async fn without_node(pass: &mut Pass<'_>) -> Outcome<()> {
    let known = pass.ctx.stores.snapshots_of(pass.key);
    if !known.iter().any(|one| is_lost(pass, one)) {
        return Ok(());
    }
    let mut all = snapshots::known(pass.ctx, pass.key);
    while let Some(index) = all.iter().position(|one| is_lost(pass, one)) {
        let gone = all.remove(index);
        check_live(pass, &gone).await?;
        let_go(pass, &gone, &mut all).await?;
    }
    Ok(())
}

async fn let_go(
    pass: &mut Pass<'_>,
    gone: &VirtualMachineSnapshot,
    left: &mut [VirtualMachineSnapshot],
) -> Outcome<()> {
    if snapshots::is_of_disk(gone, &pass.disk_uid()) {
        replace_parent(pass, gone, left).await?;
    }
    write::release(pass.ctx, gone).await
}

fn is_lost(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
    is_leaving(snapshot) && node_of(pass, snapshot).is_none() && use_of(pass, snapshot).is_none()
}

/// What its parts, which go with it, are needed for: the machine reverts to claims that are made of them.
fn use_of(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Option<String> {
    let seen = pass.seen();
    let revert = seen.and_then(|status| status.snapshot_revert.as_ref());
    let is_source = revert.is_some_and(|revert| {
        revert.root_claim_name.is_some() && Some(&revert.uid) == snapshot.metadata.uid.as_ref()
    });
    if is_source {
        return Some("the machine reverts to it".to_owned());
    }
    let claim = revert_claims::unfilled(pass, snapshot)?;
    Some(format!(
        "claim {claim} of the machine is made of it, and is not bound yet: start the machine, or delete the claim"
    ))
}

/// That the API server, too, has no revert to a snapshot with claims.
async fn check_live(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Outcome<()> {
    let uid = snapshot.uid().unwrap_or_default();
    let has_claims = !revert_claims::records(snapshot).is_empty();
    if has_claims && is_reverted_to(pass, &uid).await? {
        return Err(again());
    }
    Ok(())
}

/// The node that may have it.
fn node_of(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Option<String> {
    let is_its = snapshots::is_of_disk(snapshot, &pass.disk_uid());
    let node = pass.node_name();
    let node = node.filter(|node| view::node(pass, node).is_some());
    node.filter(|_| is_its && pass.root_claim().is_none())
}

/// Whether a snapshot that is being deleted may have something on a node.
fn is_leaving(snapshot: &VirtualMachineSnapshot) -> bool {
    snapshot.metadata.deletion_timestamp.is_some() && snapshots::may_be_on_node(snapshot)
}

/// Whether one is being deleted, as far as its node does not fail to.
pub(super) fn is_under_way(snapshot: &VirtualMachineSnapshot) -> bool {
    let ready = snapshot.condition(SNAPSHOT_READY);
    is_leaving(snapshot) && ready.is_none_or(|ready| ready.reason != DELETION_FAILED)
}

/// Whether no node has it.
async fn is_removed(pass: &mut Pass<'_>, snapshot: &mut VirtualMachineSnapshot) -> Outcome<bool> {
    freeze::cancel(pass, snapshot).await?;
    if let Some(why) = use_of(pass, snapshot) {
        return report(pass, snapshot, DELETING, &why).await.map(|()| false);
    }
    let Some(node) = node_of(pass, snapshot) else {
        check_live(pass, snapshot).await?;
        return Ok(true);
    };
    if let Some(making) = snapshots::task(pass, TaskKind::Snapshot, snapshot)
        && !making.is_final()
    {
        tasks::cancel(pass, &making).await?;
        return Ok(false);
    }
    let uid = snapshot.uid().unwrap_or_default();
    let seen = pass.seen();
    let revert = seen.and_then(|status| status.snapshot_revert.as_ref());
    if revert.is_some_and(|revert| revert.uid == uid) {
        let why = "the machine reverts to it";
        return report(pass, snapshot, DELETING, why).await.map(|()| false);
    }
    let attempts = snapshots::tasks(pass, TaskKind::DeleteSnapshot, snapshot);
    let ended_so = |state| attempts.iter().any(|task| task.state() == Some(state));
    if ended_so(TaskState::Success) {
        return Ok(true);
    }
    if attempts.iter().any(|task| !task.is_final()) {
        let why = format!("node {node} deletes the snapshot");
        return report(pass, snapshot, DELETING, &why).await.map(|()| false);
    }
    // What fails while a guest runs may succeed without it.
    let pod = pass.view.pod.as_ref().and_then(|pod| pod.uid());
    let seed = format!("{uid}/{}", pod.unwrap_or_default());
    let place = &tasks::places(pass, TaskKind::DeleteSnapshot, &seed)[0];
    if let Some(last) = tasks::find(pass, &place.name) {
        return retry(pass, snapshot, &last).await.map(|()| false);
    }
    if tasks::live(pass).is_some() || tasks::is_awaited(pass, Some(place)) {
        let why = "another task of the machine has not ended";
        return report(pass, snapshot, DELETING, why).await.map(|()| false);
    }
    if let Some(why) = snapshots::inability(pass, &node, TaskKind::DeleteSnapshot) {
        // A task that no agent takes would hold up the machine.
        return report(pass, snapshot, DELETION_FAILED, &why)
            .await
            .map(|()| false);
    }
    if is_reverted_to(pass, &uid).await? {
        return Err(again());
    }
    let mut task = tasks::spec(pass, &node, TaskKind::DeleteSnapshot);
    task.snapshot = Some(SnapshotRequest {
        uid,
        quiesce_seconds: None,
        memory: false,
    });
    tasks::ensure(pass, task, &seed).await?;
    let why = format!("node {node} deletes the snapshot");
    report(pass, snapshot, DELETING, &why).await.map(|()| false)
}

/// Whether the machine reverts to it, as the API server has the machine: the store may show it as it was before the
/// revert, also for long, and the answer to the write that began the revert may be lost.
async fn is_reverted_to(pass: &Pass<'_>, snapshot_uid: &str) -> Outcome<bool> {
    let live = match pass.api::<VirtualMachine>().get(&pass.key.name).await {
        Ok(live) if live.uid() == pass.vm.uid() => live,
        Ok(_) => return Err(again()),
        Err(error) if is_gone(&error) => return Err(again()),
        Err(source) => {
            let what = "the machine before deleting its snapshot".to_owned();
            return Err(Error::Read { what, source }.into());
        }
    };
    let revert = live.status.and_then(|status| status.snapshot_revert);
    Ok(revert.is_some_and(|revert| revert.uid == snapshot_uid))
}

/// The node has failed: it is asked again when the attempt is old enough.
async fn retry(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    last: &VirtualMachineTask,
) -> Outcome<()> {
    let status = last.status.clone().unwrap_or_default();
    let why = match status.state {
        Some(TaskState::Cancelled) => "the attempt was cancelled",
        _ => &status.message,
    };
    let why = format!(
        "node {} failed to delete the snapshot: {why}",
        last.spec.node_name
    );
    report(pass, snapshot, DELETION_FAILED, &why).await?;
    let since = snapshot.metadata.deletion_timestamp.as_ref();
    let since = since.map_or(0, |at| at.0.as_second());
    let hold = back_off(pass.seconds().saturating_sub(since)).min(LONGEST_HOLD);
    let age = node_tasks::age(last, pass.seconds()).unwrap_or(hold);
    if age >= hold {
        tasks::delete(pass, last).await?;
        pass.requeue_within(tasks::NEXT);
        return Ok(());
    }
    let rest = u64::try_from(hold - age).unwrap_or_default();
    pass.requeue_within(Duration::from_secs(rest.max(1)));
    Ok(())
}

async fn report(
    pass: &Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    reason: &str,
    why: &str,
) -> Outcome<()> {
    let mut draft = snapshot.status.clone().unwrap_or_default();
    let state = (Status::False, reason, why);
    write::condition(pass.ctx, snapshot, &mut draft, SNAPSHOT_READY, state);
    write::status(pass.ctx, snapshot, draft).await
}

/// What descends from a snapshot that is gone descends from its parent.
async fn replace_parent(
    pass: &mut Pass<'_>,
    gone: &VirtualMachineSnapshot,
    left: &mut [VirtualMachineSnapshot],
) -> Outcome<()> {
    let parent = gone
        .status
        .as_ref()
        .and_then(|status| status.parent.clone());
    let uid = gone.uid();
    let is_it = |one: &SnapshotReference| one.uid.is_some() && one.uid == uid;
    for one in left {
        let mut draft = one.status.clone().unwrap_or_default();
        if draft.parent.as_ref().is_some_and(is_it) {
            draft.parent.clone_from(&parent);
            write::status(pass.ctx, one, draft).await?;
        }
    }
    let current = pass
        .seen()
        .and_then(|status| status.current_snapshot.as_ref());
    if current.is_some_and(is_it) {
        pass.status().current_snapshot = parent;
        patch::status(pass).await?;
    }
    Ok(())
}
