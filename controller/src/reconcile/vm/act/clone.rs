//! Makes the root disk of a clone, on the node of its source, or from a backup, on a node that reaches its target.
//!
//! ```text
//! source runs ─► snapshot of it ([`snapshot`]) ─┐
//! source ready ─────────────────────────────────┴─► slot of the node ─► status.nodeName ─► CloneDisk or RestoreBackup task ─► Created
//! ```
//!
//! Invariant: no scheduler chooses the node: the disk is copied where its source is. The node is recorded
//! before a task exists there, so that the deletion of the machine finds what the node may have. The source is neither
//! held nor changed in the cluster: its node keeps it as it is while it is copied. No author is judged
//! again after a copy was begun: the task of an attempt is replaced by that of the next one in one pass.
//! Failure: `VirtualMachineSourceReady` is False while the source cannot be copied; what the node reports is in
//! `VirtualMachineCreated`, and the pass is repeated.

mod right;
pub(crate) mod snapshot;

use std::time::Duration;

use crds::conditions::{SOURCE_READY, Status, find};
use crds::{DiskSource, TaskKind, VirtualMachineTask};

use super::tasks::{self, Progress};
use super::{promotion, provision, slot};
use crate::flow::{Flow, Outcome};
use crate::reconcile::backup::claim::{self, Desired, Mount, Usable};
use crate::reconcile::node_tasks;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::promotion::back_off;
use crate::reconcile::vm::observe::root_disk;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, Missing, unsupported};
use crate::reconcile::vm::write::patch;

/// Reason of [`SOURCE_READY`], True: the node copies it.
const COPYING: &str = "Copying";

/// Reason of [`SOURCE_READY`], False: the API server has not judged the right of the machine's author.
const FORBIDDEN: &str = "Forbidden";

/// How often the progress of a task is looked at: its changes wake no machine.
const PROGRESS: Duration = Duration::from_secs(30);

/// Longest delay before an attempt whose failure may pass is repeated, in seconds.
const LONGEST_HOLD: i64 = 300;

/// Whether the machine is a clone.
pub(crate) fn is_wanted(pass: &Pass<'_>) -> bool {
    pass.vm.spec.source.is_some() && pass.root_claim().is_none()
}

/// The task that makes the disk of a machine with a source.
pub(super) fn kind(pass: &Pass<'_>) -> TaskKind {
    let source = pass.vm.spec.source.as_ref();
    if source.is_some_and(|source| source.backup.is_some()) {
        TaskKind::RestoreBackup
    } else {
        TaskKind::CloneDisk
    }
}

/// One step towards the disk.
pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome {
    unsupported::run(pass, None);
    let mut source = prerequisites::source(pass);
    let begins = provision::task(pass).is_none();
    let is_usable = source
        .as_ref()
        .map_or_else(|missing| missing.needs_snapshot.is_some(), |_| true);
    let refusal = if begins && is_usable {
        right::refusal(pass).await?
    } else {
        None
    };
    if let Some(why) = refusal {
        source = Err(Missing::new(FORBIDDEN, why).unwatched());
    }
    prerequisites::show_source(pass, &source);
    if source.is_err() {
        // The deletion of the backup, say, may need the claim on another node.
        leave_claim(pass).await?;
    }
    // All that is missing shows at once.
    prerequisites::all(pass).await?;
    prerequisites::disks(pass).await?;
    let source = match source {
        Ok(source) => source,
        // No snapshot is taken for an author whose right was not judged.
        Err(missing) if missing.is_unwatched => {
            return Err(Error::Unwatched(missing.message).into());
        }
        Err(missing) => {
            if let Some(node) = &missing.needs_snapshot {
                stays_on_node(pass, node)?;
            }
            // Last, so that the source has no snapshot for a clone that lacks something else.
            snapshot::prepare(pass, &missing).await?;
            if missing.waits_for_source() {
                return Ok(Flow::Waiting(missing.message));
            }
            return Err(Error::NotReady(missing.message).into());
        }
    };
    let node = source.node.clone();
    stays_on_node(pass, &node)?;
    if let Some(error) = held_back(pass) {
        return Err(error.into());
    }
    let Some(slot) = slot::take_slot(pass, Some(&node)) else {
        return Ok(slot::no_slot(pass));
    };
    // Before the node is on record: it may never mount the claim, and another one takes its place then.
    if let Some(claim) = &source.claim
        && let Mount::Waits(why) = mount(pass, claim, &node).await?
    {
        pass.condition(SOURCE_READY, Status::True, COPYING, &why);
        return Ok(Flow::RequeueAfter(PROGRESS));
    }
    // What is known is about another disk.
    promotion::forget(pass);
    let is_of_another_size = root_disk::record_source(pass, source.virtual_bytes);
    provision::record(pass, &node).await?;
    if is_of_another_size {
        // The source has grown since an earlier attempt.
        patch::status(pass).await?;
    }
    let mut spec = tasks::spec(pass, &node, kind(pass));
    spec.image = source.image;
    spec.image_url = source.image_url;
    match source.backup {
        Some(backup) => spec.backup = Some(backup),
        None => {
            spec.source = Some(DiskSource {
                disk_uid: source.disk_uid,
                snapshot_uid: source.snapshot_uid,
            });
        }
    }
    let wanted = pass.vm.spec.boot_disk_capacity.as_ref();
    spec.size_bytes = wanted
        .and_then(prerequisites::bytes)
        .and_then(|bytes| i64::try_from(bytes).ok());
    let uid = pass.uid();
    match tasks::ensure(pass, spec.clone(), &uid).await? {
        Progress::Running => {}
        Progress::Done => return Ok(Flow::Continue),
        // In this pass: without a task the next one would judge the author again, by the policy as it is then.
        Progress::Removed => tasks::repeat(pass, spec, &uid).await?,
        Progress::Cancelled => {
            if let Some(task) = provision::task(pass) {
                tasks::delete(pass, &task).await?;
            }
            tasks::repeat(pass, spec, &uid).await?;
        }
    }
    slot.keep();
    pass.postpone_status();
    Ok(slot::is_being_made(pass))
}

