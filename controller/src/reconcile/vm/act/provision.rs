//! Creates the root disk on the node that the scheduler chooses.
//!
//! ```text
//! placeholder ─ bound ─ image pulled, runs ─► slot of the node ─► status.nodeName ─► Provision task ─► Created
//! ```
//!
//! Invariant: the node is recorded before a task exists there, and no sooner: from then on the API server
//! refuses edits of what the disk is made of. Until then the node is the one that the placeholder is bound
//! to. It changes only while no disk can exist: no task was made, or the node reported that its task failed,
//! which leaves nothing there.
//! Until the disk is made the machine follows its image: what was begun for another source of it ends. Until
//! a node is on record the placeholder follows everything that the scheduler goes by.
//! Failure: a placeholder that failed is made again after a while, on the same node once one is on
//! record. A node that cannot make the disk, get the image or take the pod is given up for another one,
//! and avoided for a while; where its failures may pass, after some minutes, and only if there is another.

use std::sync::Arc;
use std::time::Duration;

use crds::conditions::{self, Status};
use crds::{TaskKind, TaskState, VirtualMachineTask, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::pod::{self, Plan};
use super::tasks::{self, Progress};
use super::{clone, effects, identity, promotion, slot};
use crate::flow::{Flow, Outcome};
use crate::reconcile::answers::again;
use crate::reconcile::group::placement::Grouping;
use crate::reconcile::image::used;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::mode::Mode;
use crate::reconcile::vm::observe::{find, group, pods, root_disk, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Prerequisites, cache};
use crate::reconcile::vm::write::{patch, status};
use crate::shared::slots::Slot;

/// Seconds between two placeholders: a node that refuses every pod does so at once.
const PERIOD: i64 = 30;
/// Seconds that a node has for the image of a placeholder, from the placeholder's creation, if it cannot
/// be pulled.
const PULL: i64 = 300;
/// Seconds for which a node may fail in ways that may pass, such as a lack of space.
const LASTING: i64 = 300;
/// Seconds, from its creation, in which a placeholder runs on a node that has the image.
const AT_ONCE: i64 = 3;
/// Reasons for which a container waits that has no image.
const NO_PULL: [&str; 4] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];
/// Seconds that kubelet has to remove a placeholder before its object is deleted.
pub(super) const GRACE: u32 = 1;

/// The task that makes, or made, the root disk. What the machine is made of decides about its kind for good.
pub(crate) fn task(pass: &Pass<'_>) -> Option<Arc<VirtualMachineTask>> {
    let kind = match clone::is_wanted(pass) {
        true => TaskKind::CloneDisk,
        false => TaskKind::Provision,
    };
    let name = node_tasks::name(&pass.key.name, kind, &pass.uid());
    tasks::find(pass, &name)
}

/// One step.
pub(crate) async fn run(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    slot: Option<Slot>,
) -> Outcome {
    let pod = find::placeholder(pass);
    if !follow_edits(pass, prerequisites, pod.as_deref()).await? {
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
            waits_for_image(pass, prerequisites, &pod);
            Ok(Flow::Continue)
        }
        None => {
            ensure_placeholder(pass, prerequisites, Some(&node)).await?;
            Ok(Flow::Continue)
        }
    }
}

/// The node that makes the disk next: the one on record, or the one that has the image by now.
pub(super) fn next_node(pass: &Pass<'_>) -> Option<String> {
    pass.node_name().or_else(|| {
        let pod = find::placeholder(pass).filter(|pod| has_image(pod))?;
        let node = pods::node(&pod).filter(|node| view::is_ready(pass, node));
        node.map(str::to_owned)
    })
}

/// Whether the placeholder has a node that has not shown yet that it has the image.
pub(super) fn waits_on_node(pass: &Pass<'_>) -> bool {
    find::placeholder(pass).is_some_and(|pod| {
        let is_over = pods::is_deleting(&pod) || pods::is_final(&pod);
        pods::node(&pod).is_some() && !is_over && !pods::runs(&pod)
    })
}

/// The node has pulled the image for the placeholder.
fn has_image(pod: &Pod) -> bool {
    !pods::is_deleting(pod) && (pods::runs(pod) || pods::phase(pod) == "Succeeded")
}

