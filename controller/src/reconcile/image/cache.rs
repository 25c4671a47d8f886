//! The image cache of an image: which nodes need its files, and which have them.
//!
//! ```text
//! placeholder bound, pre-pull ─► location ─► task ─ Success ─► Ready ─ unused for a day ─► dropped
//!                                   ▲          └─── Error ────► Failed; after a while ─┐
//!                                   └─────────────────────────────────────────────────┴─ not on the node any more
//! ```
//!
//! Invariant: one object for each image, in the controller's namespace; its name follows from the
//! image. Locations that are desired are written before a task exists for them. A node that has the
//! files gets no task.
//! Failure: what a node reports of a failed pull is in `Ready` of its location, and the pull is
//! repeated after a while as long as a machine waits for it. A cache without its image is deleted.

mod location;
mod report;
#[cfg(test)]
mod tests;
mod wanted;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::{
    TaskKind, VirtualMachineImageCache, VirtualMachineImageStatus, VirtualMachineTask, conditions,
};
use kube::ResourceExt;

pub(crate) use self::location::STEP;
use self::location::{Effect, Facts, Verdict};
use self::wanted::Want;
use super::name::Named;
use super::nodes::{self, Holders};
use super::object::{CLUSTER, LOCAL, Object};
use super::task;
use crate::context::{Context, Key, Stores};
use crate::flow::Outcome;
use crate::reconcile::node_tasks;

/// Longest part of an image's name in the name of its cache.
const LONGEST_NAME: usize = 200;

/// What is known of an image when its cache is checked.
pub(super) struct Subject<'a> {
    pub(super) object: &'a Object,
    pub(super) named: &'a Named,
    pub(super) holders: &'a Holders,
    /// The status that this pass has recorded.
    pub(super) status: &'a VirtualMachineImageStatus,
}

/// Name of the cache of an image.
pub(crate) fn name(kind: &str, key: &Key) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{kind}/{key}").as_bytes());
    let hash: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    let end = key.name.floor_char_boundary(LONGEST_NAME);
    // A part of a name does not begin with a hyphen.
    format!("{}-{hash}", key.name[..end].trim_end_matches('.'))
}

/// The cache of an image.
pub(crate) fn find(ctx: &Context, object: &Object) -> Option<Arc<VirtualMachineImageCache>> {
    by_name(ctx, name(object.kind(), &object.key()))
}

fn by_name(ctx: &Context, name: String) -> Option<Arc<VirtualMachineImageCache>> {
    let key = Key::new(&ctx.config.namespace, name);
    ctx.stores.image_caches.get(&key.reference())
}

/// The image that a cache is for.
pub(crate) fn image_of(cache: &VirtualMachineImageCache) -> Option<Key> {
    let image = cache.spec.image.as_ref()?;
    let namespace = image.namespace.clone().unwrap_or_default();
    Some(Key::new(namespace, &image.name))
}

/// Whether a cache is of the present source of this image.
pub(crate) fn is_of(cache: &VirtualMachineImageCache, object: &Object, name: &str) -> bool {
    let image = cache.spec.image.as_ref();
    cache.spec.provider_id == name && image.is_some_and(|image| image.uid == object.uid())
}

/// The nodes that have the files, in alphabetical order.
pub(crate) fn nodes_with(cache: &VirtualMachineImageCache) -> impl Iterator<Item = &str> {
    let all = cache.status.iter().flat_map(|status| &status.locations);
    let ready = all.filter(|location| conditions::is_true(&location.conditions, conditions::READY));
    ready.map(|location| location.node.as_str())
}

/// Whether a node has failed to pull the files.
pub(crate) fn has_failed(cache: &VirtualMachineImageCache) -> bool {
    let mut all = cache.status.iter().flat_map(|status| &status.locations);
    all.any(|location| {
        let ready = conditions::find(&location.conditions, conditions::READY);
        ready.is_some_and(|ready| ready.reason == location::FAILED)
    })
}

