//! The node of the machine, and whether the machine fits there.
//!
//! Invariant: the node of a local root disk never follows the pod; that of a claim does.
//! Failure: a node that is not known keeps the zone that was known.

use crds::conditions::{PLACEMENT_READY, Status};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::Pass;
use crate::reconcile::vm::observe::{pods, room, view};

/// Label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) fn run(pass: &mut Pass<'_>) {
    let pod = pass.view.pod.clone().filter(|p| !pods::is_over(p));
    let seen = pod.as_deref().and_then(pods::node).map(str::to_owned);
    let has_claim = pass.root_claim().is_some();
    let unset = pass.node_name().is_none();
    // An adopted machine without a record, or one whose disk moves with its claim.
    if let Some(node) = seen.filter(|_| has_claim || unset) {
        pass.status().node_name = Some(node);
    }
    fits(pass, pod.as_deref());
    let Some(node) = pass.node_name().and_then(|name| view::node(pass, &name)) else {
        return;
    };
    pass.status().zone = node.labels().get(ZONE).cloned();
}

/// Says what keeps the scheduler from placing the machine; nothing while it has not tried.
fn fits(pass: &mut Pass<'_>, pod: Option<&Pod>) {
    let why = pod.and_then(pods::unschedulable).map(str::to_owned);
    let is_undecided = pod.is_some_and(|pod| pods::node(pod).is_none());
    match (why, pod) {
        (Some(why), Some(pod)) => {
            let text = obstacle(pass, pod, &why);
            pass.condition(PLACEMENT_READY, Status::False, "Unschedulable", &text);
        }
        _ if is_undecided => {}
        _ if pass.root_claim().is_some() => pass.drop_condition(PLACEMENT_READY),
        _ => pass.condition(PLACEMENT_READY, Status::True, "", ""),
    }
}

fn obstacle(pass: &Pass<'_>, pod: &Pod, why: &str) -> String {
    let Some(home) = pass.node_name().filter(|_| pass.root_claim().is_none()) else {
        return why.to_owned();
    };
    let node = view::node(pass, &home);
    let lacks = node.map(|node| room::lacks(pod, &node)).unwrap_or_default();
    let never = if lacks.is_empty() {
        String::new()
    } else {
        format!(" ({})", lacks.join("; "))
    };
    format!("the root disk is on node {home}, which cannot take the machine{never}: {why}")
}
