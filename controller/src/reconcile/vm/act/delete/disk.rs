//! Deletes the root disk of a machine that is being deleted.
//!
//! Invariant: removed only after the last pod no longer exists, by a task of its own; a disk in a
//! claim is left to the claim's owner.
//! Failure: the node reports why; a node that no longer exists took the disk with it.

use crds::TaskKind;

use super::{Pass, tasks, view};
use crate::flow::{Flow, Outcome};
use crate::reconcile::vm::act::tasks::Progress;

pub(super) async fn remove(pass: &mut Pass<'_>) -> Outcome {
    let node = pass
        .node_name()
        .filter(|_| crate::reconcile::vm::act::delete::may_have_disk(pass));
    let Some(node) = node.filter(|n| view::node(pass, n).is_some()) else {
        return Ok(Flow::Continue);
    };
    let task = tasks::spec(pass, &node, TaskKind::DeleteDisk);
    let uid = pass.uid();
    match tasks::ensure(pass, task, &uid).await? {
        Progress::Done => Ok(Flow::Continue),
        Progress::Running | Progress::Cancelled => Ok(Flow::Done("the root disk is removed")),
        Progress::Removed => Ok(Flow::RequeueAfter(tasks::NEXT)),
    }
}