/// What is done for a machine that waits for a slot: nothing is made of its specification yet, so that
/// its placeholder follows it.
pub(super) async fn follow(pass: &mut Pass<'_>) -> Outcome<()> {
    let pod = find::placeholder(pass).filter(|_| pass.node_name().is_none());
    if let Some(pod) = pod {
        let prerequisites = prerequisites::all(pass).await?;
        let stays = follow_edits(pass, &prerequisites, Some(&pod)).await?;
        if stays && has_image(&pod) {
            has_place_and_image(pass);
        }
    }
    Ok(())
}

/// Ends what was begun for an image that was edited, or made again, since, and a placeholder that was made
/// by rules for the scheduler that were edited since. False: the end is waited for.
async fn follow_edits(
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
    let grouping = group::grouping(pass);
    let asked = pod::asked(&pass.vm, prerequisites, grouping.as_ref());
    let is_recorded = pass.node_name().is_some();
    let is_outdated = |pod: &Pod| {
        let made_for = pods::annotation(pod, names::PLACEMENT);
        let has_its_place = is_recorded && pods::node(pod).is_some();
        let is_for_another = made_for.is_some_and(|made_for| made_for != asked);
        !has_its_place && (is_for_another || is_misplaced(pass, grouping.as_ref(), pod))
    };
    match pod.filter(|pod| pods::image(pod) != Some(name) || is_outdated(pod)) {
        Some(pod) => {
            let node = pods::node(pod);
            let is_confirmed = node.is_none_or(|node| view::is_ready(pass, node));
            // Without a kubelet that confirms it, the object would stay.
            let grace = if is_confirmed { GRACE } else { 0 };
            effects::delete(pass, pod, grace).await?;
            Ok(false)
        }
        None => Ok(true),
    }
}

/// Whether the placeholder is where its group does not let the machine be: the machine that was there
/// first has no pod by now, so that the scheduler does not know of it.
fn is_misplaced(pass: &Pass<'_>, grouping: Option<&Grouping>, pod: &Pod) -> bool {
    let node = pods::node(pod).and_then(|node| view::node(pass, node));
    let labels = node.map(|node| node.labels().clone());
    grouping
        .zip(labels)
        .is_some_and(|(grouping, labels)| grouping.forbids(&labels))
}

/// The node on record, or else that of the placeholder; `None` while there is none.
async fn pin(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    pod: Option<&Pod>,
) -> Outcome<Option<String>> {
    let recorded = pass.node_name();
    let is_recorded = recorded.is_some();
    let bound = || pod.and_then(pods::node).map(str::to_owned);
    let Some(node) = recorded.or_else(bound) else {
        match pod {
            None => ensure_placeholder(pass, prerequisites, None).await?,
            // Its end wakes the machine.
            Some(pod) if pods::is_deleting(pod) => {}
            Some(pod) => waits_for_node(pass, pod).await?,
        }
        return Ok(None);
    };
    let task = task(pass);
    let is_open = task.as_ref().is_some_and(|task| !has_failed(task));
    if is_open {
        return Ok(Some(node));
    }
    let is_leaving = !is_recorded && pod.is_some_and(pods::is_deleting);
    if is_leaving && view::is_ready(pass, &node) {
        // The same.
        return Ok(None);
    }
    let is_there = view::node(pass, &node).is_some() && !is_leaving;
    if is_there && (task.is_some() || !is_unfit(pass, &node, pod) || is_begun(pass).await?) {
        return Ok(Some(node));
    }
    // The node left, or is given up, before a disk was complete there.
    if let Some(task) = task {
        tasks::delete(pass, &task).await?;
    }
    give_up(pass, &node, pod).await?;
    Ok(None)
}

/// Forgets the node: nothing of the machine is there.
async fn give_up(pass: &mut Pass<'_>, node: &str, pod: Option<&Pod>) -> Outcome<()> {
    pass.ctx.shared.avoided.add(pass.key, node, pass.seconds());
    pass.status().node_name = None;
    pass.status().zone = None;
    root_disk::forget(pass);
    match pod {
        // Perhaps no kubelet is left to confirm it, and no guest could outlive it.
        Some(pod) => effects::delete(pass, pod, 0).await,
        None => Ok(()),
    }
}

