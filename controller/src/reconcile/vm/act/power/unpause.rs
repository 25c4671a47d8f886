//! Resumes a guest whose disk failed, for a request of its owner.
//!
//! Invariant: a request is one task; it is removed with the task's end, and once the guest does not
//! stand still for that reason any more.
//! Failure: a guest that cannot run is an event of the machine with the node's words; it is not
//! tried again without another request.

use crds::{TaskKind, names};
use kube::ResourceExt;
use lifecycle::Action;

use super::{plain_task, tasks};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::act::tasks::Progress;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::pass::Pass;

/// Whether its owner requests that, and not `spec.paused`.
pub(super) fn is_requested(pass: &Pass<'_>) -> bool {
    let instance = pass.view.instance.as_ref();
    let paused = instance.and_then(|i| i.paused.as_deref());
    pass.has(names::UNPAUSE_REQUEST) && paused == Some(names::PAUSED_IO_ERROR)
}

/// Removes a request for which there is nothing to do.
pub(super) fn settle(pass: &mut Pass<'_>, action: &Action) {
    if pass.has(names::UNPAUSE_REQUEST) && !matches!(action, Action::Unpause { .. }) {
        forget(pass);
    }
}

pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let request = pass.vm.annotations().get(names::UNPAUSE_REQUEST).cloned();
    let task = plain_task(pass, TaskKind::Unpause)?;
    match tasks::ensure(pass, task, &request.unwrap_or_default()).await {
        Ok(Progress::Running) => return Ok(Flow::Done("requested from the node")),
        Ok(Progress::Done | Progress::Cancelled | Progress::Removed) => {}
        Err(PassError::Failed(error)) if is_of_task(&error) => {
            pass.warning("FailedUnpause", &format!("{error:#}"));
        }
        Err(error) => return Err(error),
    }
    forget(pass);
    Ok(Flow::Continue)
}

fn is_of_task(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Task { .. }))
}

fn forget(pass: &mut Pass<'_>) {
    pass.vm.annotations_mut().remove(names::UNPAUSE_REQUEST);
}
