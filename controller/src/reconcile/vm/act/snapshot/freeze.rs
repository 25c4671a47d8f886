//! The guest of a machine with claims, frozen while its disks are taken.
//!
//! ```text
//! task Freeze ─► Running with status.snapshot: frozen ─► disk of the node, claims ─► cancelled ─► Success
//! ```
//!
//! Invariant: no disk is taken before the guest is frozen, and the task is cancelled when all are. The guest thaws by
//! itself after a minute, whatever becomes of this controller, of the agent and of the daemon.
//! Failure: a guest that does not freeze fails the snapshot; one that thaws too early makes it less consistent, which its
//! status says.

use std::time::Duration;

use crds::{SnapshotRequest, TaskKind, TaskState, VirtualMachineSnapshot, VirtualMachineTask};
use kube::ResourceExt;
use lifecycle::snapshot::quiesce_seconds;

use crate::flow::Outcome;
use crate::reconcile::vm::act::tasks;
use crate::reconcile::vm::observe::snapshots;
use crate::reconcile::vm::pass::Pass;

/// Longest time from the freeze to its result, in seconds: an agent that is away does not report that.
const LONGEST: i64 = 120;

/// Longest time for which a guest stays frozen, in seconds.
const FROZEN: i64 = 60;

/// How far a freeze is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The node has not got there.
    Begins,
    /// The guest is frozen.
    Frozen,
    /// It is not any more.
    Over,
    /// It never was, and whether that may pass.
    Failed(String, bool),
}

/// How far the end of a freeze is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Thaw {
    /// The node has the guest thaw.
    Requested(String),
    /// The guest is not frozen. `quiesced`: it was until now.
    Done { quiesced: bool },
}

/// What the snapshot waits for.
pub(super) fn begins(node: &str) -> String {
    format!("node {node} has the guest freeze its file systems")
}

/// Has the node freeze the guest.
pub(super) async fn begin(
    pass: &mut Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    node: &str,
) -> Outcome<()> {
    let uid = snapshot.uid().unwrap_or_default();
    let mut task = tasks::spec(pass, node, TaskKind::Freeze);
    task.snapshot = Some(SnapshotRequest {
        uid: uid.clone(),
        quiesce_seconds: quiesce_seconds(&snapshot.spec),
        memory: false,
    });
    tasks::ensure(pass, task, &uid).await.map(drop)
}

/// How far a freeze is.
pub(super) fn step(pass: &Pass<'_>, task: &VirtualMachineTask) -> Step {
    let status = task.status.clone().unwrap_or_default();
    match status.state {
        None | Some(TaskState::Queued) => Step::Begins,
        Some(TaskState::Running) if status.snapshot.is_none() => Step::Begins,
        Some(TaskState::Running) if pass.seconds() - since(pass, task) > FROZEN => Step::Over,
        Some(TaskState::Running) => Step::Frozen,
        Some(TaskState::Error) => Step::Failed(status.message, status.transient),
        Some(TaskState::Success | TaskState::Cancelled) => Step::Over,
    }
}

/// Seconds since 1970 since which the guest is frozen, as far as the clock of its node can be right.
fn since(pass: &Pass<'_>, task: &VirtualMachineTask) -> i64 {
    let status = task.status.as_ref();
    let frozen = status.and_then(|status| status.snapshot.as_ref());
    let since = frozen.and_then(|frozen| frozen.created_time.as_ref());
    let since = since.map_or(0, |since| since.0.as_second());
    since.max(made(task)).min(pass.seconds())
}

fn made(task: &VirtualMachineTask) -> i64 {
    let made = task.metadata.creation_timestamp.as_ref();
    made.map_or(0, |made| made.0.as_second())
}

/// Whether no node freezes the guest by this task: the machine is on another one, or the agent of its node is away.
pub(super) fn is_lost(pass: &mut Pass<'_>, task: &VirtualMachineTask) -> bool {
    if task.is_final() {
        return false;
    }
    let node = &task.spec.node_name;
    let is_elsewhere = snapshots::node(pass).is_some_and(|now| now != *node);
    let is_late = pass.seconds() - made(task) > LONGEST;
    // No event shows that its agent becomes silent.
    pass.requeue_within(Duration::from_secs(LONGEST.unsigned_abs()));
    is_elsewhere || is_late && pass.ctx.stores.agents.is_absent(node)
}

/// Ends the freeze of a snapshot, if there is one.
pub(super) async fn end(pass: &mut Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Outcome<Thaw> {
    let Some(task) = snapshots::task(pass, TaskKind::Freeze, snapshot) else {
        return Ok(Thaw::Done { quiesced: false });
    };
    let status = task.status.as_ref();
    let frozen = status.and_then(|status| status.snapshot.as_ref());
    if task.is_final() {
        let is_done = task.state() == Some(TaskState::Success);
        let was_frozen = is_done && frozen.is_some_and(|frozen| frozen.quiesced);
        // One that ended by itself ended before the last disk was taken.
        let quiesced = was_frozen && task.spec.cancel && !has_earlier_disk(snapshot, &task);
        return Ok(Thaw::Done { quiesced });
    }
    tasks::cancel(pass, &task).await?;
    match u64::try_from(LONGEST - (pass.seconds() - since(pass, &task))) {
        Ok(rest @ 1..) => {
            pass.requeue_within(Duration::from_secs(rest));
            let node = &task.spec.node_name;
            let text = format!("node {node} has the guest thaw");
            Ok(Thaw::Requested(text))
        }
        _ => {
            tasks::delete(pass, &task).await?;
            Ok(Thaw::Done { quiesced: false })
        }
    }
}

/// Whether the disk of the node is of an earlier attempt, before the guest was frozen.
fn has_earlier_disk(snapshot: &VirtualMachineSnapshot, freeze: &VirtualMachineTask) -> bool {
    let taken = snapshot.status.as_ref();
    let taken = taken.and_then(|status| status.creation_time.as_ref());
    let frozen = freeze.status.as_ref();
    let frozen = frozen.and_then(|status| status.snapshot.as_ref());
    let frozen = frozen.and_then(|frozen| frozen.created_time.as_ref());
    // Both are of the clock of the node.
    taken
        .zip(frozen)
        .is_some_and(|(taken, frozen)| taken.0 < frozen.0)
}

/// Ends the freeze of a snapshot that is not taken.
pub(super) async fn cancel(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Outcome<()> {
    match snapshots::task(pass, TaskKind::Freeze, snapshot) {
        Some(task) if task.is_final() => Ok(()),
        Some(task) if pass.ctx.stores.agents.is_absent(&task.spec.node_name) => {
            tasks::delete(pass, &task).await
        }
        Some(task) => tasks::cancel(pass, &task).await,
        None => Ok(()),
    }
}
