//! Tasks of nodes for a backup.
//!
//! Invariant: a task's name follows from its purpose, and the backup owns it; nodes keep the disk under the UID that it
//! names. It is deleted only when its result is on record, or when it can be done again.
//! Failure: what the API server reports of a write.

use std::sync::Arc;
use std::time::Duration;

use crds::node_facts::LEASE_SECONDS;
use crds::{BackupRequest, TaskKind, VirtualMachineTask, VirtualMachineTaskSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::node::exists;
use super::pass::Pass;
use super::place;
use crate::flow::Outcome;
use crate::reconcile::answers::{is_conflict, is_ending, is_gone};
use crate::reconcile::node_tasks;

/// Seconds that a task which ended is kept for people to see.
const KEPT: i64 = 600;
/// How soon a task is looked at again: no event shows that its agent has become silent.
pub(super) const SILENCE: Duration = Duration::from_secs(LEASE_SECONDS.unsigned_abs() as u64);
/// How soon a backup that waits is looked at again: what it waits for may end without a change that wakes it.
pub(super) const RECHECK: Duration = Duration::from_secs(600);
/// How soon a pass follows that has removed a task.
pub(super) const NEXT: Duration = Duration::from_secs(1);

/// The task of that kind for this backup.
pub(super) fn find(pass: &Pass<'_>, kind: TaskKind) -> Option<Arc<VirtualMachineTask>> {
    let uid = pass.uid();
    let mut all = pass.ctx.stores.tasks_of_backup(pass.key).into_iter();
    all.find(|task| {
        let backup = task.spec.backup.as_ref();
        task.spec.kind == kind && backup.is_some_and(|backup| backup.uid == uid)
    })
}

/// Name of the task of that kind. A verification is of one request.
pub(super) fn name(pass: &Pass<'_>, kind: TaskKind) -> String {
    let request = match kind {
        TaskKind::VerifyBackup => pass.backup.spec.verify_request.as_deref(),
        _ => None,
    };
    let seed = format!("{}/{}", pass.uid(), request.unwrap_or_default());
    node_tasks::name(&pass.key.name, kind, &seed)
}

/// Creates the task of that kind on `node`, for the disk with this UID.
pub(super) async fn create(
    pass: &mut Pass<'_>,
    node: &str,
    kind: TaskKind,
    request: BackupRequest,
) -> Outcome<()> {
    let name = name(pass, kind);
    let vm = &pass.backup.spec.vm_name;
    let disk = pass.draft.disk_uid.as_deref().unwrap_or_default();
    let spec = VirtualMachineTaskSpec {
        backup: Some(request),
        ..VirtualMachineTaskSpec::new(node, kind, vm, disk)
    };
    let mut task = VirtualMachineTask::new(&name, spec);
    let owner = pass.backup.controller_owner_ref(&());
    task.metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(pass.key.namespace.clone()),
        labels: Some(node_tasks::labels()),
        // Blocking the owner's deletion needs a right of its own, and nothing needs it.
        owner_references: owner.map(|owner| {
            vec![OwnerReference {
                block_owner_deletion: None,
                ..owner
            }]
        }),
        ..ObjectMeta::default()
    };
    match api(pass).create(&PostParams::default(), &task).await {
        Ok(_) => {}
        // The store lags behind, or the task of the last attempt is on its way out: its event wakes the backup.
        Err(error) if is_conflict(&error) => pass.requeue_within(NEXT),
        // The namespace is being deleted, and the store of namespaces lags behind.
        Err(error) if is_ending(&error) => pass.requeue_within(NEXT),
        Err(source) => return Err(node_tasks::failed(&name, source)),
    }
    Ok(())
}

/// What every task about this backup names.
pub(super) fn request(pass: &Pass<'_>) -> BackupRequest {
    BackupRequest {
        uid: pass.uid(),
        target: place::target(pass),
        disk_uid: None,
        manifest_sha256: None,
        full: false,
        quiesce_seconds: None,
    }
}

/// Looks after a task that has not ended; false: it was removed, since its node no longer exists.
pub(super) async fn await_end(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<bool> {
    pass.requeue_within(SILENCE);
    if exists(pass.ctx, &task.spec.node_name) {
        return Ok(true);
    }
    node_tasks::remove(pass.ctx, task).await?;
    pass.requeue_within(NEXT);
    Ok(false)
}

/// Removes a task that another node can do, unless an agent works on it; true: it was removed.
pub(super) async fn take_back(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<bool> {
    let node = &task.spec.node_name;
    let is_lost = !exists(pass.ctx, node) || pass.ctx.stores.agents.is_absent(node);
    if is_lost {
        node_tasks::remove(pass.ctx, task).await?;
        pass.requeue_within(NEXT);
    } else {
        pass.requeue_within(SILENCE);
    }
    Ok(is_lost)
}

/// Requests a task to stop, or withdraws it if no agent is there that could have taken it; true: it is over.
pub(super) async fn end(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<bool> {
    if task.is_final() {
        return Ok(true);
    }
    if !await_end(pass, task).await? {
        return Ok(false);
    }
    if task.state().is_none() && pass.ctx.stores.agents.is_absent(&task.spec.node_name) {
        node_tasks::remove_unchanged(pass.ctx, task).await?;
        pass.requeue_within(NEXT);
        return Ok(false);
    }
    if task.spec.cancel {
        return Ok(false);
    }
    let patch = Patch::Merge(json!({ "spec": { "cancel": true } }));
    let name = task.name_any();
    match api(pass)
        .patch(&name, &PatchParams::default(), &patch)
        .await
    {
        Ok(_) => Ok(false),
        Err(error) if is_gone(&error) => Ok(true),
        Err(source) => Err(node_tasks::failed(&name, source)),
    }
}

/// Whether the daemon of a node has judged the work for good. What an agent refuses by itself says nothing of the
/// content: its daemon may be of another version for a while.
pub(super) fn is_judged(task: &VirtualMachineTask) -> bool {
    let status = task.status.as_ref();
    status.is_some_and(|status| !status.transient && status.start_time.is_some())
}

/// Whether the next attempt is due after a failure that may pass; else the backup is looked at when it is. `longest`: the
/// longest delay, in seconds.
pub(super) fn is_due(pass: &mut Pass<'_>, task: &VirtualMachineTask, longest: i64) -> bool {
    let hold = pass.hold(longest);
    let age = node_tasks::age(task, pass.seconds()).unwrap_or(hold);
    let left = u64::try_from(hold - age).unwrap_or_default();
    if left > 0 {
        pass.requeue_within(Duration::from_secs(left));
    }
    left == 0
}

/// Makes way for the task of the next attempt.
pub(super) async fn remove(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    node_tasks::remove(pass.ctx, task).await?;
    pass.requeue_within(NEXT);
    Ok(())
}

/// Deletes tasks that ended long ago; the results of all are on record.
pub(super) async fn sweep(pass: &mut Pass<'_>) -> Outcome<()> {
    for task in pass.ctx.stores.tasks_of_backup(pass.key) {
        if !task.is_final() {
            continue;
        }
        let age = node_tasks::age(&task, pass.seconds()).unwrap_or(KEPT);
        match u64::try_from(KEPT - age) {
            Ok(left) if left > 0 => pass.requeue_within(Duration::from_secs(left)),
            _ => node_tasks::remove(pass.ctx, &task).await?,
        }
    }
    Ok(())
}

fn api(pass: &Pass<'_>) -> Api<VirtualMachineTask> {
    Api::namespaced(pass.ctx.client.clone(), &pass.key.namespace)
}
