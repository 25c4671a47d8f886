//! Lets nodes pull the newest version before new machines use it.
//!
//! Invariant: the nodes are those of `spec.prePull` and those that have a former version; where none of them
//! can pull, one other node does, and where none of them has pulled it after [`LIMIT`], if `spec.prePull` does
//! not name them. A node that is not available is not waited for. A task exists only for
//! a version on record. After [`LIMIT`], by the recorded time of the check that found it, the nodes that have
//! it are enough, but not none. The first version of an image is used at once: there is none that could be
//! used in its place.
//! Failure: a version that no node can pull stays out of use; nodes repeat the pull.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::{
    ImageUpdateStatus, ImageVersion, ImageVersionState, PrePullStatus, TaskKind, TaskState,
};
use k8s_openapi::api::core::v1::Node;

use super::schedule::SKEW;
use super::{LIMIT, Step, versions};
use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::image::nodes::Holders;
use crate::reconcile::image::{cache, name, pre_pull};

/// Seconds after which another node is tried where only one pulls the version.
const TURN: i64 = 600;

/// The pulls of the newest version.
pub(super) struct Pulled {
    /// Name of that version in pods.
    pub(super) name: String,
    pub(super) status: Option<PrePullStatus>,
    pub(super) again: Option<Duration>,
}

/// Their state; begins what is next. None while no version is to be pulled.
pub(super) async fn observe(
    step: &Step<'_>,
    known: &ImageUpdateStatus,
    all: &mut [ImageVersion],
) -> Outcome<Option<Pulled>> {
    let Some((newest, former)) = all.split_first_mut() else {
        return Ok(None);
    };
    if newest.state == ImageVersionState::Ready {
        return Ok(None);
    }
    if !former.iter().any(versions::is_ready) {
        newest.state = ImageVersionState::Ready;
        return Ok(None);
    }
    let recorded = step.object.versions().first();
    if recorded.is_none_or(|recorded| recorded.digest != newest.digest) {
        // The event of the write wakes the image.
        return Ok(None);
    }
    // As of the tag, which has a name.
    let Ok(named) = name::of_version(step.object.source(), &newest.digest) else {
        return Ok(None);
    };
    let now = step.now.0.as_second();
    if newest.found_time.0.as_second() > now + SKEW {
        // The clock was ahead.
        newest.found_time = step.now.clone();
    }
    let since = now - newest.found_time.0.as_second();
    let holders = Holders::of_image(&step.ctx.stores, &named.name);
    let mut nodes = nodes(step, former);
    let last = known.pulls.clone().unwrap_or_default();
    // One that is there for others has pulled it for good.
    nodes.extend(last.nodes.iter().filter_map(|name| {
        let node = node(step, name)?;
        Some((name.clone(), node))
    }));
    let able = able(step);
    let can = |node: &String| able.contains(node) || holders.nodes.contains(node);
    let is_late = since >= LIMIT && step.object.pre_pull().is_none();
    let has_one = last.ready > 0 || nodes.keys().any(|node| holders.nodes.contains(node));
    if !nodes.keys().any(can) || is_late && !has_one {
        let mut others = able.clone();
        others.retain(|node| !nodes.contains_key(node));
        nodes.extend(other(step, &others, &named.name, since));
    }
    let set = pre_pull::NodeSet {
        nodes: &nodes,
        recorded: last.nodes.iter().cloned().collect(),
        message: last.message.clone(),
        hold: match step.tag.checksum_url {
            Some(_) => pre_pull::Hold::Since(newest.found_time.0.as_second()),
            None => pre_pull::Hold::Long,
        },
    };
    let mut pulls = pre_pull::observe_version(step.ctx, step.object, &named, &holders, set).await?;
    if let Some(status) = &mut pulls.status {
        if are_enough(status, since) {
            newest.state = ImageVersionState::Ready;
            newest.ready_nodes = status.ready;
        } else {
            let failed = pre_pull::node_of(&last.message);
            let is_repeated = failed.is_some_and(|node| nodes.contains_key(node));
            carry(status, last, is_repeated);
        }
    }
    Ok(Some(Pulled {
        name: named.name,
        status: pulls.status,
        again: pulls.again,
    }))
}

/// Keeps what is known of pulls that failed while they are repeated: a pull that fails again and again in the
/// same way is one state. The nodes that repeat it count as failed until one of them has the version.
fn carry(status: &mut PrePullStatus, last: PrePullStatus, is_repeated: bool) {
    let has_progress = status.ready != last.ready || status.desired != last.desired;
    if is_repeated && last.is_stalled() && !has_progress && status.pulling > 0 {
        status.failed = last.failed;
        status.pulling = last.pulling;
        status.message = last.message;
    } else if status.message.is_empty() {
        // What is repeated may fail in the same way.
        status.message = last.message;
    }
}

