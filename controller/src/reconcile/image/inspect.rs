//! Lets a node read the first bytes of an image, by a task.
//!
//! ```text
//! none ─ a node with a living agent ─► task ─ Success ─► recorded, task deleted
//!   ▲                                   └─── Error ────► recorded; after a while the next node ─┐
//!   └────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: one task for each generation of the image; a generation that was answered is not
//! requested again.
//! Failure: without a node that can do it the image stays unknown, which keeps no machine from
//! using it.

use std::sync::Arc;
use std::time::Duration;

use crds::{InspectedImage, TaskKind, TaskState, VirtualMachineTask, VirtualMachineTaskSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, ResourceExt};

use super::name::Named;
use super::object::Object;
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{is_conflict, is_ending};
use crate::reconcile::node_tasks;

/// Seconds before a failure that may pass is tried again.
const TRANSIENT_HOLD: i64 = 60;
/// Seconds before any other failure is tried again.
const HOLD: i64 = 300;

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the status contains about this generation.
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
    /// Its source has no name in pods.
    NotSupported(String),
}

/// Its state; begins what is next.
pub(crate) async fn observe(ctx: &Context, object: &Object, named: &Named) -> Outcome<Answer> {
    let name = task_name(object);
    let all = ctx.stores.tasks_of(object.uid());
    let (mut current, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|task| task.name_any() == name);
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
        Some(TaskState::Error) => {
            let hold = match status.transient {
                true => TRANSIENT_HOLD,
                false => HOLD,
            };
            let now = (ctx.clock)().0.as_second();
            let left = hold - node_tasks::age(task, now).unwrap_or(hold);
            match u64::try_from(left) {
                Ok(left) if left > 0 => Ok(Answer::Failed {
                    message: status.message,
                    again: Duration::from_secs(left),
                }),
                _ => again(ctx, object, named, task).await,
            }
        }
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
    let task = task(ctx, object, named, &node);
    let namespace = task.namespace().unwrap_or_default();
    let api = Api::<VirtualMachineTask>::namespaced(ctx.client.clone(), &namespace);
    match api.create(&PostParams::default(), &task).await {
        Ok(_) => Ok(Answer::Waiting { node }),
        // The store lags behind, or the last one is still being deleted: its event wakes the image.
        Err(error) if is_conflict(&error) => Ok(Answer::Waiting { node }),
        Err(error) if is_ending(&error) => Ok(Answer::NoNode),
        Err(source) => {
            let error = anyhow::Error::new(source);
            let text = format!("create task {}", task.name_any());
            Err(PassError::Failed(error.context(text)))
        }
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

fn task(ctx: &Context, object: &Object, named: &Named, node: &str) -> VirtualMachineTask {
    let Key { namespace, name } = object.key();
    let spec = VirtualMachineTaskSpec {
        node_name: node.to_owned(),
        vm_name: name,
        vm_namespace: None,
        vm_uid: object.uid().to_owned(),
        kind: TaskKind::InspectImage,
        cancel: false,
        image: Some(named.name.clone()),
        image_url: named.url.clone(),
        size_bytes: None,
        linked: false,
        timeout_seconds: None,
        discard: false,
        instance_uid: None,
    };
    let mut task = VirtualMachineTask::new(&task_name(object), spec);
    // Those of an image of the cluster are in the controller's own namespace.
    let place = Some(namespace).filter(|namespace| !namespace.is_empty());
    task.metadata = ObjectMeta {
        name: task.metadata.name.take(),
        namespace: Some(place.unwrap_or_else(|| ctx.config.namespace.clone())),
        owner_references: Some(vec![object.owner()]),
        ..ObjectMeta::default()
    };
    task
}

fn task_name(object: &Object) -> String {
    let seed = format!("{}/{}", object.uid(), object.generation());
    node_tasks::name(&object.key().name, TaskKind::InspectImage, &seed)
}
