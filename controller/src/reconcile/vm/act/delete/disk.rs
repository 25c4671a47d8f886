//! Deletes the root disk of a machine that is being deleted.
//!
//! Invariant: removed only after the last pod no longer exists, as the API server says, since the store
//! may be behind; by a task of its own; a disk in a
//! claim is left to the claim's owner. A disk that no agent can remove is left on the request of the
//! machine's owner: its node reports it as a disk without a machine once it has an agent again.
//! Failure: the node reports why; a node that no longer exists took the disk with it.

use crds::{TaskKind, names};
use k8s_openapi::api::core::v1::Pod;

use super::{Pass, tasks, view};
use crate::flow::{Flow, Outcome};
use crate::reconcile::answers::again;
use crate::reconcile::vm::act::tasks::Progress;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::pods;

pub(super) async fn remove(pass: &mut Pass<'_>) -> Outcome {
    let node = pass.node_name().filter(|_| super::may_have_disk(pass));
    let node = node.filter(|node| view::node(pass, node).is_some());
    let Some(node) = node.filter(|node| !is_left(pass, node)) else {
        return Ok(Flow::Continue);
    };
    let task = tasks::spec(pass, &node, TaskKind::DeleteDisk);
    let uid = pass.uid();
    let is_requested = tasks::all(pass)
        .iter()
        .any(|task| task.spec.kind == TaskKind::DeleteDisk);
    if !is_requested {
        check_unused(pass, &uid).await?;
    }
    match tasks::ensure(pass, task, &uid).await? {
        Progress::Done => Ok(Flow::Continue),
        Progress::Running | Progress::Cancelled => {
            // Its agent may be the last one that was left, whose loss no one announces.
            pass.requeue_within(pass.ctx.config.runner.recheck.get());
            Ok(Flow::Done("the root disk is removed"))
        }
        Progress::Removed => Ok(Flow::RequeueAfter(tasks::NEXT)),
    }
}

/// A pod that was just created, and that no watch has reported yet, may start a guest on the disk.
async fn check_unused(pass: &Pass<'_>, uid: &str) -> Outcome<()> {
    let name = &pass.key.name;
    let found = pass.api::<Pod>().get_opt(name).await;
    let found = found.map_err(|source| {
        let what = format!("pod {}", pass.key);
        Error::Read { what, source }
    })?;
    let is_used = found.is_some_and(|pod| pods::controller_uid(&pod) == Some(uid));
    (!is_used).then_some(()).ok_or_else(again)
}

/// Whether the machine may go without its disk on this node.
pub(super) fn is_left(pass: &Pass<'_>, node: &str) -> bool {
    pass.has(names::LEAVE_DISK) && pass.ctx.stores.agents.is_absent(node)
}

/// The node, if one keeps the disk.
pub(super) fn left(pass: &Pass<'_>) -> Option<String> {
    let node = pass.node_name().filter(|_| super::may_have_disk(pass))?;
    let is_left = view::node(pass, &node).is_some() && is_left(pass, &node);
    is_left.then_some(node)
}
