//! Shortens the grace period of an instance that is being stopped.
//!
//! kubelet (1.36) lets a stop that it has begun take its time, whatever grace the pod has by now.
//! So the node is asked by a task.
//!
//! Invariant: the task names the pod, so that one which comes late leaves the next instance alone.
//! Failure: that of the task, which is tried again as long as the guest has the time that it was
//! given first.

use crds::TaskKind;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::tasks::{self, Progress};
use crate::flow::Outcome;
use crate::reconcile::answers::again;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::Pass;

/// Lets the node cut the power of the pod's machine in `seconds`.
pub(crate) async fn request(pass: &mut Pass<'_>, pod: &Pod, seconds: u32) -> Outcome<()> {
    let Some(node) = pods::node(pod) else {
        return Ok(());
    };
    let Some(uid) = pod.uid() else {
        return Ok(());
    };
    let mut task = tasks::spec(pass, node, TaskKind::PowerOff);
    task.timeout_seconds = Some(seconds);
    task.instance_uid = Some(uid.clone());
    let seed = format!("{uid}/{seconds}");
    let own = tasks::places(pass, TaskKind::PowerOff, &seed).map(|place| place.name);
    // A node does one thing for a machine at a time: what is more patient makes way.
    for other in tasks::all(pass) {
        let is_softer = matches!(
            other.spec.kind,
            TaskKind::GuestShutdown | TaskKind::PowerOff
        );
        if is_softer && !other.is_final() && !own.contains(&other.name_any()) {
            tasks::cancel(pass, &other).await?;
        }
    }
    match tasks::ensure(pass, task, &seed).await? {
        // The shorter grace is given with a task only: no later pass would make it.
        Progress::Removed => Err(again()),
        Progress::Running | Progress::Done | Progress::Cancelled => Ok(()),
    }
}
