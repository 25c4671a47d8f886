//! Executes the action that was decided about the power state.
//!
//! Invariant: no pass waits for a guest: a guest is asked by a task, and by the grace of a
//! deletion.
//! Failure: an operation that failed is repeated; the machine stays as it is.

mod restart;
mod start;
mod unpause;

use crds::names;
use crds::vm::PrintableStatus;
use crds::{PowerState, TaskKind, TaskState, VirtualMachine};
use kube::ResourceExt;
use kube::api::{Patch as ApiPatch, PatchParams};
use lifecycle::group;
use lifecycle::power::{self, Delay};
use lifecycle::{Action, Decision, DesiredState, Patch, Phase, Strategy, Waiting, requests};
use serde_json::{Map, Value, json};

use super::tasks;
use super::tasks::Progress;
use super::{config, consumer, effects, revert};
use crate::flow::{Flow, Outcome, PassError, proceed};
use crate::reconcile::answers::{again, is_conflict, is_gone};
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::write::{patch, status};

pub(crate) async fn run(pass: &mut Pass<'_>, decision: &Decision) -> Outcome {
    proceed!(delayed(pass)?);
    if config::is_admin_paused(pass) {
        return Ok(Flow::Done("is paused"));
    }
    if let Some(failure) = &decision.failure {
        let text = failure.message.clone();
        return Err(Error::NotReady(text).into());
    }
    unpause::settle(pass, &decision.action);
    stays_able_to_start(pass, &decision.action).await?;
    if decision.action != Action::Nothing {
        restart::make_way(pass, &decision.action).await?;
    } else {
        proceed!(restart::run(pass).await?);
    }
    if blocks(pass, &decision.action) {
        return Ok(Flow::Done("has an outstanding task"));
    }
    let refusal = power::unsuspendable(&pass.vm.spec);
    if matches!(decision.action, Action::Save { .. })
        && let Some(why) = refusal
    {
        // Older API servers' rules let it through.
        let field = "suspension";
        let message = format!("the machine goes on: {why}");
        return Err(Error::Invalid { field, message }.into());
    }
    let is_announced = matches!(
        decision.action,
        Action::Delete { .. } | Action::Shutdown { .. } | Action::Save { .. }
    );
    if is_announced {
        status::announce(pass);
        patch::status(pass).await?;
    }
    act(pass, &decision.action).await
}

/// A guest is not stopped for a restart that could not start it again: it runs on, and the request
/// waits for what is missing.
async fn stays_able_to_start(pass: &mut Pass<'_>, action: &Action) -> Outcome<()> {
    let stops = match action {
        Action::Delete { .. } => true,
        Action::Shutdown { uid, .. } => !is_asked(pass, uid),
        _ => false,
    };
    if !stops || !is_restart(pass) {
        return Ok(());
    }
    let Err(error) = config::can_start(pass).await else {
        return Ok(());
    };
    let PassError::Failed(source) = error else {
        return Err(error);
    };
    let instance = pass.view.instance.as_ref();
    let is_paused = instance.is_some_and(|i| i.paused.is_some());
    let word = if is_paused {
        PrintableStatus::Paused
    } else {
        PrintableStatus::Running
    };
    let status = pass.status();
    status.printable_status = Some(word);
    if let Some(instance) = &mut status.instance {
        instance.afterwards = None;
    }
    pass.writes.pops_request = false;
    Err(Error::NotStopped { source }.into())
}

/// The guest runs, and is to end so that it can be started again. A power-off is none, whatever the
/// machine lacks.
fn is_restart(pass: &Pass<'_>) -> bool {
    let requests = pass.seen().map(|s| s.state_change_requests.as_slice());
    let instance = pass.view.instance.as_ref();
    let running = instance.filter(|i| i.is_live() && i.phase == Phase::Running);
    let strategy = Strategy::from_spec(&pass.vm.spec);
    match (strategy, running) {
        (Ok(strategy), Some(instance)) => {
            requests::restarts(requests.unwrap_or_default(), strategy, instance)
        }
        _ => false,
    }
}

