//! Creates the root disk on the node that the scheduler chooses.
//!
//! ```text
//! placeholder ─ bound ─► status.nodeName ─ image pulled, runs ─► Provision task ─► Created
//! ```
//!
//! Invariant: the node is recorded before a task exists there; it changes only while no disk can
//! exist, or when the node left after the task had failed. Until the disk is made the machine
//! follows its image: what was begun for another source of it ends.
//! Failure: a placeholder that failed is made again after a while, on the same node once one is on
//! record.

use std::sync::Arc;
use std::time::Duration;

use crds::conditions::{self, Status};
use crds::{TaskKind, TaskState, VirtualMachineTask, names};
use k8s_openapi::api::core::v1::Pod;

use super::pod::{self, Plan};
use super::tasks::{self, Progress};
use super::{effects, identity, slot};
use crate::flow::{Flow, Outcome};
use crate::reconcile::answers::again;
use crate::reconcile::image::used;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::observe::mode::Mode;
use crate::reconcile::vm::observe::{find, pods, root_disk, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Prerequisites};
use crate::reconcile::vm::write::patch;
use crate::shared::slots::Slot;

/// Seconds between two placeholders: a node that refuses every pod does so at once.
const PERIOD: i64 = 30;
/// Seconds that kubelet has to remove a placeholder before its object is deleted.
const GRACE: u32 = 1;

/// The task that makes, or made, the root disk.
pub(crate) fn task(pass: &Pass<'_>) -> Option<Arc<VirtualMachineTask>> {
    let name = node_tasks::name(&pass.key.name, TaskKind::Provision, &pass.uid());
    tasks::find(pass, &name)
}

/// One step.
pub(crate) async fn run(pass: &mut Pass<'_>, prerequisites: &Prerequisites, slot: Slot) -> Outcome {
    let pod = find::placeholder(pass);
    if !follow_image(pass, prerequisites, pod.as_deref()).await? {
        return Ok(Flow::Continue);
    }
    let Some(node) = pin(pass, prerequisites, pod.as_deref()).await? else {
        return Ok(Flow::Continue);
    };
    match pod {
        // The node may have restarted since.
        Some(pod) if pods::runs(&pod) || pods::phase(&pod) == "Succeeded" => {
            make(pass, prerequisites, &node, slot).await
        }
        Some(pod) if pods::phase(&pod) == "Failed" => replace_failed(pass, &pod).await,
        // One that was made again may find its node full.
        Some(pod) if pods::node(&pod).is_none() => {
            waits_for_node(pass, &pod).await.map(|()| Flow::Continue)
        }
        Some(pod) => {
            waits_for_image(pass, &pod);
            Ok(Flow::Continue)
        }
        None => {
            ensure_placeholder(pass, prerequisites, Some(&node)).await?;
            Ok(Flow::Continue)
        }
    }
}

/// Ends what was begun for an image that was edited, or made again, since. False: the end is waited
/// for.
async fn follow_image(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    pod: Option<&Pod>,
) -> Outcome<bool> {
    let name = prerequisites.image.name.as_str();
    let is_of_another = |task: &Arc<VirtualMachineTask>| task.spec.image.as_deref() != Some(name);
    if let Some(task) = task(pass).filter(is_of_another) {
        // It has failed: neither one that continues nor one that succeeded gets here.
        tasks::delete(pass, &task).await?;
        return Ok(false);
    }
    match pod.filter(|pod| pods::image(pod) != Some(name)) {
        Some(pod) => {
            effects::delete(pass, pod, GRACE).await?;
            Ok(false)
        }
        None => Ok(true),
    }
}

/// The node, recorded; `None` while there is none.
async fn pin(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    pod: Option<&Pod>,
) -> Outcome<Option<String>> {
    if let Some(node) = pass.node_name() {
        let task = task(pass);
        let is_open = task.as_ref().is_some_and(|task| !has_failed(task));
        if view::node(pass, &node).is_some() || is_open {
            return Ok(Some(node));
        }
        // The node left before a disk was complete there.
        if let Some(task) = task {
            tasks::delete(pass, &task).await?;
        }
        pass.status().node_name = None;
        pass.status().zone = None;
        if let Some(pod) = pod {
            // No kubelet is left to confirm it.
            effects::delete(pass, pod, 0).await?;
        }
        return Ok(None);
    }
    let Some(pod) = pod else {
        ensure_placeholder(pass, prerequisites, None).await?;
        return Ok(None);
    };
    if pods::is_deleting(pod) {
        // Its end wakes the machine.
        return Ok(None);
    }
    let Some(node) = pods::node(pod) else {
        waits_for_node(pass, pod).await?;
        return Ok(None);
    };
    pass.status().node_name = Some(node.to_owned());
    pass.condition(conditions::PLACEMENT_READY, Status::True, "", "");
    Ok(Some(node.to_owned()))
}