/// The images that have a location on the node.
pub(crate) fn images_on(stores: &Stores, node: &str) -> BTreeSet<Key> {
    let is_on = |cache: &Arc<VirtualMachineImageCache>| {
        let mut all = cache.spec.locations.iter();
        all.any(|location| location.node == node)
    };
    let caches = stores.image_caches.state().into_iter().filter(is_on);
    caches.filter_map(|cache| image_of(&cache)).collect()
}

/// Deletes the cache of an image that does not exist, or that no node pulls by itself.
pub(super) async fn remove(ctx: &Context, key: &Key) -> Outcome<()> {
    let kind = match key.namespace.as_str() {
        "" => CLUSTER,
        _ => LOCAL,
    };
    match by_name(ctx, name(kind, key)) {
        Some(cache) => write::delete(ctx, &cache).await,
        None => Ok(()),
    }
}

/// Its state; begins what is next. When the image is to be checked again.
pub(super) async fn observe(ctx: &Context, subject: &Subject<'_>) -> Outcome<Option<Duration>> {
    let cache = find(ctx, subject.object);
    let cache = match cache {
        Some(cache) if !is_of(&cache, subject.object, &subject.named.name) => {
            // Its source is another one, or the image was made again: the event of the deletion
            // causes the next pass.
            write::delete(ctx, &cache).await?;
            return Ok(None);
        }
        Some(cache) if cache.metadata.deletion_timestamp.is_some() => return Ok(None),
        cache => cache,
    };
    let wants = wanted::gather(ctx, subject);
    let uid = cache.as_ref().and_then(|cache| cache.uid());
    let (own, outdated) = own_tasks(ctx, subject, uid.as_deref());
    let verdicts = judge(ctx, subject, cache.as_deref(), (&wants, &own));
    let kept = bounded(&verdicts);
    let again = verdicts.iter().filter_map(|verdict| verdict.again).min();
    let again = again.map(Duration::from_secs);
    let Some(cache) = cache else {
        if !kept.is_empty() {
            write::create(ctx, subject, &kept).await?;
        }
        return Ok(again);
    };
    write::spec(ctx, &cache, subject, &kept).await?;
    for task in outdated {
        node_tasks::remove(ctx, &task).await?;
    }
    let is_kept: BTreeSet<_> = kept.iter().map(|verdict| verdict.node.as_str()).collect();
    for (node, task) in &own {
        if !is_kept.contains(node.as_str()) {
            node_tasks::remove(ctx, task).await?;
        }
    }
    let draft = report::draft(&cache, subject, &kept, &(ctx.clock)());
    write::status(ctx, &cache, draft).await?;
    for verdict in kept {
        act(ctx, subject, &cache, (verdict, own.get(&verdict.node))).await?;
    }
    Ok(again)
}

/// The tasks of the cache for the present source, by node; and all others.
fn own_tasks(
    ctx: &Context,
    subject: &Subject<'_>,
    uid: Option<&str>,
) -> (
    BTreeMap<String, Arc<VirtualMachineTask>>,
    Vec<Arc<VirtualMachineTask>>,
) {
    let all = uid.map(|uid| ctx.stores.tasks_of(uid)).unwrap_or_default();
    let mut own = BTreeMap::new();
    let mut outdated = Vec::new();
    for task in all {
        let node = task.spec.node_name.clone();
        if task.name_any() == task_name(subject, &node) {
            own.insert(node, task);
        } else {
            outdated.push(task);
        }
    }
    (own, outdated)
}

