//! Gives the machine's node the readiness probe that it is to make.
//!
//! Invariant: the guest facts of the pod say which probe the node makes, and a task changes it only
//! where that is another one: a restart of the controller, the agent or the daemon loses nothing.
//! Failure: that of the task, which is tried again. A node that is too old gets no task; the
//! condition `Ready` says so.

use std::time::Duration;

use crds::{TaskKind, names};
use kube::ResourceExt;

use super::tasks::{self, Progress};
use crate::flow::{Flow, Outcome};
use crate::reconcile::vm::observe::{pods, probe};
use crate::reconcile::vm::pass::Pass;

/// How soon a pass follows one before which no lease was listed: that is about to be done.
const LISTED: Duration = Duration::from_secs(10);

/// Sets, changes or ends the probe, where the node makes another one.
pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let Some(pod) = pass.view.pod.clone().filter(|pod| pods::runs(pod)) else {
        return Ok(Flow::Continue);
    };
    let wanted = probe::of_node(pass);
    let made = pass.view.probe.as_ref().map(|reported| &reported.probe);
    let node = pods::node(&pod).filter(|_| made != wanted.as_ref());
    let Some(node) = node else {
        return Ok(Flow::Continue);
    };
    let agents = &pass.ctx.stores.agents;
    if !agents.are_listed() {
        pass.requeue_within(LISTED);
        return Ok(Flow::Continue);
    }
    // Its agent, once it is another one, wakes the machine.
    if !agents.has(node, names::NODE_PROBES) {
        return Ok(Flow::Continue);
    }
    let mut task = tasks::spec(pass, node, TaskKind::SetProbe);
    let uid = pod.uid().unwrap_or_default();
    // A probe that was replaced and comes again has another generation.
    let generation = pass.vm.metadata.generation.unwrap_or_default();
    let seed = format!("{uid}/{generation}");
    task.instance_uid = Some(uid);
    task.probe = wanted;
    match tasks::ensure(pass, task, &seed).await? {
        Progress::Removed => Ok(Flow::RequeueAfter(tasks::NEXT)),
        // The facts show that it is done.
        Progress::Running | Progress::Done | Progress::Cancelled => Ok(Flow::Continue),
    }
}