/// A copy that was begun on one node is not continued on another, which may not have what the first one has.
fn stays_on_node(pass: &Pass<'_>, node: &str) -> Result<(), Error> {
    let Some(begun) = pass.node_name().filter(|begun| begun != node) else {
        return Ok(());
    };
    let text = format!(
        "the copy was begun on node {begun}, and the source is on node {node} now: delete this machine, and create \
         it again"
    );
    Err(Error::NotReady(text))
}

/// Has the claim with the backup mounted on the node, by a pod of this machine.
async fn mount(pass: &Pass<'_>, claim: &Usable, node: &str) -> Outcome<Mount> {
    let desired = Desired {
        namespace: &pass.key.namespace,
        claim,
        node,
        owner: pass.owner(),
    };
    claim::mount(pass.ctx, &desired).await
}

/// The disk is made, or cannot be made now: no node needs the claim for this machine.
pub(super) async fn leave_claim(pass: &Pass<'_>) -> Outcome<()> {
    if !is_wanted(pass) || kind(pass) != TaskKind::RestoreBackup {
        return Ok(());
    }
    claim::unmount(pass.ctx, &pass.key.namespace, &pass.owner()).await
}

/// The failure of the last attempt, if that may pass and the next one is not due yet.
fn held_back(pass: &Pass<'_>) -> Option<Error> {
    let task = provision::task(pass)?;
    let status = task.status.as_ref().filter(|status| status.transient)?;
    let conditions = &pass.seen()?.conditions;
    let ready = find(conditions, SOURCE_READY)?;
    let since = ready.last_transition_time.0.as_second();
    let hold = back_off(pass.seconds().saturating_sub(since)).min(LONGEST_HOLD);
    let age = node_tasks::age(&task, pass.seconds())?;
    (age < hold).then(|| Error::Task {
        kind: task.spec.kind,
        node: task.spec.node_name.clone(),
        message: status.message.clone(),
    })
}

/// Says how far the node is.
pub(super) fn follow(pass: &mut Pass<'_>, task: &VirtualMachineTask) {
    let status = task.status.as_ref();
    let percent = status.map_or(0, |status| status.progress_percent) / 10 * 10;
    let node = &task.spec.node_name;
    let text = match task.spec.kind {
        TaskKind::RestoreBackup => {
            format!("node {node} makes the root disk from the backup: {percent} %")
        }
        _ => format!("node {node} copies the root disk: {percent} %"),
    };
    pass.condition(SOURCE_READY, Status::True, COPYING, &text);
    pass.requeue_within(PROGRESS);
}

/// The disk is made: nothing depends on the source any more.
pub(super) fn forget_source(pass: &mut Pass<'_>) {
    pass.drop_condition(SOURCE_READY);
}
