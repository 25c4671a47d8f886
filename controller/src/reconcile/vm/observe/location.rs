//! The node of a machine is the node of its disk.
//!
//! Invariant: a machine whose disk cannot be reached is left as it is: nothing is made again
//! elsewhere.
//! Failure: `VirtualMachineLocationValid` is False, and the node's next event wakes the machine.

use crds::conditions::{LOCATION_VALID, Status};

use super::pods;
use super::view;
use crate::flow::Flow;
use crate::reconcile::vm::pass::Pass;

pub(crate) fn run(pass: &mut Pass<'_>) -> Flow {
    match check(pass) {
        None => {
            pass.condition(LOCATION_VALID, Status::True, "", "");
            Flow::Continue
        }
        Some((reason, message)) => {
            pass.condition(LOCATION_VALID, Status::False, reason, &message);
            Flow::Waiting(message)
        }
    }
}

/// A disk that a node was making when it went is not made elsewhere: the node may return with
/// it.
pub(crate) fn while_making(pass: &mut Pass<'_>, node: &str) {
    if view::node(pass, node).is_some() {
        pass.drop_condition(LOCATION_VALID);
        return;
    }
    let message = format!(
        "node {node}, which was making the root disk, does not exist any more; delete the machine, \
         or let the node come back"
    );
    pass.condition(LOCATION_VALID, Status::False, "NodeLost", &message);
}

fn check(pass: &Pass<'_>) -> Option<(&'static str, String)> {
    if pass.root_claim().is_some() {
        return None;
    }
    let Some(home) = pass.node_name() else {
        let message = "no node is on record for the root disk; it is not made again".to_owned();
        return Some(("NodeLost", message));
    };
    let pod = pass.view.pod.as_deref().filter(|p| !pods::is_over(p));
    if let Some(away) = pod.and_then(pods::node).filter(|node| *node != home) {
        let message = format!("the pod is on node {away}, the root disk on node {home}");
        return Some(("NodeMismatch", message));
    }
    if view::node(pass, &home).is_none() {
        return Some(("NodeLost", format!("node {home} does not exist any more")));
    }
    if !view::is_ready(pass, &home) {
        return Some(("NodeLost", format!("node {home} does not report")));
    }
    None
}
