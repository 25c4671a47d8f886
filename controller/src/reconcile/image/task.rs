//! Tasks of nodes for an image: their making, and when one that failed is repeated.
//!
//! Invariant: tasks of an image of the cluster are in the controller's own namespace; the image owns
//! them, so that they go with it. Those of its cache are there, too, and are the cache's.
//! Failure: what the API server reports of the creation.

use std::time::Duration;

use crds::{TaskKind, VirtualMachineImageCache, VirtualMachineTask, VirtualMachineTaskSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource, ResourceExt};

use super::name::Named;
use super::object::Object;
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{is_conflict, is_ending};
use crate::reconcile::node_tasks;

/// Seconds before a failure that may pass is tried again.
const TRANSIENT_HOLD: i64 = 60;
/// Seconds before any other failure is tried again.
pub(super) const HOLD: i64 = 300;

/// What the creation of a task led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Created {
    /// It is there, or one of its name, which the store does not show yet or which is being deleted:
    /// its event wakes the image.
    Yes,
    /// Its namespace is being deleted.
    No,
}

/// Creates a task of that kind and name on `node`.
pub(super) async fn create(
    ctx: &Context,
    object: &Object,
    named: &Named,
    node: &str,
    (kind, name): (TaskKind, &str),
) -> Outcome<Created> {
    send(ctx, draft(ctx, object, named, node, (kind, name))).await
}

/// Creates the task by which `node` pulls the files for the cache of an image. The cache owns it.
pub(super) async fn create_for_cache(
    ctx: &Context,
    (object, named): (&Object, &Named),
    cache: &VirtualMachineImageCache,
    (node, name): (&str, &str),
) -> Outcome<Created> {
    let mut task = draft(ctx, object, named, node, (TaskKind::PullImage, name));
    let namespace = object.key().namespace;
    let owner = cache.controller_owner_ref(&());
    task.metadata.namespace = Some(ctx.config.namespace.clone());
    task.metadata.owner_references = owner.map(|owner| {
        // Blocking the owner's deletion needs a right of its own, and nothing needs it.
        vec![OwnerReference {
            block_owner_deletion: None,
            ..owner
        }]
    });
    task.spec.vm_name = cache.name_any();
    task.spec.vm_uid = cache.uid().unwrap_or_default();
    // The Secret of the image's server is there.
    task.spec.vm_namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    send(ctx, task).await
}

async fn send(ctx: &Context, task: VirtualMachineTask) -> Outcome<Created> {
    let namespace = task.namespace().unwrap_or_default();
    let api = Api::<VirtualMachineTask>::namespaced(ctx.client.clone(), &namespace);
    match api.create(&PostParams::default(), &task).await {
        Ok(_) => Ok(Created::Yes),
        Err(error) if is_conflict(&error) => Ok(Created::Yes),
        Err(error) if is_ending(&error) => Ok(Created::No),
        Err(source) => {
            let error = anyhow::Error::new(source);
            let text = format!("create task {}", task.name_any());
            Err(PassError::Failed(error.context(text)))
        }
    }
}

/// How long a task that failed stays before another one replaces it; none once that time has passed.
pub(super) fn held(ctx: &Context, task: &VirtualMachineTask) -> Option<Duration> {
    held_for(ctx, task, HOLD)
}

/// The same, with the seconds after a failure that does not pass by itself.
pub(super) fn held_for(ctx: &Context, task: &VirtualMachineTask, lasting: i64) -> Option<Duration> {
    let is_transient = task.status.as_ref().is_some_and(|s| s.transient);
    let hold = if is_transient {
        TRANSIENT_HOLD
    } else {
        lasting
    };
    let now = (ctx.clock)().0.as_second();
    let left = hold - node_tasks::age(task, now).unwrap_or(hold);
    let left = u64::try_from(left).ok().filter(|left| *left > 0);
    left.map(Duration::from_secs)
}

fn draft(
    ctx: &Context,
    object: &Object,
    named: &Named,
    node: &str,
    (kind, task): (TaskKind, &str),
) -> VirtualMachineTask {
    let Key { namespace, name } = object.key();
    let spec = VirtualMachineTaskSpec {
        image: Some(named.name.clone()),
        image_url: named.url.clone(),
        image_tls_secret: object.tls_secret().map(str::to_owned),
        image_checksum_url: named.checksum_url.clone(),
        ..VirtualMachineTaskSpec::new(node, kind, &name, object.uid())
    };
    let mut task = VirtualMachineTask::new(task, spec);
    let place = Some(namespace).filter(|namespace| !namespace.is_empty());
    task.metadata = ObjectMeta {
        name: task.metadata.name.take(),
        namespace: Some(place.unwrap_or_else(|| ctx.config.namespace.clone())),
        owner_references: Some(vec![object.owner()]),
        labels: Some(node_tasks::labels()),
        ..ObjectMeta::default()
    };
    task
}
