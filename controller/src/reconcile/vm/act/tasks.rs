//! Tasks of nodes for a machine.
//!
//! Invariant: a task's name follows from its purpose, so that the same desired state never becomes
//! two tasks.
//! Failure: a failed task is shown, kept for a while, and then replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::node_facts::LEASE_SECONDS;
use crds::{
    TaskKind, TaskState, VirtualMachineSnapshot, VirtualMachineTask, VirtualMachineTaskSpec, names,
};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::Failure;
use serde_json::json;

use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::answers::{is_conflict, is_ending, is_gone, is_refused};
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::{snapshots, view};
use crate::reconcile::vm::pass::Pass;
use crate::shared::expectations;

/// How soon a pass follows that has removed a failed task.
pub(crate) const NEXT: Duration = Duration::from_secs(1);
/// How soon a task is looked at again that no agent may take: no event shows that the only agent has become
/// silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(LEASE_SECONDS.unsigned_abs() as u64);
/// Seconds before a task whose failure may pass is tried again.
const TRANSIENT_HOLD: i64 = 10;
/// Seconds before any other failed task is tried again: what failed may have been put right.
const HOLD: i64 = 300;
/// Seconds that a task which ended is kept for people to see.
const KEPT: i64 = 600;
/// The state of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Waits or runs.
    Running,
    /// Done.
    Done,
    /// Stopped on request.
    Cancelled,
    /// It failed a while ago, and its object is deleted: the next pass makes another one.
    Removed,
}

/// The plain task of that kind for this machine on `node`.
pub(crate) fn spec(pass: &Pass<'_>, node: &str, kind: TaskKind) -> VirtualMachineTaskSpec {
    VirtualMachineTaskSpec::new(node, kind, &pass.key.name, &pass.disk_uid())
}

/// The tasks of the machine.
pub(crate) fn all(pass: &Pass<'_>) -> Vec<Arc<VirtualMachineTask>> {
    pass.ctx.stores.tasks_of(&pass.disk_uid())
}

/// A task of the machine that is not final and that others wait for, if there is one. One that cuts
/// the power of an instance, or sets its probe, blocks no other task: it does not affect the next
/// instance. One that flattens the disk, makes a backup of it, or has the guest frozen, makes way on the node.
pub(crate) fn live(pass: &Pass<'_>) -> Option<Arc<VirtualMachineTask>> {
    let mut open = all(pass).into_iter().filter(|t| !t.is_final());
    open.find(|t| holds_up_others(t.spec.kind))
}

fn holds_up_others(kind: TaskKind) -> bool {
    let blocks_none = [
        TaskKind::PowerOff,
        TaskKind::SetProbe,
        TaskKind::Promote,
        TaskKind::Freeze,
    ];
    !blocks_none.contains(&kind) && !kind.is_of_backup()
}

/// Whether such a task was created that the store does not show yet, other than the one at `own`. The machine is
/// looked at again in any case.
pub(crate) fn is_awaited(pass: &mut Pass<'_>, own: Option<&Key>) -> bool {
    let expected = &pass.ctx.shared.expected;
    let is_awaited = expected.awaits_task(pass.key, own, pass.seconds());
    if is_awaited {
        pass.requeue_within(Duration::from_secs(expectations::TIMEOUT.unsigned_abs()));
    }
    is_awaited
}

pub(crate) fn find(pass: &Pass<'_>, name: &str) -> Option<Arc<VirtualMachineTask>> {
    find_at(pass, &Key::new(&pass.key.namespace, name))
}

fn find_at(pass: &Pass<'_>, place: &Key) -> Option<Arc<VirtualMachineTask>> {
    let found = pass.ctx.stores.tasks.get(&place.reference());
    // A task about a disk that the machine is to take over is about another machine's until it has.
    found.filter(|t| t.spec.vm_uid == pass.disk_uid() || t.spec.kind == TaskKind::Adopt)
}

/// The task about the disk that the machine is to take over.
pub(crate) fn adoption(pass: &Pass<'_>) -> Option<Arc<VirtualMachineTask>> {
    let places = places(pass, TaskKind::Adopt, &pass.uid());
    places.iter().find_map(|place| find_at(pass, place))
}

