//! Edits of a machine whose disk is not made yet: what was begun for the specification of before ends.
//!
//! Invariant: a placeholder that has its place, once that is on record, stays for every edit but one of the
//! image.
//! Failure: what the API server reports.

use std::sync::Arc;

use crds::{VirtualMachineTask, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::placeholder::GRACE;
use crate::flow::Outcome;
use crate::reconcile::group::placement::Grouping;
use crate::reconcile::vm::act::{effects, pod, provision, tasks};
use crate::reconcile::vm::observe::{find, group, pods, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Prerequisites};

/// What is done for a machine that waits for a slot: nothing is made of its specification yet, so that
/// its placeholder follows it.
pub(in crate::reconcile::vm::act) async fn follow(pass: &mut Pass<'_>) -> Outcome<()> {
    let pod = find::placeholder(pass).filter(|_| pass.node_name().is_none());
    if let Some(pod) = pod {
        let prerequisites = prerequisites::all(pass).await?;
        let stays = follow_edits(pass, &prerequisites, Some(&pod)).await?;
        if stays && provision::has_image(&pod) {
            provision::has_place_and_image(pass);
        }
    }
    Ok(())
}

/// Ends what was begun for an image that was edited, or made again, since, and a placeholder that was made
/// by rules for the scheduler that were edited since. False: the end is waited for.
pub(super) async fn follow_edits(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    pod: Option<&Pod>,
) -> Outcome<bool> {
    let name = prerequisites.image.name.as_str();
    let is_of_another = |task: &Arc<VirtualMachineTask>| task.spec.image.as_deref() != Some(name);
    if let Some(task) = provision::task(pass).filter(is_of_another) {
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
