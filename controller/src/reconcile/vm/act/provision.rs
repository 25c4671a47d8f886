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

mod edits;
mod node;
mod placeholder;

use std::sync::Arc;

use crds::conditions::{self, Status};
use crds::{TaskKind, VirtualMachine, VirtualMachineTask};
use k8s_openapi::api::core::v1::Pod;

pub(super) use self::edits::follow;
pub(super) use self::placeholder::{GRACE, create as create_placeholder, remove_failed};
use super::tasks::{self, Progress};
use super::{clone, promotion, slot};
use crate::flow::{Flow, Outcome};
use crate::reconcile::answers::again;
use crate::reconcile::image::used;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::mode::Mode;
use crate::reconcile::vm::observe::{find, pods, root_disk, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Prerequisites};
use crate::reconcile::vm::write::{patch, status};
use crate::shared::slots::Slot;

/// The task that makes, or made, the root disk. What the machine is made of decides about its kind for good.
pub(crate) fn task(pass: &Pass<'_>) -> Option<Arc<VirtualMachineTask>> {
    let kind = if clone::is_wanted(pass) {
        clone::kind(pass)
    } else {
        TaskKind::Provision
    };
    let name = node_tasks::name(&pass.key.name, kind, &pass.uid());
    tasks::find(pass, &name)
}

/// One step on the way to a disk on a node.
pub(crate) async fn run(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    slot: Option<Slot>,
) -> Outcome {
    let pod = find::placeholder(pass);
    if !edits::follow_edits(pass, prerequisites, pod.as_deref()).await? {
        return Ok(Flow::Continue);
    }
    let Some(node) = node::pin(pass, prerequisites, pod.as_deref()).await? else {
        return Ok(Flow::Continue);
    };
    match pod {
        // The node may have restarted since.
        Some(pod) if pods::runs(&pod) || pods::phase(&pod) == "Succeeded" => {
            make(pass, prerequisites, &node, slot).await
        }
        Some(pod) if pods::phase(&pod) == "Failed" => placeholder::replace_failed(pass, &pod).await,
        // One that was made again may find its node full.
        Some(pod) if pods::node(&pod).is_none() => placeholder::waits_for_node(pass, &pod)
            .await
            .map(|()| Flow::Continue),
        Some(pod) => {
            placeholder::waits_for_image(pass, prerequisites, &pod);
            Ok(Flow::Continue)
        }
        None => {
            placeholder::ensure(pass, prerequisites, Some(&node)).await?;
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

/// A task is made only after that.
pub(crate) fn has_place_and_image(pass: &mut Pass<'_>) {
    pass.condition(conditions::IMAGE_CACHE_READY, Status::True, "", "");
    pass.condition(conditions::PLACEMENT_READY, Status::True, "", "");
}

/// Puts the node on record, on the version of the machine that the task is for. A record that the store
/// shows may be older than the pass that took it back: the API server confirms it before a task is made.
pub(super) async fn record(pass: &mut Pass<'_>, node: &str) -> Outcome<()> {
    let is_recorded = |pass: &Pass<'_>| has_on_record(&pass.base, node);
    if is_recorded(pass) {
        return match task(pass) {
            Some(_) => Ok(()),
            None => confirm(pass, node).await,
        };
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

fn has_on_record(vm: &VirtualMachine, node: &str) -> bool {
    let status = vm.status.as_ref();
    status.and_then(|status| status.node_name.as_deref()) == Some(node)
}

/// Only a machine that is there, and has the node on record, gets a task.
async fn confirm(pass: &Pass<'_>, node: &str) -> Outcome<()> {
    let found = pass.api::<VirtualMachine>().get_opt(&pass.key.name).await;
    let found = found.map_err(|source| {
        let what = format!("virtual machine {}", pass.key);
        Error::Read { what, source }
    })?;
    let is_same = |vm: &VirtualMachine| vm.metadata.uid == pass.base.metadata.uid;
    let is_confirmed = found.is_some_and(|vm| {
        let is_deleted = vm.metadata.deletion_timestamp.is_some();
        is_same(&vm) && !is_deleted && has_on_record(&vm, node)
    });
    is_confirmed.then_some(()).ok_or_else(again)
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
            if !was_transient || node::is_futile(pass, node) {
                let pod = find::placeholder(pass);
                node::give_up(pass, node, pod.as_deref()).await?;
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