/// Whether the node cannot take the placeholder, or get its image.
fn is_unfit(pass: &mut Pass<'_>, node: &str, pod: Option<&Pod>) -> bool {
    // Nothing binds the machine to a node that does not report, whatever its pods were last.
    if pass.node_name().is_none() && !view::is_ready(pass, node) {
        return true;
    }
    if pod.is_some_and(|pod| pods::runs(pod) || pods::phase(pod) == "Succeeded") {
        return false;
    }
    let spec = view::node(pass, node).and_then(|node| node.spec.clone());
    let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
    // One that is bound already is not affected.
    let is_bound = pod.and_then(pods::node).is_some();
    if !view::is_ready(pass, node) || is_cordoned && !is_bound {
        return true;
    }
    let Some(pod) = pod.filter(|pod| pods::waiting(pod).is_some_and(|(r, _)| NO_PULL.contains(&r)))
    else {
        return false;
    };
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map_or(0, |at| pass.seconds() - at.0.as_second());
    let left = u64::try_from(PULL - age).unwrap_or_default();
    if left > 0 {
        pass.requeue_within(Duration::from_secs(left));
    }
    left == 0
}

/// Whether a task to make the disk exists, which the store may not show yet.
async fn is_begun(pass: &Pass<'_>) -> Outcome<bool> {
    let name = node_tasks::name(&pass.key.name, TaskKind::Provision, &pass.uid());
    let found = pass.api::<VirtualMachineTask>().get_opt(&name).await;
    let found = found.map_err(|source| {
        let what = format!("task {name}");
        Error::Read { what, source }
    })?;
    Ok(found.is_some())
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
    create_placeholder(pass, prerequisites, node).await?;
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

pub(super) async fn create_placeholder(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    node: Option<&str>,
) -> Outcome<()> {
    let (bios, instance) = identity::of(pass);
    let uid = pass.uid();
    let avoid = pass.ctx.shared.avoided.of(pass.key, pass.seconds());
    let mut prefer = cache::nodes(pass, &prerequisites.image);
    prefer.retain(|node| !avoid.contains(node));
    let grouping = group::grouping(pass);
    let plan = Plan {
        vm: &pass.vm,
        uid: &uid,
        owner: pass.owner(),
        prerequisites,
        node,
        avoid: &avoid,
        prefer: &prefer,
        grouping: grouping.as_ref(),
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
    effects::create(pass, &pod).await.map(drop)
}

async fn waits_for_node(pass: &mut Pass<'_>, pod: &Pod) -> Outcome<()> {
    let missing = prerequisites::missing_claims(pass);
    let obstacle = missing.as_deref().or_else(|| pods::unschedulable(pod));
    let text = obstacle.unwrap_or("the scheduler has not chosen a node yet");
    let kind = conditions::PLACEMENT_READY;
    pass.condition(kind, Status::False, "NotReady", text);
    effects::ungate(pass, pod, names::PROVISIONING_GATE).await
}

fn waits_for_image(pass: &mut Pass<'_>, prerequisites: &Prerequisites, pod: &Pod) {
    pass.condition(conditions::PLACEMENT_READY, Status::True, "", "");
    let waiting = pods::waiting(pod);
    // What kubelet reports of every pod before it has pulled the image is no change.
    let waiting = waiting.filter(|(reason, _)| *reason != "ContainerCreating");
    let text = match waiting {
        Some((reason, "")) => reason.to_owned(),
        Some((reason, message)) => format!("{reason}: {message}"),
        None if is_about_to_run(pass, pod) => return,
        None => match cache::awaited(pass, &prerequisites.image) {
            Some(obstacle) => obstacle,
            None => return,
        },
    };
    let kind = conditions::IMAGE_CACHE_READY;
    pass.condition(kind, Status::False, "NotReady", &text);
}

/// Where the node has the image, the pass that records the node follows soon, and writes the status of
/// both.
fn is_about_to_run(pass: &mut Pass<'_>, pod: &Pod) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map_or(AT_ONCE, |at| pass.seconds() - at.0.as_second());
    // Clocks differ.
    let is_new = (0..AT_ONCE).contains(&age);
    if is_new {
        let left = u64::try_from(AT_ONCE - age).unwrap_or_default();
        pass.postpone_status_for(Duration::from_secs(left));
    }
    is_new
}

async fn replace_failed(pass: &mut Pass<'_>, pod: &Pod) -> Outcome {
    let status = pod.status.clone().unwrap_or_default();
    let why = [status.reason, status.message];
    let why: Vec<_> = why.into_iter().flatten().collect();
    let reason = format!("the placeholder failed: {}", why.join(": "));
    pass.condition(conditions::PLACEMENT_READY, Status::False, "Error", &reason);
    remove_failed(pass, pod).await
}

/// Deletes a placeholder that failed, once it is old enough for another one.
pub(super) async fn remove_failed(pass: &mut Pass<'_>, pod: &Pod) -> Outcome {
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

/// Puts the node on record, on the version of the machine that the task is for.
pub(super) async fn record(pass: &mut Pass<'_>, node: &str) -> Outcome<()> {
    let is_recorded = |pass: &Pass<'_>| {
        let status = pass.base.status.as_ref();
        status.and_then(|status| status.node_name.as_deref()) == Some(node)
    };
    if is_recorded(pass) {
        return Ok(());
    }
    pass.status().node_name = Some(node.to_owned());
    status::announce(pass);
    let written = patch::status(pass).await;
    if written.is_err() {
        // No other write of this pass records it: no task follows.
        pass.status().node_name = None;
    }
    written?;
    // It may have been deleted meanwhile.
    let is_deleted = pass.base.metadata.deletion_timestamp.is_some();
    if is_deleted || !is_recorded(pass) {
        return Err(again());
    }
    Ok(())
}

async fn make(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    node: &str,
    slot: Option<Slot>,
) -> Outcome {
    has_place_and_image(pass);
    promotion::forget(pass);
    // The node's own limit counts from here on.
    drop(slot);
    let Some(slot) = slot::take_slot(pass, Some(node)) else {
        return Ok(slot::no_slot(pass));
    };
    let was_recorded = pass
        .base
        .status
        .as_ref()
        .is_some_and(|s| s.node_name.is_some());
    let is_of_another_size = root_disk::record_version(pass, &prerequisites.image);
    record(pass, node).await?;
    if is_of_another_size {
        // An earlier attempt has recorded the node.
        patch::status(pass).await?;
    }
    if let Some(object) = &prerequisites.image.object
        && let Err(error) = used::record(pass.ctx, object).await
    {
        // The image was edited or deleted meanwhile, and no task was made of it.
        if !was_recorded {
            pass.status().node_name = None;
        }
        return Err(error);
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
    let last = task(pass).and_then(|task| task.status.clone());
    let was_transient = last.is_some_and(|status| status.transient);
    match tasks::ensure(pass, spec, &uid).await? {
        Progress::Running => {
            slot.keep();
            pass.postpone_status();
            Ok(slot::is_being_made(pass))
        }
        Progress::Done => Ok(Flow::Continue),
        Progress::Removed => {
            if !was_transient || is_futile(pass, node) {
                let pod = find::placeholder(pass);
                give_up(pass, node, pod.as_deref()).await?;
            }
            Ok(Flow::RequeueAfter(tasks::NEXT))
        }
        Progress::Cancelled => {
            if let Some(task) = task(pass) {
                tasks::delete(pass, &task).await?;
            }
            Err(again())
        }
    }
}

/// Whether the node has failed for long, and another one might not. Called once for each attempt.
fn is_futile(pass: &Pass<'_>, node: &str) -> bool {
    let avoided = &pass.ctx.shared.avoided;
    let since = avoided.failed(pass.key, node, pass.seconds());
    since >= LASTING && has_other(pass, node)
}

/// Whether a node is left for the scheduler to choose, as far as the nodes themselves tell.
fn has_other(pass: &Pass<'_>, node: &str) -> bool {
    let stores = &pass.ctx.stores;
    let avoided = pass.ctx.shared.avoided.of(pass.key, pass.seconds());
    stores.nodes.state().iter().any(|other| {
        let name = other.name_any();
        let spec = other.spec.as_ref();
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        let is_able = view::reports(stores, &name) && stores.agents.lives(&name);
        name != node && is_able && !is_cordoned && !avoided.contains(&name)
    })
}
