//! Lets a node read the first bytes of an image, by a task.
//!
//! ```text
//! none ─ a node with a living agent ─► task ─ Success ─► recorded, task deleted
//!   ▲                                   └─── Error ────► recorded; after a while the next node ─┐
//!   └────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: one task for each source of the image; a source that was answered is not requested
//! again.
//! Failure: without a node that can do it the image stays unknown, which keeps no machine from
//! using it.

use std::sync::Arc;
use std::time::Duration;

use crds::{InspectedImage, TaskKind, TaskState, VirtualMachineTask};
use kube::ResourceExt;

use super::name::Named;
use super::object::Object;
use super::task::{self, Created};
use super::update::Updates;
use crate::context::Context;
use crate::flow::Outcome;
use crate::reconcile::node_tasks;

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the status contains about this source.
    OnRecord,
    /// A node has read it.
    Found(InspectedImage),
    /// A node could not; when it is tried again.
    Failed { message: String, again: Duration },
    /// A node is at it.
    Waiting { node: String },
    /// No node can do it.
    NoNode,
    /// Only kubelet has the credentials for it.
    Private,
    /// It is in a claim, which holds a disk of at most this size in bytes, where that is known.
    Claim(Option<i128>),
    /// Why its claim cannot be used.
    NoClaim(String),
    /// Its source has no name in pods.
    NotSupported(String),
    /// It follows a tag or a file that no node has checked yet, and why.
    NoVersion(String),
    /// Its server has another version than machines are to use, and no node has that.
    VersionGone(String),
    /// The same, but nodes may have that: which ones, and what a check has shown of it.
    VersionNotSeen(String, InspectedImage),
}

/// Its state; begins what is next.
pub(super) async fn observe(
    ctx: &Context,
    object: &Object,
    named: &Named,
    updates: &Updates,
) -> Outcome<Answer> {
    let name = task_name(object, named);
    let all = ctx.stores.tasks_of(object.uid()).into_iter();
    let (mut current, others): (Vec<_>, Vec<_>) = all
        .filter(|task| task.spec.kind == TaskKind::InspectImage)
        .filter(|task| !updates.checks(task.spec.image.as_deref()))
        .partition(|task| task.name_any() == name);
    for task in others {
        node_tasks::remove_unchanged(ctx, &task).await?;
    }
    let task = current.pop();
    if object.is_answered() {
        if let Some(task) = task {
            node_tasks::remove_unchanged(ctx, &task).await?;
        }
        return Ok(Answer::OnRecord);
    }
    match task {
        Some(task) => follow(ctx, object, named, &task).await,
        None => begin(ctx, object, named, None).await,
    }
}

async fn follow(
    ctx: &Context,
    object: &Object,
    named: &Named,
    task: &Arc<VirtualMachineTask>,
) -> Outcome<Answer> {
    let status = task.status.clone().unwrap_or_default();
    let node = task.spec.node_name.as_str();
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) if ctx.stores.agents.lives(node) => {
            Ok(Answer::Waiting {
                node: node.to_owned(),
            })
        }
        Some(TaskState::Success) if status.image.is_some() => {
            Ok(Answer::Found(status.image.unwrap_or_default()))
        }
        Some(TaskState::Error) => match task::held(ctx, task) {
            Some(again) => Ok(Answer::Failed {
                message: status.message,
                again,
            }),
            None => again(ctx, object, named, task).await,
        },
        _ => again(ctx, object, named, task).await,
    }
}

/// Another attempt, on another node if there is one.
async fn again(
    ctx: &Context,
    object: &Object,
    named: &Named,
    task: &VirtualMachineTask,
) -> Outcome<Answer> {
    if next_node(ctx, object, Some(&task.spec.node_name)).is_none() {
        return Ok(Answer::NoNode);
    }
    node_tasks::remove_unchanged(ctx, task).await?;
    begin(ctx, object, named, Some(&task.spec.node_name)).await
}

async fn begin(
    ctx: &Context,
    object: &Object,
    named: &Named,
    last: Option<&str>,
) -> Outcome<Answer> {
    let Some(node) = next_node(ctx, object, last) else {
        return Ok(Answer::NoNode);
    };
    let name = task_name(object, named);
    let what = (TaskKind::InspectImage, name.as_str());
    match task::create(ctx, object, named, &node, what).await? {
        Created::Yes => Ok(Answer::Waiting { node }),
        Created::No => Ok(Answer::NoNode),
    }
}

/// One of the nodes that can do it, not always the same one; after `last` another one, if there is
/// one.
fn next_node(ctx: &Context, object: &Object, last: Option<&str>) -> Option<String> {
    let kind = format!("{:?}", TaskKind::InspectImage);
    let able = ctx.stores.agents.able(&kind);
    if let Some(after) = last {
        let later = able.iter().find(|node| node.as_str() > after);
        return later.or(able.first()).cloned();
    }
    let sum: usize = object.uid().bytes().map(usize::from).sum();
    able.get(sum.checked_rem(able.len())?).cloned()
}

fn task_name(object: &Object, named: &Named) -> String {
    let seed = object.seed(&named.name);
    node_tasks::name(&object.key().name, TaskKind::InspectImage, &seed)
}
