//! Deletes a machine.
//!
//! Invariant: our finalizer stays until no pod of the machine is left and its root disk is removed;
//! a pause or a check keeps everything.
//! Failure: an event names what keeps the machine; the pass is repeated.

mod disk;
mod orphan;

use crds::{TaskKind, names};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use lifecycle::{Action, Volumes};

use super::{clone, config, effects, handover, provision, tasks};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::{find, pods, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::update;
use crate::reconcile::vm::write::patch;

/// Tasks whose result goes with the disk.
const MAKES_WAY: [TaskKind; 6] = [
    TaskKind::Backup,
    TaskKind::Promote,
    TaskKind::Snapshot,
    TaskKind::Revert,
    TaskKind::DeleteSnapshot,
    TaskKind::Freeze,
];

pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome {
    if pass.is_paused() || pass.has_below(names::DELETE_CHECK_PREFIX) {
        update::record_end(pass);
        return Ok(Flow::Continue);
    }
    if !pass.vm.finalizers().iter().any(|f| f == names::FINALIZER) {
        forget(pass);
        return Ok(Flow::Continue);
    }
    clone::snapshot::abandon(pass).await?;
    if view::is_orphaning(&pass.vm) {
        handover::clean_up(pass).await?;
        release(pass);
        return Ok(Flow::Continue);
    }
    if pass.has(names::SKIP_DELETE_PLATFORM_RESOURCE) {
        orphan::run(pass).await?;
        handover::clean_up(pass).await?;
        release(pass);
        return Ok(Flow::Continue);
    }
    let result = platform(pass).await;
    match &result {
        Ok(Flow::Continue) => {
            match disk::left(pass) {
                Some(node) => pass.warning("DiskLeft", &left(&node)),
                None => pass.normal("DeleteSuccess", "the machine and its root disk are gone"),
            }
            release(pass);
        }
        Err(PassError::Failed(error)) => pass.warning("DeleteFailure", &error::text(error)),
        Ok(Flow::Waiting(reason)) => pass.warning("DeleteFailure", reason),
        Ok(_) | Err(PassError::Conflict(_)) => {}
    }
    result
}

/// Ends the machine and removes its root disk; [`Flow::Continue`]: nothing is left.
async fn platform(pass: &mut Pass<'_>) -> Outcome {
    let making = provision::task(pass).filter(|t| !t.is_final());
    // A node that no longer exists ends no task, and took the disk with it.
    let making = making.filter(|t| view::node(pass, &t.spec.node_name).is_some());
    if let Some(task) = making.filter(|t| !disk::is_left(pass, &t.spec.node_name)) {
        tasks::cancel(pass, &task).await?;
        return match tasks::unresponsive_agent(pass) {
            Some(silent) => Ok(Flow::Waiting(silent.message)),
            None => Err(Error::StillCreating.into()),
        };
    }
    let pod = find::instance(pass).await?;
    view::observe(pass, pod.clone(), Volumes::Ready);
    let decision = view::decide(pass);
    handover::clean_up(pass).await?;
    if pod.is_none() && !may_have_disk(pass) {
        return Ok(Flow::Continue);
    }
    let place = pod.as_deref().and_then(pods::node).map(str::to_owned);
    let place = place.or_else(|| pass.node_name());
    let silent = place.filter(|n| view::node(pass, n).is_some() && !view::is_ready(pass, n));
    // Without a pod no guest is there that could still use the disk.
    let silent = silent.filter(|node| pod.is_some() || !disk::is_left(pass, node));
    if let Some(node) = silent {
        return Ok(Flow::Waiting(format!("node {node} does not report")));
    }
    config::sync_paused_label(pass);
    if config::is_admin_paused(pass) {
        crate::reconcile::vm::write::status::mark_paused(pass);
        return Ok(Flow::Done("is paused"));
    }
    for task in tasks::all(pass) {
        if MAKES_WAY.contains(&task.spec.kind) && !task.is_final() {
            tasks::cancel(pass, &task).await?;
        }
    }
    match decision.action {
        Action::Delete { grace_seconds, .. } => {
            patch::status(pass).await?;
            if let Some(pod) = pod {
                let is_first = !pods::is_deleting(&pod);
                effects::delete(pass, &pod, grace_seconds).await?;
                if is_first {
                    announce(pass, grace_seconds);
                }
            }
            Ok(Flow::Done("the machine is being ended"))
        }
        Action::RemoveFinalizer => disk::remove(pass).await,
        _ => Ok(Flow::Done("the machine is being ended")),
    }
}

/// Says how long a guest may keep its machine, and how to end it sooner.
fn announce(pass: &Pass<'_>, grace_seconds: u32) {
    if grace_seconds == 0 {
        return;
    }
    let grace = SignedDuration::from_secs(grace_seconds.into());
    let Ok(end) = pass.now.0.checked_add(grace) else {
        return;
    };
    let until = end.strftime("%FT%TZ");
    let name = &pass.key.name;
    let text = format!(
        "the guest has until {until} ({grace_seconds} s) to power off; `kubectl vmlet delete \
         {name} --force` ends it at once"
    );
    pass.normal("DeleteStarted", &text);
}

fn left(node: &str) -> String {
    format!(
        "the machine is gone; its root disk stays on node {node}, which reports it as a disk without a \
         machine once it has an agent again, with all layers of its snapshots, whose objects go"
    )
}

/// Something may lie on a node: it is recorded before a task can make a disk there. The task's
/// object proves nothing: its owner, or the end of the namespace, may have deleted it.
fn may_have_disk(pass: &Pass<'_>) -> bool {
    pass.root_claim().is_none() && pass.node_name().is_some()
}

fn release(pass: &mut Pass<'_>) {
    pass.vm.finalizers_mut().retain(|f| f != names::FINALIZER);
    forget(pass);
}

/// What this process knows of the machine.
fn forget(pass: &Pass<'_>) {
    pass.ctx.shared.expected.forget(pass.key);
}