/// Whether new machines may use a version that so many nodes have so many seconds after it was found.
const fn are_enough(pulls: &PrePullStatus, since: i64) -> bool {
    pulls.ready > 0 && (pulls.ready >= pulls.desired || since >= LIMIT)
}

/// The nodes that are to have it.
fn nodes(step: &Step<'_>, former: &[ImageVersion]) -> BTreeMap<String, Arc<Node>> {
    let Step { ctx, object, .. } = *step;
    let requested = object.pre_pull();
    let mut all = requested.map_or_else(BTreeMap::new, |wanted| pre_pull::matching(ctx, wanted));
    let mut holders = BTreeSet::new();
    for version in former.iter().filter(|version| versions::is_ready(version)) {
        let Ok(named) = name::of_version(object.source(), &version.digest) else {
            continue;
        };
        holders.extend(Holders::of_image(&ctx.stores, &named.name).nodes);
        let cached = cache::find(ctx, object).filter(|c| cache::is_of(c, object, &named.name));
        if let Some(cached) = cached {
            holders.extend(cache::nodes_with(&cached).map(str::to_owned));
        }
    }
    for name in holders {
        if let Some(node) = node(step, &name) {
            all.insert(name, node);
        }
    }
    all
}

/// One node that can pull it: the one that does, or else each in its turn.
fn other(
    step: &Step<'_>,
    able: &BTreeSet<String>,
    name: &str,
    since: i64,
) -> Option<(String, Arc<Node>)> {
    let tasks = step.ctx.stores.tasks_of(step.object.uid());
    let mut open = tasks.iter().filter(|task| {
        let is_of_version = task.spec.image.as_deref() == Some(name);
        let is_pull = task.spec.kind == TaskKind::PullImage && is_of_version;
        is_pull && task.state() != Some(TaskState::Error)
    });
    let open = open.find(|task| able.contains(&task.spec.node_name));
    let node_name = if let Some(task) = open {
        task.spec.node_name.clone()
    } else {
        let turn = usize::try_from(since / TURN).unwrap_or_default();
        let sum: usize = step.object.uid().bytes().map(usize::from).sum();
        let index = sum.wrapping_add(turn).checked_rem(able.len())?;
        able.iter().nth(index)?.clone()
    };
    let node = node(step, &node_name)?;
    Some((node_name, node))
}

/// The nodes that would pull an image now.
fn able(step: &Step<'_>) -> BTreeSet<String> {
    let kind = format!("{:?}", TaskKind::PullImage);
    let able = step.ctx.stores.agents.able(&kind).into_iter();
    let is_open = |name: &String| {
        node(step, name).is_some_and(|node| {
            let spec = node.spec.as_ref();
            spec.and_then(|spec| spec.unschedulable) != Some(true)
        })
    };
    able.filter(is_open).collect()
}

fn node(step: &Step<'_>, name: &str) -> Option<Arc<Node>> {
    step.ctx.stores.nodes.get(&Key::new("", name).reference())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::repeated(1, 0, true, "1 failed, 0 pulling: node a: old")]
    #[case::of_other_nodes(1, 0, false, "0 failed, 1 pulling: node a: old")]
    #[case::after_progress(2, 1, true, "0 failed, 1 pulling: node a: old")]
    fn a_pull_that_is_repeated_is_one_state_until_a_node_has_the_version(
        #[case] desired: u32,
        #[case] ready: u32,
        #[case] is_repeated: bool,
        #[case] expected: &str,
    ) {
        let last = PrePullStatus {
            desired: 1,
            failed: 1,
            message: "node a: old".to_owned(),
            ..PrePullStatus::default()
        };
        let mut status = PrePullStatus {
            desired,
            ready,
            pulling: 1,
            ..PrePullStatus::default()
        };
        carry(&mut status, last, is_repeated);
        let PrePullStatus {
            failed,
            pulling,
            message,
            ..
        } = status;
        assert_eq!(
            format!("{failed} failed, {pulling} pulling: {message}"),
            expected
        );
    }

    #[rstest]
    #[case::all(2, 2, 0, true)]
    #[case::one_is_missing(2, 1, LIMIT - 1, false)]
    #[case::late(2, 1, LIMIT, true)]
    #[case::no_node_can_pull_it(2, 0, LIMIT, false)]
    #[case::no_node_is_there(0, 0, LIMIT, false)]
    #[case::a_node_that_had_it(1, 1, 0, true)]
    fn a_version_is_used_when_its_nodes_have_it_or_it_is_late(
        #[case] desired: u32,
        #[case] ready: u32,
        #[case] since: i64,
        #[case] expected: bool,
    ) {
        let pulls = PrePullStatus {
            desired,
            ready,
            ..PrePullStatus::default()
        };
        assert_eq!(are_enough(&pulls, since), expected);
    }
}
