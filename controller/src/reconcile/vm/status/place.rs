//! Where the machine is.
//!
//! Invariant: the node of a local root disk never follows the pod; that of a claim does.
//! Failure: a node that is not known keeps the zone that was known.

use kube::ResourceExt;

use super::super::{observe, pods};
use super::Pass;

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
    let Some(node) = pass.node_name().and_then(|name| observe::node(pass, &name)) else {
        return;
    };
    pass.status().zone = node.labels().get(ZONE).cloned();
}