/// Where the task for this work can be: beside the machine, or in the controller's namespace, since
/// that of a machine that is being deleted may be ending, too, and then takes no new object.
pub(crate) fn places(pass: &Pass<'_>, kind: TaskKind, seed: &str) -> [Key; 2] {
    [
        Key::new(
            &pass.key.namespace,
            node_tasks::name(&pass.key.name, kind, seed),
        ),
        Key::new(
            &pass.ctx.config.namespace,
            node_tasks::name(&pass.uid(), kind, seed),
        ),
    ]
}

/// Lets the work be done, and returns its progress.
///
/// # Errors
///
/// [`Error::Task`] once it failed, until it is time to try again; then the old task is deleted.
pub(crate) async fn ensure(
    pass: &mut Pass<'_>,
    spec: VirtualMachineTaskSpec,
    seed: &str,
) -> Outcome<Progress> {
    let places = places(pass, spec.kind, seed);
    let Some(task) = places.iter().find_map(|place| find_at(pass, place)) else {
        create(pass, &places, spec).await?;
        return Ok(Progress::Running);
    };
    let status = task.status.clone().unwrap_or_default();
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) => Ok(Progress::Running),
        Some(TaskState::Success) => Ok(Progress::Done),
        Some(TaskState::Cancelled) => Ok(Progress::Cancelled),
        Some(TaskState::Error) => {
            let hold = if status.transient {
                TRANSIENT_HOLD
            } else {
                HOLD
            };
            if node_tasks::age(&task, pass.seconds()).is_none_or(|age| age >= hold) {
                delete(pass, &task).await?;
                return Ok(Progress::Removed);
            }
            Err(Error::Task {
                kind: task.spec.kind,
                node: task.spec.node_name.clone(),
                message: status.message,
            }
            .into())
        }
    }
}

/// Lets work be done again whose task was deleted in this pass.
pub(crate) async fn repeat(
    pass: &mut Pass<'_>,
    spec: VirtualMachineTaskSpec,
    seed: &str,
) -> Outcome<()> {
    let places = places(pass, spec.kind, seed);
    create(pass, &places, spec).await
}

async fn create(
    pass: &mut Pass<'_>,
    [own, other]: &[Key; 2],
    spec: VirtualMachineTaskSpec,
) -> Outcome<()> {
    pass.count_change();
    let is_deleted = pass.base.metadata.deletion_timestamp.is_some();
    let created = match create_at(pass, own, spec.clone()).await {
        Err(error) if is_deleted && is_ending(&error) => create_at(pass, other, spec).await,
        created => created,
    };
    match created {
        Ok(()) => Ok(()),
        // The store lags behind.
        Err(error) if is_conflict(&error) => Ok(()),
        Err(source) => Err(node_tasks::failed(&own.name, source)),
    }
}

async fn create_at(
    pass: &Pass<'_>,
    place: &Key,
    spec: VirtualMachineTaskSpec,
) -> Result<(), kube::Error> {
    let mut task = VirtualMachineTask::new(&place.name, spec);
    task.metadata = ObjectMeta {
        name: Some(place.name.clone()),
        namespace: Some(place.namespace.clone()),
        labels: Some(labels(pass.uid())),
        ..ObjectMeta::default()
    };
    // An owner is in the same namespace; what has none is deleted with the machine all the same.
    if place.namespace == pass.key.namespace {
        task.metadata.owner_references = Some(vec![pass.owner()]);
    } else {
        task.spec.vm_namespace = Some(pass.key.namespace.clone());
    }
    let expected = &pass.ctx.shared.expected;
    let is_expected = holds_up_others(task.spec.kind);
    let mut earlier = None;
    if is_expected {
        // Before the request: its answer may be lost after the effect.
        earlier = expected.requested(pass.key, place, pass.seconds());
    }
    let api = Api::namespaced(pass.ctx.client.clone(), &place.namespace);
    let created = api.create(&PostParams::default(), &task).await;
    if is_expected && created.as_ref().is_err_and(is_refused) {
        expected.was_refused(pass.key, place, earlier);
    }
    created.map(drop)
}

fn labels(vm_uid: String) -> BTreeMap<String, String> {
    let mut labels = node_tasks::labels();
    labels.insert(names::VM_UID_LABEL.to_owned(), vm_uid);
    labels
}

