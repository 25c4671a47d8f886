//! Replaces the placeholder pod by the instance.
//!
//! ```text
//! pod made, gated ─► nominated for the node ─► placeholder deleted ─► gate removed ─► scheduled
//! ```
//!
//! Invariant: while a machine is to be on, its requests, labels and affinity count on the node of
//! its disk without a gap until its first pod is placed: the scheduler counts the placeholder, then
//! the nominated pod. Both at once would not fit.
//! Failure: every step is repeated by the next pass; a machine that is not to be on loses its
//! placeholder.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use lifecycle::Action;
use serde_json::json;

use super::effects;
use crate::flow::Outcome;
use crate::reconcile::answers::is_gone;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::{find, pods};
use crate::reconcile::vm::pass::Pass;
use crds::names::PLACEHOLDER_GATE;

/// Seconds that kubelet has to remove a placeholder before its object is deleted.
const GRACE: u32 = 1;

/// Hands the place over to the machine's pod, or gives it up when the machine is not to be on.
pub(crate) async fn run(pass: &mut Pass<'_>, action: &Action) -> Outcome<()> {
    let placeholder = find::placeholder(pass);
    let instance = pass.view.pod.clone();
    let Some(instance) = instance.filter(|pod| !pods::is_over(pod)) else {
        return match placeholder {
            Some(pod) if !is_on_its_way(action) => effects::delete(pass, &pod, GRACE).await,
            _ => Ok(()),
        };
    };
    let expected = &pass.ctx.shared.expected;
    let is_done = expected.is_handed_over(pass.key, &instance, pass.seconds());
    if is_done || pods::is_deleting(&instance) || matches!(action, Action::Delete { .. }) {
        return Ok(());
    }
    match placeholder {
        Some(pod) if is_gated(&instance) => hand_over(pass, &pod, &instance).await,
        Some(pod) => effects::delete(pass, &pod, GRACE).await,
        None => effects::ungate(pass, &instance, PLACEHOLDER_GATE).await,
    }
}

/// The machine is to be on, and its pod is about to be made, as soon as nothing holds it back.
const fn is_on_its_way(action: &Action) -> bool {
    matches!(
        action,
        Action::Create { .. } | Action::Wait(_) | Action::Patch(_)
    )
}

/// The placeholder that holds the place of a pod which is about to be made.
pub(crate) fn holds(pod: &Pod, node: &str) -> bool {
    !pods::is_over(pod) && pods::node(pod) == Some(node)
}

/// Lets the machine's pod take the place.
pub(crate) async fn hand_over(
    pass: &mut Pass<'_>,
    placeholder: &Pod,
    instance: &Pod,
) -> Outcome<()> {
    if let Some(node) = pods::node(placeholder).filter(|_| !pods::is_over(placeholder)) {
        nominate(pass, instance, node).await?;
    }
    give_up(pass, placeholder).await?;
    effects::ungate(pass, instance, PLACEHOLDER_GATE).await?;
    let expected = &pass.ctx.shared.expected;
    let now = pass.seconds();
    expected.handed_over(pass.key, instance.uid().unwrap_or_default(), now);
    Ok(())
}

/// Removes the placeholder's object at once; kubelet removes the rest: there is no guest that could
/// outlive it.
pub(crate) async fn give_up(pass: &mut Pass<'_>, placeholder: &Pod) -> Outcome<()> {
    effects::delete(pass, placeholder, 0).await
}

/// From now on the scheduler keeps the pod's requests free on that node, and counts its labels
/// there.
async fn nominate(pass: &mut Pass<'_>, pod: &Pod, node: &str) -> Outcome<()> {
    let status = pod.status.as_ref();
    let nominated = status.and_then(|s| s.nominated_node_name.as_deref());
    if nominated == Some(node) {
        return Ok(());
    }
    let change = Patch::Merge(json!({ "status": { "nominatedNodeName": node } }));
    let name = pod.name_any();
    let api = pass.api::<Pod>();
    match api
        .patch_status(&name, &PatchParams::default(), &change)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(Error::PlacePod { name, source }.into()),
    }
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref());
    gates.is_some_and(|all| all.iter().any(|gate| gate.name == PLACEHOLDER_GATE))
}

/// Deletes the placeholder of a machine that is being deleted.
pub(crate) async fn clean_up(pass: &mut Pass<'_>) -> Outcome<()> {
    match find::placeholder(pass) {
        Some(pod) => effects::delete(pass, &pod, GRACE).await,
        None => Ok(()),
    }
}