/// The guest was asked to power off, and may do so at any time.
fn is_asked(pass: &Pass<'_>, uid: &str) -> bool {
    let seed = seed(pass, uid);
    let name = node_tasks::name(&pass.key.name, TaskKind::GuestShutdown, &seed);
    let task = tasks::find(pass, &name);
    task.is_some_and(|task| !task.is_final() || task.state() == Some(TaskState::Success))
}

/// What distinguishes one request of a node from the next: it is made again when the desired state
/// changes.
fn seed(pass: &Pass<'_>, uid: &str) -> String {
    let generation = pass.vm.metadata.generation.unwrap_or_default();
    format!("{uid}/{generation}")
}

/// A group's change of power has not reached this machine yet.
fn delayed(pass: &mut Pass<'_>) -> Outcome {
    if revert::is_under_way(pass) {
        // Its desired state is not the owner's.
        return Ok(Flow::Continue);
    }
    if group::is_changed_directly(&pass.vm.spec, pass.vm.annotations()) {
        // The owner's own change acts at once.
        pass.vm
            .annotations_mut()
            .remove(names::APPLY_POWER_STATE_TIME);
    }
    match power::delay(pass.vm.annotations(), &pass.now) {
        Ok(Delay::None) => Ok(Flow::Continue),
        Ok(Delay::Over) => {
            pass.vm
                .annotations_mut()
                .remove(names::APPLY_POWER_STATE_TIME);
            Ok(Flow::Continue)
        }
        Ok(Delay::For(after)) => Ok(Flow::RequeueAfter(after)),
        Err(error) => Err(PassError::Failed(error.into())),
    }
}

/// A task of another kind is in progress; one of the same kind is the operation itself.
fn blocks(pass: &Pass<'_>, action: &Action) -> bool {
    let own: &[TaskKind] = match action {
        // A merge of layers makes way on the node for what needs the disk; others run beside it.
        Action::Shutdown { .. } => &[TaskKind::GuestShutdown, TaskKind::DeleteSnapshot],
        Action::Save { .. } => &[TaskKind::Save, TaskKind::DeleteSnapshot],
        Action::DiscardSaved => &[TaskKind::Restore],
        Action::Pause { .. } => &[TaskKind::Pause, TaskKind::DeleteSnapshot],
        Action::Unpause { .. } => &[TaskKind::Unpause, TaskKind::DeleteSnapshot],
        Action::Nothing | Action::Wait(_) => return false,
        // A harder way off overtakes what waits for the guest. The node itself keeps an instance and the
        // merge of a layer apart.
        Action::Delete { .. } => &[
            TaskKind::GuestShutdown,
            TaskKind::GuestReboot,
            TaskKind::DeleteSnapshot,
        ],
        Action::Create { .. } | Action::Patch(_) | Action::RemoveFinalizer => &[],
    };
    tasks::live(pass).is_some_and(|task| !own.contains(&task.spec.kind))
}

async fn act(pass: &mut Pass<'_>, action: &Action) -> Outcome {
    match action {
        Action::Wait(Waiting::Volumes) => consumer::run(pass).await,
        Action::Nothing | Action::RemoveFinalizer | Action::Wait(_) => Ok(Flow::Continue),
        Action::Create { paused, restore } => start::run(pass, *paused, *restore).await,
        Action::Delete { grace_seconds, .. } => {
            let Some(pod) = pass.view.pod.clone() else {
                return Ok(Flow::Continue);
            };
            let power = pass.seen().and_then(|status| status.power_state);
            effects::delete(pass, &pod, *grace_seconds).await?;
            Ok(Flow::Done(match power {
                Some(PowerState::PoweredOn) => "power state: from PoweredOn to PoweredOff",
                _ => "removed the machine's pod",
            }))
        }
        Action::Shutdown {
            uid,
            timeout_seconds,
        } => {
            let mut task = plain_task(pass, TaskKind::GuestShutdown)?;
            task.timeout_seconds = Some(*timeout_seconds);
            let seed = seed(pass, uid);
            Ok(then(tasks::ensure(pass, task, &seed).await?))
        }
        Action::Save { uid } => {
            let task = plain_task(pass, TaskKind::Save)?;
            Ok(then(tasks::ensure(pass, task, uid).await?))
        }
        Action::DiscardSaved => discard(pass).await,
        Action::Pause { uid } => turn(pass, TaskKind::Pause, uid).await,
        Action::Unpause { .. } if unpause::is_requested(pass) => unpause::run(pass).await,
        Action::Unpause { uid } => turn(pass, TaskKind::Unpause, uid).await,
        Action::Patch(change) => change_specification(pass, *change).await,
    }
}

