//! The placeholder of a machine: its making, what it waits for, and its end.
//!
//! Invariant: one that failed is replaced after [`PERIOD`] at the earliest: a node that refuses every pod does
//! so at once.
//! Failure: what the API server reports; why it waits shows in the conditions of the machine.

use std::time::Duration;

use crds::conditions::{self, Status};
use crds::names;
use k8s_openapi::api::core::v1::Pod;

use crate::flow::{Flow, Outcome};
use crate::reconcile::vm::act::pod::{self, Plan};
use crate::reconcile::vm::act::{effects, identity, tasks};
use crate::reconcile::vm::observe::{group, pods, root_disk};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Prerequisites, cache};

/// Seconds between two placeholders: a node that refuses every pod does so at once.
const PERIOD: i64 = 30;
/// Seconds, from its creation, in which a placeholder runs on a node that has the image.
const AT_ONCE: i64 = 3;
/// Seconds that kubelet has to remove a placeholder before its object is deleted.
pub(in crate::reconcile::vm::act) const GRACE: u32 = 1;

/// Creates it, and says that it has no node yet.
pub(super) async fn ensure(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    node: Option<&str>,
) -> Outcome<()> {
    create(pass, prerequisites, node).await?;
    if node.is_none() {
        let kind = conditions::PLACEMENT_READY;
        let text = "the scheduler has not chosen a node yet";
        pass.condition(kind, Status::False, "NotReady", text);
        pass.postpone_status();
    }
    Ok(())
}

/// Creates it, on this node if there is one.
pub(in crate::reconcile::vm::act) async fn create(
    pass: &mut Pass<'_>,
    prerequisites: &Prerequisites,
    node: Option<&str>,
) -> Outcome<()> {
    let (bios, instance) = identity::recorded(pass);
    let uid = pass.uid();
    let avoid = pass.ctx.shared.avoided.nodes_for(pass.key, pass.seconds());
    let mut prefer = cache::nodes(pass, &prerequisites.image);
    prefer.retain(|node| !avoid.contains(node));
    let grouping = group::grouping(pass);
    let plan = Plan {
        vm: &pass.vm,
        uid: &uid,
        owner: pass.owner(),
        prerequisites,
        node,
        avoid: &avoid,
        prefer: &prefer,
        grouping: grouping.as_ref(),
        disk: None,
        disk_request: root_disk::request(pass),
        instance_uuid: &instance,
        bios_uuid: &bios,
        machine_type: None,
        grace_seconds: 1,
        paused: false,
        restore: false,
        // Nothing is waited for by now, so that the gate would only be one more write.
        is_gated: false,
    };
    let pod = pod::placeholder(&plan);
    effects::create(pass, &pod).await.map(drop)
}

/// It has no node: why, and it may be scheduled.
pub(super) async fn waits_for_node(pass: &mut Pass<'_>, pod: &Pod) -> Outcome<()> {
    let missing = prerequisites::missing_claims(pass);
    let obstacle = missing.as_deref().or_else(|| pods::unschedulable(pod));
    let text = obstacle.unwrap_or("the scheduler has not chosen a node yet");
    let kind = conditions::PLACEMENT_READY;
    pass.condition(kind, Status::False, "NotReady", text);
    effects::ungate(pass, pod, names::PROVISIONING_GATE).await
}

/// It has a node, which pulls the image: what hinders it.
pub(super) fn waits_for_image(pass: &mut Pass<'_>, prerequisites: &Prerequisites, pod: &Pod) {
    pass.condition(conditions::PLACEMENT_READY, Status::True, "", "");
    let waiting = pods::waiting(pod);
    // What kubelet reports of every pod before it has pulled the image is no change.
    let waiting = waiting.filter(|(reason, _)| *reason != "ContainerCreating");
    let text = match waiting {
        Some((reason, "")) => reason.to_owned(),
        Some((reason, message)) => format!("{reason}: {message}"),
        None if is_about_to_run(pass, pod) => return,
        None => match cache::awaited(pass, &prerequisites.image) {
            Some(obstacle) => obstacle,
            None => return,
        },
    };
    let kind = conditions::IMAGE_CACHE_READY;
    pass.condition(kind, Status::False, "NotReady", &text);
}

/// Where the node has the image, the pass that records the node follows soon, and writes the status of
/// both.
fn is_about_to_run(pass: &mut Pass<'_>, pod: &Pod) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map_or(AT_ONCE, |at| pass.seconds() - at.0.as_second());
    // Clocks differ.
    let is_new = (0..AT_ONCE).contains(&age);
    if is_new {
        let left = u64::try_from(AT_ONCE - age).unwrap_or_default();
        pass.postpone_status_for(Duration::from_secs(left));
    }
    is_new
}

/// It failed: why, and another one follows.
pub(super) async fn replace_failed(pass: &mut Pass<'_>, pod: &Pod) -> Outcome {
    let status = pod.status.clone().unwrap_or_default();
    let why = [status.reason, status.message];
    let why: Vec<_> = why.into_iter().flatten().collect();
    let reason = format!("the placeholder failed: {}", why.join(": "));
    pass.condition(conditions::PLACEMENT_READY, Status::False, "Error", &reason);
    remove_failed(pass, pod).await
}

/// Deletes a placeholder that failed, once it is old enough for another one.
pub(in crate::reconcile::vm::act) async fn remove_failed(
    pass: &mut Pass<'_>,
    pod: &Pod,
) -> Outcome {
    let made = pod.metadata.creation_timestamp.as_ref();
    let age = made.map_or(PERIOD, |at| pass.seconds() - at.0.as_second());
    let left = u64::try_from(PERIOD - age.max(0)).unwrap_or_default();
    let after = Duration::from_secs(left);
    if after.is_zero() {
        effects::delete(pass, pod, GRACE).await?;
    }
    // A back-off of its own, and the next one is made by the pass after this one.
    let least = tasks::NEXT;
    Ok(Flow::RequeueAfter(after.max(least)))
}
