//! The node of a disk that is to be made: where the placeholder is bound, until it is on record; and when it is
//! given up for another one.
//!
//! Invariant: a node is given up only while nothing of the machine is there: no task was made, or the node
//! reported that its task failed.
//! Failure: what the API server reports.

use std::time::Duration;

use crds::{TaskKind, TaskState, VirtualMachineTask};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podspec::is_uploaded_image;

use super::placeholder;
use crate::flow::Outcome;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::act::{effects, provision, tasks};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::{pods, root_disk, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{Prerequisites, cache};

/// Seconds that a node has for the image of a placeholder, from the placeholder's creation, if it cannot
/// be pulled.
const PULL: i64 = 300;
/// Seconds for which a node may fail in ways that may pass, such as a lack of space.
const LASTING: i64 = 300;
/// Reasons for which a container waits that has no image.
const NO_PULL: [&str; 4] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];

/// The node on record, or else that of the placeholder; `None` while there is none.
pub(super) async fn pin(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    pod: Option<&Pod>,
) -> Outcome<Option<String>> {
    let recorded = pass.node_name();
    let is_recorded = recorded.is_some();
    let bound = || pod.and_then(pods::node).map(str::to_owned);
    let Some(node) = recorded.or_else(bound) else {
        match pod {
            None => placeholder::ensure(pass, prerequisites, None).await?,
            // Its end wakes the machine.
            Some(pod) if pods::is_deleting(pod) => {}
            Some(pod) => placeholder::waits_for_node(pass, pod).await?,
        }
        return Ok(None);
    };
    let task = provision::task(pass);
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
    if is_there
        && (task.is_some() || !is_unfit(pass, &node, pod, prerequisites) || is_begun(pass).await?)
    {
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
pub(super) async fn give_up(pass: &mut Pass<'_>, node: &str, pod: Option<&Pod>) -> Outcome<()> {
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
fn is_unfit(
    pass: &mut Pass<'_>,
    node: &str,
    pod: Option<&Pod>,
    prerequisites: &Prerequisites,
) -> bool {
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
    if is_elsewhere(pass, node, prerequisites) {
        return true;
    }
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map_or(0, |at| pass.seconds() - at.0.as_second());
    let left = u64::try_from(PULL - age).unwrap_or_default();
    if left > 0 {
        pass.requeue_within(Duration::from_secs(left));
    }
    left == 0
}

/// Whether the image was uploaded to other nodes, one of which is available. The machine may not be allowed
/// there: it leaves a node for this reason once, until it avoids that node no more.
fn is_elsewhere(pass: &Pass<'_>, node: &str, prerequisites: &Prerequisites) -> bool {
    let image = &prerequisites.image;
    let avoided = pass.ctx.shared.avoided.nodes_for(pass.key, pass.seconds());
    let may_leave = is_uploaded_image(&image.name) && !avoided.iter().any(|other| other == node);
    may_leave
        && cache::holders(pass, image)
            .iter()
            .any(|other| other != node)
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

/// Whether the node has failed for long, and another one might not. Called once for each attempt.
pub(super) fn is_futile(pass: &Pass<'_>, node: &str) -> bool {
    let avoided = &pass.ctx.shared.avoided;
    let since = avoided.failed(pass.key, node, pass.seconds());
    since >= LASTING && has_other(pass, node)
}

/// Whether a node is left for the scheduler to choose, as far as the nodes themselves tell.
fn has_other(pass: &Pass<'_>, node: &str) -> bool {
    let stores = &pass.ctx.stores;
    let avoided = pass.ctx.shared.avoided.nodes_for(pass.key, pass.seconds());
    stores.nodes.state().iter().any(|other| {
        let name = other.name_any();
        let spec = other.spec.as_ref();
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        let is_able = view::reports(stores, &name) && stores.agents.lives(&name);
        name != node && is_able && !is_cordoned && !avoided.contains(&name)
    })
}
