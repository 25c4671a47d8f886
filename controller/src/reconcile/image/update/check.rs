//! Lets a node find out which version a tag means, or a file of checksums has, by a task.
//!
//! Invariant: one task for each check; its name follows from the recorded time of the check before
//! and from the request, so that neither a restart nor a late answer makes two checks of one. Only nodes
//! with the feature `ImageUpdates` get one, and one with a file of checksums only those with
//! `ImageChecksumUpdates`.
//! Failure: what the node reports; a node that goes away meanwhile is replaced by another.

use std::sync::Arc;

use crds::{ImageUpdateStatus, InspectedImage, TaskKind, TaskState, VirtualMachineTask, names};
use kube::ResourceExt;

use super::schedule::Due;
use crate::context::Context;
use crate::flow::Outcome;
use crate::reconcile::image::name::Named;
use crate::reconcile::image::object::Object;
use crate::reconcile::image::task::{self, Created};
use crate::reconcile::node_tasks;

/// What a check has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Check {
    /// None is due.
    Idle,
    /// A node is at it.
    Waiting { node: String },
    /// No node can do it.
    NoNode,
    /// The version that the source has.
    Found {
        digest: String,
        image: InspectedImage,
    },
    /// Why it failed.
    Failed(String),
}

/// Its state; begins one that is due.
pub(super) async fn observe(
    ctx: &Context,
    object: &Object,
    tag: &Named,
    known: &ImageUpdateStatus,
    due: Due,
) -> Outcome<Check> {
    let name = task_name(object, tag, known);
    let all = ctx.stores.tasks_of(object.uid()).into_iter();
    let is_check = |task: &Arc<VirtualMachineTask>| {
        let is_of_tag = task.spec.image.as_ref() == Some(&tag.name);
        task.spec.kind == TaskKind::InspectImage && is_of_tag
    };
    let mut current = None;
    for task in all.filter(is_check) {
        if task.name_any() == name && due == Due::Now {
            current = Some(task);
        } else {
            node_tasks::remove(ctx, &task).await?;
        }
    }
    match (current, due) {
        (Some(task), _) => follow(ctx, object, (tag, &name), known, &task).await,
        (None, Due::Now) => begin(ctx, object, (tag, &name), known, None).await,
        (None, Due::At(_) | Due::OnRequest) => Ok(Check::Idle),
    }
}

async fn follow(
    ctx: &Context,
    object: &Object,
    named: (&Named, &str),
    known: &ImageUpdateStatus,
    task: &VirtualMachineTask,
) -> Outcome<Check> {
    let status = task.status.clone().unwrap_or_default();
    let node = task.spec.node_name.as_str();
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) => {
            if ctx.stores.agents.lives(node) {
                let node = node.to_owned();
                return Ok(Check::Waiting { node });
            }
            if next_node(ctx, object, (named.0, known), Some(node)).is_none() {
                return Ok(Check::NoNode);
            }
            node_tasks::remove_unchanged(ctx, task).await?;
            begin(ctx, object, named, known, Some(node)).await
        }
        Some(TaskState::Success) => Ok(found(node, named.0, status.image)),
        Some(TaskState::Error | TaskState::Cancelled) => {
            Ok(Check::Failed(format!("node {node}: {}", status.message)))
        }
    }
}

fn found(node: &str, tag: &Named, image: Option<InspectedImage>) -> Check {
    let digest = image.as_ref().and_then(|image| image.digest.clone());
    match (digest, image) {
        (Some(digest), Some(image)) => Check::Found { digest, image },
        _ if tag.checksum_url.is_some() => {
            Check::Failed(format!("node {node} reports no checksum"))
        }
        _ => Check::Failed(format!(
            "node {node} reports no digest: by its images.translations, or an ImageMapping, the image is not in a \
             registry"
        )),
    }
}

async fn begin(
    ctx: &Context,
    object: &Object,
    (tag, name): (&Named, &str),
    known: &ImageUpdateStatus,
    last: Option<&str>,
) -> Outcome<Check> {
    let Some(node) = next_node(ctx, object, (tag, known), last) else {
        return Ok(Check::NoNode);
    };
    let what = (TaskKind::InspectImage, name);
    match task::create(ctx, object, tag, &node, what).await? {
        Created::Yes => Ok(Check::Waiting { node }),
        Created::No => Ok(Check::NoNode),
    }
}

/// One of the nodes that can do it, not the same one for all images; another one after each failure.
fn next_node(
    ctx: &Context,
    object: &Object,
    (tag, known): (&Named, &ImageUpdateStatus),
    last: Option<&str>,
) -> Option<String> {
    let agents = &ctx.stores.agents;
    let mut able = agents.able(&format!("{:?}", TaskKind::InspectImage));
    let feature = match tag.checksum_url {
        Some(_) => names::IMAGE_CHECKSUM_UPDATES,
        None => names::IMAGE_UPDATES,
    };
    able.retain(|node| agents.has(node, feature) && Some(node.as_str()) != last);
    let sum: usize = object.uid().bytes().map(usize::from).sum();
    let failed = usize::try_from(known.failed_checks).unwrap_or_default();
    let index = sum.wrapping_add(failed).checked_rem(able.len())?;
    Some(able.swap_remove(index))
}

fn task_name(object: &Object, tag: &Named, known: &ImageUpdateStatus) -> String {
    let last = known.last_check_time.as_ref();
    let last = last.map_or(0, |last| last.0.as_second());
    let request = object
        .update()
        .and_then(|update| update.check_request.as_deref());
    let request = request.unwrap_or_default();
    let failed = known.failed_checks;
    let mut seed = format!("{}/check/{last}/{failed}/{request}", object.seed(&tag.name));
    if let Some(list) = &tag.checksum_url {
        // Nothing waits for the end of a check of another file.
        seed = format!("{seed}/{list}");
    }
    node_tasks::name(&object.key().name, TaskKind::InspectImage, &seed)
}