/// The machine waits for a task that no agent works on, perhaps indefinitely.
pub(crate) fn unresponsive_agent(pass: &Pass<'_>) -> Option<Failure> {
    let agents = &pass.ctx.stores.agents;
    let is_deleted = pass.vm.metadata.deletion_timestamp.is_some();
    let mut open = all(pass).into_iter().filter(|task| !task.is_final());
    let task = open.find(|task| {
        let is_waited_for = ![TaskKind::Promote, TaskKind::Freeze].contains(&task.spec.kind);
        if !is_waited_for || task.spec.kind.is_of_backup() {
            return false;
        }
        let node = &task.spec.node_name;
        !agents.lives(node) || is_deleted && agents.is_absent(node)
    })?;
    let name = task.name_any();
    let node = &task.spec.node_name;
    let message = if is_deleted {
        disk_without_agent(pass, node)
    } else {
        format!(
            "task {name} waits for vmlet-agent on node {node}, which does not renew its lease or \
             does not reach its daemon: check its pod there"
        )
    };
    Some(Failure {
        reason: "AgentSilent",
        message,
    })
}

/// What a user can do whose machine cannot be deleted with its disk.
fn disk_without_agent(pass: &Pass<'_>, node: &str) -> String {
    let found = view::node(pass, node);
    let label = found.and_then(|node| node.labels().get(names::NODE_LABEL).cloned());
    let repair = match label.as_deref() {
        Some("true") => "check the pod of vmlet-agent there".to_owned(),
        _ => format!(
            "an administrator brings vmlet-agent back there with kubectl label node {node} {}=true",
            names::NODE_LABEL
        ),
    };
    format!(
        "the root disk is on node {node}, where no vmlet-agent deletes it: {repair}; or let the machine go \
         and leave the disk there with kubectl -n {} annotate vm {} {}=",
        pass.key.namespace,
        pass.key.name,
        names::LEAVE_DISK
    )
}

/// Requests a task to stop.
pub(crate) async fn cancel(pass: &Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    if task.spec.cancel {
        return Ok(());
    }
    let patch = Patch::Merge(json!({ "spec": { "cancel": true } }));
    let name = task.name_any();
    let namespace = task.namespace().unwrap_or_default();
    let api = Api::<VirtualMachineTask>::namespaced(pass.ctx.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(node_tasks::failed(&name, source)),
    }
}

pub(crate) async fn delete(pass: &Pass<'_>, task: &VirtualMachineTask) -> Outcome<()> {
    node_tasks::remove(pass.ctx, task).await
}

/// Deletes a task that no agent has taken, if none is there that could; returns whether it was such a one.
pub(crate) async fn withdraw(pass: &Pass<'_>, task: &VirtualMachineTask) -> Outcome<bool> {
    let is_absent = pass.ctx.stores.agents.is_absent(&task.spec.node_name);
    if task.state().is_some() || !is_absent {
        return Ok(false);
    }
    node_tasks::remove_unchanged(pass.ctx, task).await?;
    Ok(true)
}

/// Deletes tasks that ended long ago and succeeded, or whose desired state has changed.
pub(crate) async fn sweep(pass: &Pass<'_>) -> Outcome<()> {
    let stores = &pass.ctx.stores;
    let is_known = |task: &Key| stores.tasks.get(&task.reference()).is_some();
    pass.ctx.shared.expected.saw_tasks(pass.key, is_known);
    for task in all(pass) {
        let age = node_tasks::age(&task, pass.seconds()).filter(|_| task.is_final());
        let is_of_machine = !task.spec.kind.is_of_backup();
        if age.is_some_and(|age| age > KEPT) && is_of_machine && !is_unrecorded(pass, &task) {
            delete(pass, &task).await?;
        }
    }
    Ok(())
}

/// The result of a task that ended is not on record yet. The same work again would have another result:
/// the node has the snapshot as of then.
pub(crate) fn is_unrecorded(pass: &Pass<'_>, task: &VirtualMachineTask) -> bool {
    let uid = task.spec.snapshot.as_ref().map(|request| &request.uid);
    match task.spec.kind {
        TaskKind::Snapshot => {
            let all = pass.ctx.stores.snapshots_of(pass.key);
            let is_recorded = |one: &VirtualMachineSnapshot| {
                let status = one.status.as_ref();
                status.is_some_and(|status| status.unique_id.is_some())
            };
            let mut open = all.iter().filter(|one| snapshots::is_open(one));
            open.any(|one| one.metadata.uid.as_ref() == uid && !is_recorded(one))
        }
        TaskKind::Revert => pass
            .seen()
            .is_some_and(|seen| seen.snapshot_revert.is_some()),
        _ => false,
    }
}