fn has_failed(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|status| status.state);
    matches!(state, Some(TaskState::Error | TaskState::Cancelled))
}

async fn ensure_placeholder(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    node: Option<&str>,
) -> Outcome<()> {
    let (bios, instance) = identity::of(pass);
    let uid = pass.uid();
    let plan = Plan {
        vm: &pass.vm,
        uid: &uid,
        owner: pass.owner(),
        prerequisites,
        node,
        disk: None,
        disk_request: root_disk::request(pass),
        instance_uuid: &instance,
        bios_uuid: &bios,
        machine_type: None,
        grace_seconds: 1,
        paused: false,
        restore: false,
        // Nothing is waited for by now, so that the gate would only be one more write.
        is_gated: false,
    };
    let pod = pod::placeholder(&plan);
    effects::create(pass, &pod).await?;
    if node.is_none() {
        let (kind, text) = (
            conditions::PLACEMENT_READY,
            "the scheduler has not chosen a node yet",
        );
        pass.condition(kind, Status::False, "NotReady", text);
        pass.postpone_status();
    }
    Ok(())
}

async fn waits_for_node(pass: &mut Pass<'_>, pod: &Pod) -> Outcome<()> {
    let text = pods::unschedulable(pod).unwrap_or("the scheduler has not chosen a node yet");
    let kind = conditions::PLACEMENT_READY;
    pass.condition(kind, Status::False, "NotReady", text);
    effects::ungate(pass, pod, names::PROVISIONING_GATE).await
}

fn waits_for_image(pass: &mut Pass<'_>, pod: &Pod) {
    let waiting = pods::waiting(pod);
    // What kubelet reports of every pod before it has pulled the image is no change.
    if let Some((reason, message)) = waiting.filter(|(reason, _)| *reason != "ContainerCreating") {
        let text = match message {
            "" => reason.to_owned(),
            _ => format!("{reason}: {message}"),
        };
        let kind = conditions::IMAGE_CACHE_READY;
        pass.condition(kind, Status::False, "NotReady", &text);
    }
}

async fn replace_failed(pass: &mut Pass<'_>, pod: &Pod) -> Outcome {
    let status = pod.status.clone().unwrap_or_default();
    let why = [status.reason, status.message];
    let why: Vec<_> = why.into_iter().flatten().collect();
    let reason = format!("the placeholder failed: {}", why.join(": "));
    pass.condition(conditions::PLACEMENT_READY, Status::False, "Error", &reason);
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map_or(PERIOD, |at| pass.seconds() - at.0.as_second());
    let left = u64::try_from(PERIOD - age.max(0)).unwrap_or_default();
    let after = Duration::from_secs(left);
    if after.is_zero() {
        effects::delete(pass, pod, GRACE).await?;
    }
    // A back-off of its own, and the next one is made by the pass after this one.
    let least = tasks::NEXT;
    Ok(Flow::RequeueAfter(after.max(least)))
}

/// A task is made only after that.
pub(crate) fn has_place_and_image(pass: &mut Pass<'_>) {
    pass.condition(conditions::IMAGE_CACHE_READY, Status::True, "", "");
    pass.condition(conditions::PLACEMENT_READY, Status::True, "", "");
}

async fn make(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    node: &str,
    slot: Slot,
) -> Outcome {
    has_place_and_image(pass);
    let recorded = pass.base.status.as_ref();
    if recorded.is_none_or(|status| status.node_name.is_none()) {
        patch::status(pass).await?;
    }
    // The node's own limit counts from here on.
    drop(slot);
    let Some(slot) = slot::take_slot(pass, Some(node)) else {
        return Ok(slot::no_slot(pass));
    };
    if let Some(object) = &prerequisites.image.object {
        used::record(pass.ctx, object).await?;
    }
    let mut spec = tasks::spec(pass, node, TaskKind::Provision);
    spec.image = Some(prerequisites.image.name.clone());
    spec.image_url.clone_from(&prerequisites.image.url);
    spec.image_tls_secret
        .clone_from(&prerequisites.image.tls_secret);
    spec.linked = pass.mode == Mode::Linked;
    let wanted = pass.vm.spec.boot_disk_capacity.as_ref();
    spec.size_bytes = wanted
        .and_then(prerequisites::bytes)
        .and_then(|bytes| i64::try_from(bytes).ok());
    let uid = pass.uid();
    match tasks::ensure(pass, spec, &uid).await? {
        Progress::Running => {
            slot.keep();
            pass.postpone_status();
            Ok(slot::is_being_made(pass))
        }
        Progress::Done => Ok(Flow::Continue),
        Progress::Removed => Ok(Flow::RequeueAfter(tasks::NEXT)),
        Progress::Cancelled => {
            if let Some(task) = task(pass) {
                tasks::delete(pass, &task).await?;
            }
            Err(again())
        }
    }
}
