//! Reverts a machine to the snapshot that its owner names.
//!
//! ```text
//! checks, a dry run of the last step ─► status: Disk ─► power off ─► task Revert ─► status: Restoring
//!   ─► new claims ─► specification, labels and annotations of the manifest, name removed ─► status: none
//! ```
//!
//! A machine whose root disk is a claim in the snapshot has no task: the new claim is the root disk.
//!
//! Invariant: nothing is changed before all that can be checked has been; from the first status to the
//! last the machine is off, and each step can be repeated by another process. The status, which only the
//! controller writes, says where a revert is; the annotation says whether the specification is restored.
//! Failure: the condition says what to do. Before the disk is reverted, or the new claims are named, removing the name ends the attempt,
//! and the machine goes on with the disk as it is; a failed step is repeated with a growing delay.

mod check;
pub(super) mod claims;
mod restore;

use std::sync::Arc;

use crds::conditions::{self, REVERT_SUCCEEDED, Status};
use crds::vm::{Afterwards, InstanceStatus, PowerOpMode, RevertPhase, SnapshotRevert};
use crds::{
    RunStrategy, SnapshotRequest, TaskKind, TaskState, VirtualMachineSnapshot, VirtualMachineSpec,
    VirtualMachineTask, names,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use lifecycle::{Action, Phase};

use super::tasks::{self, Progress, SILENCE};
use super::{config, effects, saved};
use crate::context::Key;
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::{snapshots, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::write::{patch, status};

const IN_PROGRESS: &str = conditions::REVERT_IN_PROGRESS;
const FAILED: &str = "VirtualMachineSnapshotRevertFailed";
const TASK_FAILED: &str = "VirtualMachineSnapshotRevertTaskFailed";
const INVALID_MANIFEST: &str = "VirtualMachineSnapshotRevertFailedInvalidVMManifest";

/// Whether the machine is off because it reverts.
pub(crate) fn is_under_way(pass: &Pass<'_>) -> bool {
    revert(pass).is_some()
}

fn revert(pass: &Pass<'_>) -> Option<SnapshotRevert> {
    pass.seen().and_then(|seen| seen.snapshot_revert.clone())
}

/// A machine that reverts is off, whatever its owner desires; requests wait. Returns the owner's
/// specification, for the end of the pass.
pub(crate) fn hold(pass: &mut Pass<'_>) -> Option<VirtualMachineSpec> {
    if !is_under_way(pass) {
        return None;
    }
    pass.status().state_change_requests.clear();
    let off = VirtualMachineSpec {
        power_state: None,
        running: None,
        run_strategy: Some(RunStrategy::Halted),
        // What the guest has in its caches goes with its disk.
        power_off_mode: Some(PowerOpMode::Hard),
        next_restart_time: None,
        paused: false,
        ..pass.vm.spec.clone()
    };
    Some(std::mem::replace(&mut pass.vm.spec, off))
}

/// One step of the revert; [`Flow::Continue`]: there is none.
pub(crate) async fn run(pass: &mut Pass<'_>, action: &Action) -> Outcome {
    let name = pass.base.spec.current_snapshot_name.clone();
    let Some(revert) = revert(pass) else {
        let Some(name) = name else {
            idle(pass);
            return Ok(Flow::Continue);
        };
        return begin(pass, &name).await;
    };
    if config::is_admin_paused(pass) {
        return Ok(Flow::Done("is paused"));
    }
    match revert.phase {
        RevertPhase::Disk if name.as_ref() != Some(&revert.name) => give_up(pass, &revert).await,
        RevertPhase::Disk => disk(pass, &revert, action).await,
        RevertPhase::Restoring => restore::run(pass, &revert).await,
    }
}

/// The node cannot be reached: no step of a revert is taken, and its owner can end it.
pub(crate) async fn without_node(pass: &mut Pass<'_>, why: &str) -> Outcome<()> {
    let Some(revert) = revert(pass).filter(|revert| revert.phase == RevertPhase::Disk) else {
        return Ok(());
    };
    if config::is_admin_paused(pass) {
        return Ok(());
    }
    if pass.base.spec.current_snapshot_name.as_ref() == Some(&revert.name) {
        stalled(pass, why);
        return Ok(());
    }
    give_up(pass, &revert).await.map(drop)
}

/// What is recorded of instance and run strategy stays that of the owner's specification: a revert that is
/// given up leaves both as they were, and an instance that it ended is replaced.
pub(crate) fn keep_record(pass: &mut Pass<'_>) {
    if !is_under_way(pass) {
        return;
    }
    let old = pass.base.status.clone().unwrap_or_default();
    let status = pass.status();
    status.run_strategy = old.run_strategy;
    let Some(now) = &mut status.instance else {
        return;
    };
    let old = old.instance.filter(|old| old.uid == now.uid);
    now.once_completed = old.as_ref().is_some_and(|old| old.once_completed);
    now.afterwards = match old {
        Some(old) if old.afterwards.is_some() || has_ended(&old) => old.afterwards,
        _ => Some(Afterwards::StartAgain),
    };
}

fn has_ended(instance: &InstanceStatus) -> bool {
    let phase = instance.phase.as_deref();
    phase.is_some_and(Phase::is_final_name)
}

/// Nothing is left of a revert.
fn idle(pass: &mut Pass<'_>) {
    pass.drop_condition(REVERT_SUCCEEDED);
    pass.vm.annotations_mut().remove(names::REVERT_IN_PROGRESS);
}

async fn begin(pass: &mut Pass<'_>, name: &str) -> Outcome {
    if config::is_admin_paused(pass) {
        return Ok(Flow::Continue);
    }
    if tasks::live(pass).is_some() || tasks::is_awaited(pass, None) {
        return Ok(Flow::Done("has an outstanding task"));
    }
    let taken = |task: &VirtualMachineTask| {
        task.spec.kind == TaskKind::Snapshot && task.state() == Some(TaskState::Success)
    };
    let mut all = tasks::all(pass).into_iter();
    if all.any(|task| taken(&task) && tasks::is_unrecorded(pass, &task)) {
        // It becomes the current one first, in this pass.
        return Ok(Flow::Continue);
    }
    let check::Usable {
        snapshot,
        root_claim,
    } = match check::run(pass, name).await {
        Ok(usable) => usable,
        Err(check::Refusal::Words(reason, why)) => return Err(failed(pass, name, reason, &why)),
        Err(check::Refusal::Error(error)) => return Err(error),
    };
    forget_discard(pass).await?;
    let earlier = snapshots::claimed(pass).into_iter();
    let earlier = earlier.filter(|_| !claims::records(&snapshot).is_empty());
    let revert = SnapshotRevert {
        name: name.to_owned(),
        uid: snapshot.uid().unwrap_or_default(),
        start_time: pass.now.clone(),
        phase: RevertPhase::Disk,
        memory: root_claim.is_none() && resumes(pass, &snapshot),
        root_claim_name: root_claim,
        earlier_claims: earlier.map(|disk| disk.claim).collect(),
    };
    pass.status().snapshot_revert = Some(revert);
    let annotations = pass.vm.annotations_mut();
    annotations.insert(names::REVERT_IN_PROGRESS.to_owned(), name.to_owned());
    progress(pass, "the machine is powered off");
    let text = format!("the machine is powered off, and reverts to snapshot {name}");
    pass.normal("RevertStarted", &text);
    pass.count_change();
    Ok(Flow::Done("reverts to a snapshot"))
}

/// A task that discards memory is named after the last instance, and a revert brings memory without one: the task of
/// an earlier discard would be taken for its own.
async fn forget_discard(pass: &Pass<'_>) -> Outcome<()> {
    for task in tasks::all(pass) {
        if task.spec.kind == TaskKind::Restore && task.is_final() {
            tasks::delete(pass, &task).await?;
        }
    }
    Ok(())
}

/// Powers the machine off, then lets the node revert its disk, if it has one.
async fn disk(pass: &mut Pass<'_>, revert: &SnapshotRevert, action: &Action) -> Outcome {
    let annotations = pass.vm.annotations_mut();
    annotations.insert(names::REVERT_IN_PROGRESS.to_owned(), revert.name.clone());
    if let Some(pod) = pass.view.pod.clone() {
        progress(pass, "the machine is powered off");
        if let Action::Delete { grace_seconds, .. } = action {
            status::announce(pass);
            patch::status(pass).await?;
            effects::delete(pass, &pod, *grace_seconds).await?;
        }
        return Ok(Flow::Done("is powered off for a revert"));
    }
    let own = task(pass, revert);
    if tasks::live(pass).is_some_and(|task| own.as_ref().is_none_or(|own| task != *own)) {
        progress(pass, "another task of the machine has not ended");
        return Ok(Flow::Done("has an outstanding task"));
    }
    if revert.root_claim_name.is_some() {
        return restoring(pass, revert).await;
    }
    let Some(node) = snapshots::node(pass) else {
        return Err(Error::NoNode.into());
    };
    let mut spec = tasks::spec(pass, &node, TaskKind::Revert);
    spec.snapshot = Some(SnapshotRequest {
        uid: revert.uid.clone(),
        quiesce_seconds: None,
        memory: revert.memory,
    });
    let seed = seed(&revert.uid, &revert.start_time);
    match tasks::ensure(pass, spec, &seed).await {
        Ok(Progress::Running) => {
            progress(pass, &format!("node {node} reverts the root disk"));
            Ok(Flow::Done("requested from the node"))
        }
        Ok(Progress::Done) => restoring(pass, revert).await,
        Ok(Progress::Cancelled) => {
            if let Some(own) = own {
                tasks::delete(pass, &own).await?;
            }
            Ok(Flow::RequeueAfter(tasks::NEXT))
        }
        Ok(Progress::Removed) => Ok(Flow::RequeueAfter(tasks::NEXT)),
        Err(PassError::Failed(error)) => {
            let why = error::text(&error);
            Err(failed(pass, &revert.name, TASK_FAILED, &why))
        }
        Err(conflict) => Err(conflict),
    }
}

/// The disk is reverted, or is to be a new claim.
async fn restoring(pass: &mut Pass<'_>, revert: &SnapshotRevert) -> Outcome {
    let what = "the specification is restored";
    pass.condition(REVERT_SUCCEEDED, Status::False, IN_PROGRESS, what);
    pass.status().snapshot_revert = Some(SnapshotRevert {
        phase: RevertPhase::Restoring,
        ..revert.clone()
    });
    patch::status(pass).await?;
    restore::run(pass, revert).await
}

/// What distinguishes the task and the claims of one revert from those of the next to the same snapshot. The API server
/// keeps whole seconds.
fn seed(snapshot_uid: &str, start_time: &Time) -> String {
    format!("{snapshot_uid}/{}", start_time.0.strftime("%FT%TZ"))
}

/// The node's task of this revert.
fn task(pass: &Pass<'_>, revert: &SnapshotRevert) -> Option<Arc<VirtualMachineTask>> {
    let seed = seed(&revert.uid, &revert.start_time);
    let place = &tasks::places(pass, TaskKind::Revert, &seed)[0];
    tasks::find(pass, &place.name)
}

/// The owner removed the name, or names another snapshot, after a failure.
async fn give_up(pass: &mut Pass<'_>, revert: &SnapshotRevert) -> Outcome {
    let mut all = tasks::all(pass).into_iter();
    let live = all.find(|task| task.spec.kind == TaskKind::Revert && !task.is_final());
    if let Some(live) = live {
        if tasks::withdraw(pass, &live).await? {
            return Ok(Flow::RequeueAfter(tasks::NEXT));
        }
        tasks::cancel(pass, &live).await?;
        pass.requeue_within(SILENCE);
        return Ok(Flow::Done("ends a revert"));
    }
    let own = task(pass, revert);
    if own.is_some_and(|task| task.state() == Some(TaskState::Success)) {
        is_on_disk(pass, revert);
    }
    end(pass, revert);
    Ok(Flow::Done("ended a revert"))
}

/// Whether a machine that reverts resumes from the memory of the snapshot: if that has some, and its owner does not say
/// otherwise.
fn resumes(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    let annotations = pass.base.annotations();
    status.is_some_and(|status| status.memory)
        && !annotations.contains_key(names::REVERT_WITHOUT_MEMORY)
}

/// The disk of the node is that of the snapshot, and the memory lies beside it.
fn is_on_disk(pass: &mut Pass<'_>, revert: &SnapshotRevert) {
    if revert.root_claim_name.is_some() {
        return;
    }
    pass.status().current_snapshot = Some(restore::reference(revert));
    if revert.memory {
        let key = Key::new(&pass.key.namespace, &revert.name);
        let found = pass.ctx.stores.snapshots.get(&key.reference());
        let found = found.filter(|found| found.uid().as_ref() == Some(&revert.uid));
        saved::take_memory(pass, found.as_deref());
    }
}

/// The machine goes on with the specification that it has.
fn end(pass: &mut Pass<'_>, revert: &SnapshotRevert) {
    let status = pass.status();
    status.snapshot_revert = None;
    status.start_failure = None;
    idle(pass);
    if revert.root_claim_name.is_some() {
        let text = "the revert was ended by its owner: the machine keeps its claims, the root disk among them, and its \
                    specification";
        return pass.warning("RevertEnded", text);
    }
    let mut text = "the revert was ended by its owner: the root disk may be reverted already, the specification is not \
                    restored"
        .to_owned();
    let key = Key::new(&pass.key.namespace, &revert.name);
    let snapshot = pass.ctx.stores.snapshots.get(&key.reference());
    let snapshot = snapshot.filter(|found| found.uid().as_ref() == Some(&revert.uid));
    if snapshot.is_some_and(|found| !claims::records(&found).is_empty()) {
        text.push_str(", and the claims are not those of the snapshot");
    }
    pass.warning("RevertEnded", &text);
}

/// Says what is done. Without its agent the node does nothing, and the owner can end the revert then.
fn progress(pass: &mut Pass<'_>, what: &str) {
    pass.requeue_within(SILENCE);
    match obstacle(pass) {
        Some(why) => stalled(pass, &why),
        None => pass.condition(REVERT_SUCCEEDED, Status::False, IN_PROGRESS, what),
    }
}

/// Why the node does nothing, if it is known not to.
fn obstacle(pass: &Pass<'_>) -> Option<String> {
    let node = snapshots::node(pass)?;
    let root_claim = revert(pass).and_then(|revert| revert.root_claim_name);
    if root_claim.is_some() {
        // No agent takes part, and the end of the pod is what is waited for.
        let is_silent = pass.view.pod.is_some() && !view::is_ready(pass, &node);
        return is_silent
            .then(|| format!("node {node} does not report, and the guest may run there"));
    }
    let is_absent = pass.ctx.stores.agents.is_absent(&node);
    is_absent.then(|| {
        format!("vmlet-agent on node {node} does not renew its lease: check its pod there")
    })
}

/// The revert waits, perhaps indefinitely: this reason, unlike that of progress, lets the name be removed.
fn stalled(pass: &mut Pass<'_>, why: &str) {
    let text = format!("{why}; removing currentSnapshotName ends the revert");
    pass.condition(REVERT_SUCCEEDED, Status::False, TASK_FAILED, &text);
}

/// The error of the pass; the condition says what to do.
fn failed(pass: &mut Pass<'_>, name: &str, reason: &str, why: &str) -> PassError {
    let text = format!("{why}; the attempt is repeated, and removing currentSnapshotName ends it");
    pass.condition(REVERT_SUCCEEDED, Status::False, reason, &text);
    let name = name.to_owned();
    let why = why.to_owned();
    Error::Revert { name, why }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_have_the_names_that_the_api_server_judged() {
        let exact = Time("2027-01-15T08:00:10.987654321Z".parse().unwrap());
        let stored: Time = serde_json::from_value(serde_json::json!(exact)).unwrap();
        assert_ne!(exact, stored);
        assert_eq!(seed("a", &exact), seed("a", &stored));
        assert_eq!(seed("a", &stored), "a/2027-01-15T08:00:10Z");
    }
}