/// The plain task of that kind on the machine's node.
fn plain_task(pass: &Pass<'_>, kind: TaskKind) -> Outcome<crds::VirtualMachineTaskSpec> {
    let pod = pass.view.pod.as_deref();
    let node = pod.and_then(pods::node).map(str::to_owned);
    match node.or_else(|| pass.node_name()) {
        Some(node) => Ok(tasks::spec(pass, &node, kind)),
        None => Err(Error::NoNode.into()),
    }
}

/// The end of the machine, or its agent's facts, show that the work is done.
const fn then(progress: Progress) -> Flow {
    match progress {
        Progress::Running => Flow::Done("requested from the node"),
        Progress::Done | Progress::Cancelled => Flow::Continue,
        Progress::Removed => Flow::RequeueAfter(tasks::NEXT),
    }
}

/// Pauses or resumes. A condition of the pod reports whether it is paused, so that the same desired
/// state comes again until it does.
async fn turn(pass: &mut Pass<'_>, kind: TaskKind, uid: &str) -> Outcome {
    let seed = seed(pass, uid);
    let task = plain_task(pass, kind)?;
    Ok(then(tasks::ensure(pass, task, &seed).await?))
}

async fn discard(pass: &mut Pass<'_>) -> Outcome {
    let mut task = plain_task(pass, TaskKind::Restore)?;
    task.discard = true;
    let last = pass.instance().map(|i| i.uid.clone()).unwrap_or_default();
    match tasks::ensure(pass, task, &last).await? {
        Progress::Done => {
            pass.status().power_state = Some(PowerState::PoweredOff);
            Ok(Flow::Done("dropped the saved memory"))
        }
        other => Ok(then(other)),
    }
}

/// Writes the desired state that a request contains into the specification, and removes the other
/// fields: the API server refuses a machine with two.
async fn change_specification(pass: &mut Pass<'_>, change: Patch) -> Outcome {
    let spec = match change {
        Patch::Paused => json!({ "paused": true }),
        Patch::DesiredState(desired) => {
            let mut spec: Map<String, Value> = DesiredState::FIELDS
                .map(|f| (f.into(), Value::Null))
                .into_iter()
                .collect();
            spec.insert(desired.field().to_owned(), desired.value());
            Value::Object(spec)
        }
    };
    let both = [names::RESUME_STATE, names::RESUME_STATE_OLD];
    let remembered = json!({ (both[0]): null, (both[1]): null });
    let forgets = both.iter().any(|name| pass.has(name)) && change != Patch::Paused;
    let body = json!({
        "metadata": {
            "resourceVersion": pass.vm.metadata.resource_version,
            "annotations": if forgets { remembered } else { json!({}) },
        },
        "spec": spec,
    });
    let manager = PatchParams {
        field_manager: Some(patch::META_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = pass.api::<VirtualMachine>();
    let name = pass.vm.name_any();
    match api.patch(&name, &manager, &ApiPatch::Merge(&body)).await {
        Ok(new) => {
            pass.count_change();
            patch::rebase(pass, new);
            Ok(Flow::Done("took over a request"))
        }
        Err(error) if is_gone(&error) => Ok(Flow::Continue),
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => {
            let part = "specification";
            Err(Error::Write { part, source }.into())
        }
    }
}