/// What is found on each node that may need the files.
fn judge(
    ctx: &Context,
    subject: &Subject<'_>,
    cache: Option<&VirtualMachineImageCache>,
    (wants, own): (
        &BTreeMap<String, Want>,
        &BTreeMap<String, Arc<VirtualMachineTask>>,
    ),
) -> Vec<Verdict> {
    let status = cache.and_then(|cache| cache.status.as_ref());
    let known = status.into_iter().flat_map(|status| &status.locations);
    let known: BTreeMap<_, _> = known.map(|at| (at.node.as_str(), at)).collect();
    let pre_pulls = ctx.stores.tasks_of(subject.object.uid()).into_iter();
    let is_of_image = |task: &Arc<VirtualMachineTask>| {
        let image = task.spec.image.as_ref();
        task.spec.kind == TaskKind::PullImage && image == Some(&subject.named.name)
    };
    let pre_pulls = pre_pulls.filter(is_of_image);
    let pre_pulls: BTreeMap<_, _> = pre_pulls
        .map(|task| (task.spec.node_name.clone(), task))
        .collect();
    let able = ctx
        .stores
        .agents
        .able(&format!("{:?}", TaskKind::PullImage));
    let pulled = subject
        .status
        .pre_pull
        .iter()
        .flat_map(|pulls| &pulls.nodes);
    let pulled: BTreeSet<_> = pulled.map(String::as_str).collect();
    let mut all: BTreeSet<&str> = known.keys().copied().collect();
    all.extend(wants.keys().map(String::as_str));
    let now = (ctx.clock)();
    let mut verdicts = Vec::new();
    for node in all {
        let reference = Key::new("", node).reference();
        let Some(object) = ctx.stores.nodes.get(&reference) else {
            continue;
        };
        let facts = Facts {
            node,
            old: known.get(node).copied(),
            want: wants.get(node),
            task: own.get(node).map(|task| &**task),
            pre_pull: pre_pulls.get(node).map(|task| &**task),
            is_listed: subject.holders.nodes.contains(node),
            lists_all: !nodes::is_truncated(&object),
            was_pre_pulled: pulled.contains(node),
            lives: ctx.stores.agents.lives(node),
            is_able: able.iter().any(|able| able == node),
            is_private: subject.object.needs_credentials(),
            held: own.get(node).and_then(|task| task::held(ctx, task)),
            now: now.0.as_second(),
        };
        verdicts.extend(location::judge(&facts));
    }
    verdicts
}

/// At most as many as an object holds: those that a machine or a pre-pull needs, then those that
/// were needed last.
fn bounded(verdicts: &[Verdict]) -> Vec<&Verdict> {
    let mut kept: Vec<_> = verdicts.iter().filter(|one| !one.is_pending).collect();
    let most = crds::VirtualMachineImageCacheSpec::MOST_LOCATIONS;
    if kept.len() > most {
        let order = |verdict: &&Verdict| {
            let since = verdict
                .unused_since
                .as_ref()
                .map(|since| -since.0.as_second());
            (verdict.rank, since.unwrap_or(i64::MIN))
        };
        kept.sort_by_key(order);
        kept.truncate(most);
        kept.sort_by(|a, b| a.node.cmp(&b.node));
    }
    kept
}

/// Creates and deletes the task of a location. The status with what it is for is written before.
async fn act(
    ctx: &Context,
    subject: &Subject<'_>,
    cache: &VirtualMachineImageCache,
    (verdict, task): (&Verdict, Option<&Arc<VirtualMachineTask>>),
) -> Outcome<()> {
    if verdict.effect != Effect::None
        && let Some(task) = task
    {
        node_tasks::remove_unchanged(ctx, task).await?;
    }
    if verdict.effect == Effect::Pull {
        let name = task_name(subject, &verdict.node);
        let image = (subject.object, subject.named);
        let task = (verdict.node.as_str(), name.as_str());
        // A namespace that is being deleted takes none, and the cache goes with it.
        task::create_for_cache(ctx, image, cache, task).await?;
    }
    Ok(())
}

fn task_name(subject: &Subject<'_>, node: &str) -> String {
    let object = subject.object;
    let seed = format!("{}/{node}", object.seed(&subject.named.name));
    let cache = name(object.kind(), &object.key());
    node_tasks::name(&cache, TaskKind::PullImage, &seed)
}
