//! Takes the oldest snapshot of a machine that is still to be taken.
//!
//! Invariant: one at a time; the node takes its disk before the storage system takes claims, both while the guest is frozen
//! if that is requested; the manifest is written before the task is created, and the machine names
//! the snapshot as its current one before the snapshot is shown as taken: each step can be repeated. A
//! snapshot that failed stays so: another object is another snapshot.
//! Failure: a failure that may pass is repeated with a growing delay; any other is final and has the
//! node's words.

use std::time::Duration;

use crds::conditions::{SNAPSHOT_CREATED, Status};
use crds::{
    PowerState, RawRecord, SnapshotRequest, SnapshotStorage, TaskKind, TaskState,
    VirtualMachineSnapshot, VirtualMachineSnapshotStatus, VirtualMachineTask,
};
use kube::ResourceExt;
use lifecycle::snapshot::{
    Verdict, consistency, freezes_claims, manifest, quiesce_seconds, verdict,
};

use super::claims::{self, Progress};
use super::freeze::{self, Step, Thaw};
use super::{IN_PROGRESS, MOST, WAITING_FOR_DISK, delete, wait, wait_with};
use crate::flow::Outcome;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::act::{saved, tasks};
use crate::reconcile::vm::observe::content;
use crate::reconcile::vm::observe::promotion::back_off;
use crate::reconcile::vm::observe::snapshots::{self, CREATION_FAILED};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::quantity;
use crate::reconcile::vm::write::{patch, snapshot as write};

/// Longest delay before an attempt is repeated, in seconds: shorter than a task that ended is kept.
const LONGEST_HOLD: i64 = 300;

/// Longest time for which a guest is frozen again that thaws too early, in seconds.
const LONGEST_TRIES: i64 = 900;

pub(super) async fn run(pass: &mut Pass<'_>, all: &mut [VirtualMachineSnapshot]) -> Outcome<()> {
    let disk = pass.disk_uid();
    let is_deleting = all.iter().any(delete::is_under_way);
    let is_there = |one: &&VirtualMachineSnapshot| one.is_created();
    let count = all.iter().filter(is_there);
    let count = count
        .filter(|one| snapshots::is_of_disk(one, &disk))
        .count();
    let known = tasks::all(pass).into_iter();
    let makes = [TaskKind::Snapshot, TaskKind::Freeze];
    let known = known.filter(|task| makes.contains(&task.spec.kind));
    let known: Vec<_> = known
        .filter_map(|task| Some(task.spec.snapshot.as_ref()?.uid.clone()))
        .collect();
    let open = all.iter_mut().filter(|one| snapshots::is_open(one));
    let mut open: Vec<_> = open.collect();
    // One that was requested ends before the next begins, also if that is as old.
    let is_requested = |one: &VirtualMachineSnapshot| {
        claims::are_begun(one) || one.uid().is_some_and(|uid| known.contains(&uid))
    };
    if let Some(first) = open.iter().position(|one| is_requested(one)) {
        open[..=first].rotate_right(1);
    }
    let mut open = open.into_iter();
    let Some(oldest) = open.next() else {
        return Ok(());
    };
    // The rest has its turn later.
    for later in open.take(MOST) {
        let why = "an older snapshot of the machine is taken first";
        wait(pass.ctx, later, IN_PROGRESS, why).await?;
    }
    let strange = snapshots::recorded_disk(oldest).is_some_and(|known| known != disk);
    if strange {
        let why = "the disk that it was requested of no longer exists";
        return fail(pass, oldest, why).await;
    }
    if snapshots::is_restored(oldest) {
        let why = "its object was restored from a backup or copied, and the disk has no snapshot of \
                   it: delete it, and create one without the annotation vmlet.dev/snapshot-uid";
        return fail(pass, oldest, why).await;
    }
    if claims::are_begun(oldest) {
        return take_claims(pass, oldest).await;
    }
    if is_deleting {
        freeze::cancel(pass, oldest).await?;
        let why = "a snapshot of the machine is being deleted";
        return wait(pass.ctx, oldest, IN_PROGRESS, why).await;
    }
    if let Some(task) = snapshots::task(pass, TaskKind::Snapshot, oldest) {
        return follow(pass, oldest, &task).await;
    }
    match snapshots::task(pass, TaskKind::Freeze, oldest) {
        Some(task) => follow_freeze(pass, oldest, &task).await,
        None => decide(pass, oldest, count).await,
    }
}

async fn decide(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    count: usize,
) -> Outcome<()> {
    let node = snapshots::node(pass).unwrap_or_default();
    let claims = snapshots::Claims::new(pass);
    let mut facts = snapshots::facts(pass, &node, &claims, count);
    let uid = snapshot.uid().unwrap_or_default();
    let [own, _] = tasks::places(pass, TaskKind::Snapshot, &uid);
    facts.is_busy |= tasks::is_awaited(pass, Some(&own));
    match verdict(&snapshot.spec, &pass.base.spec, &facts) {
        Verdict::Take => begin(pass, snapshot, &node).await,
        Verdict::WaitForDisk(why) => wait(pass.ctx, snapshot, WAITING_FOR_DISK, why).await,
        Verdict::Wait(why) => wait(pass.ctx, snapshot, IN_PROGRESS, &why).await,
        Verdict::Refuse(why) => fail(pass, snapshot, &why).await,
    }
}

/// Records what the snapshot is of, and lets the node take it, or freeze the guest for it.
async fn begin(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    node: &str,
) -> Outcome<()> {
    let mut record = manifest::record(&pass.base);
    if snapshot.spec.memory
        && let Some(devices) = saved::devices_of_pod(pass)
    {
        record[saved::DEVICES] = devices;
    }
    if let Some(content) = content::present(pass) {
        record[content::KEY] = content;
    }
    let record = RawRecord::from(&record);
    if record.fields().is_none() {
        let most = RawRecord::MOST / 1024;
        let why = format!(
            "specification, labels and annotations of the machine have more than {most} KiB as JSON, \
             which a snapshot records: move user data into a Secret"
        );
        return fail(pass, snapshot, &why).await;
    }
    let disks = snapshots::claimed(pass);
    if !disks.is_empty() && !claims::are_served(pass).await? {
        let names: Vec<_> = disks.iter().map(|disk| disk.claim.as_str()).collect();
        let why = format!(
            "the machine has claims, which the snapshot would not contain: {}; the cluster does not serve {}: \
             install the snapshot controller of Kubernetes and its definitions",
            names.join(", "),
            claims::API
        );
        return fail(pass, snapshot, &why).await;
    }
    write::claim(pass.ctx, snapshot, pass.owner()).await?;
    let mut draft = snapshot.status.clone().unwrap_or_default();
    if !was_requested(pass, snapshot) {
        draft.disk_uid = Some(pass.disk_uid());
        draft.manifest = Some(record);
        draft.claims = claims::records(snapshot, &disks);
        draft.power_state = snapshots::power_state(pass);
        draft.parent = pass.seen().and_then(|seen| seen.current_snapshot.clone());
    }
    if freezes_claims(&snapshot.spec, !draft.claims.is_empty(), draft.power_state) {
        let text = freeze::begins(node);
        wait_with(pass.ctx, snapshot, draft, IN_PROGRESS, &text).await?;
        return freeze::begin(pass, snapshot, node).await;
    }
    take(pass, snapshot, draft, node).await
}

/// Lets the node take its disk; where it has none, the storage system takes the claims.
async fn take(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    mut draft: VirtualMachineSnapshotStatus,
    node: &str,
) -> Outcome<()> {
    let has_claims = !draft.claims.is_empty();
    if pass.root_claim().is_some() {
        claims::begin(pass, &mut draft);
        let text = "the storage system takes the snapshot";
        wait_with(pass.ctx, snapshot, draft, IN_PROGRESS, text).await?;
        return take_claims(pass, snapshot).await;
    }
    let text = format!("node {node} takes the snapshot");
    wait_with(pass.ctx, snapshot, draft, IN_PROGRESS, &text).await?;
    let uid = snapshot.uid().unwrap_or_default();
    let mut task = tasks::spec(pass, node, TaskKind::Snapshot);
    task.snapshot = Some(SnapshotRequest {
        uid: uid.clone(),
        // A freeze for the disk of the node alone would end before the claims are taken.
        quiesce_seconds: quiesce_seconds(&snapshot.spec).filter(|_| !has_claims),
        memory: snapshot.spec.memory,
    });
    tasks::ensure(pass, task, &uid).await.map(drop)
}

/// Takes the disks once the guest is frozen.
async fn follow_freeze(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    task: &VirtualMachineTask,
) -> Outcome<()> {
    let node = &task.spec.node_name;
    let draft = snapshot.status.clone().unwrap_or_default();
    if freeze::is_lost(pass, task) {
        let why = "it does not answer";
        return repeat(pass, snapshot, task, why).await;
    }
    match freeze::step(pass, task) {
        Step::Begins => wait(pass.ctx, snapshot, IN_PROGRESS, &freeze::begins(node)).await,
        // Without a manifest the node failed to take its disk: the next attempt is of another time.
        Step::Frozen if draft.manifest.is_some() => take(pass, snapshot, draft, node).await,
        Step::Frozen | Step::Over if pass.seconds() - begun(snapshot) > LONGEST_TRIES => {
            let why = "the guest thaws before its disks are taken: create a snapshot with a longer quiesce.timeout, of a minute at \
                       most, or without quiesce";
            fail(pass, snapshot, why).await
        }
        Step::Frozen | Step::Over => {
            let why = "the guest thawed before its disks were taken";
            repeat(pass, snapshot, task, why).await
        }
        Step::Failed(why, true) => repeat(pass, snapshot, task, &why).await,
        Step::Failed(why, false) => fail(pass, snapshot, &why).await,
    }
}

/// It was requested at this place of the tree, and no attempt is known to have failed: the node may have it,
/// as of then.
fn was_requested(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
    let Some(status) = &snapshot.status else {
        return false;
    };
    let seen = pass.seen();
    let current = seen.and_then(|seen| seen.current_snapshot.as_ref());
    let is_current = current.is_some_and(|current| current.uid == snapshot.uid());
    let is_same_place = is_current || status.parent.as_ref() == current;
    let is_recorded = status.manifest.is_some() && status.disk_uid == Some(pass.disk_uid());
    is_recorded && is_same_place
}

async fn follow(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    task: &VirtualMachineTask,
) -> Outcome<()> {
    let status = task.status.clone().unwrap_or_default();
    let node = &task.spec.node_name;
    match status.state {
        None | Some(TaskState::Queued | TaskState::Running) => {
            let text = format!("node {node} takes the snapshot");
            wait(pass.ctx, snapshot, IN_PROGRESS, &text).await
        }
        Some(TaskState::Success) => finish(pass, snapshot, task).await,
        Some(TaskState::Error) if !status.transient => fail(pass, snapshot, &status.message).await,
        Some(TaskState::Cancelled) => repeat(pass, snapshot, task, "it was cancelled").await,
        Some(TaskState::Error) => repeat(pass, snapshot, task, &status.message).await,
    }
}

/// Seconds since 1970 since which the snapshot is not taken.
fn begun(snapshot: &VirtualMachineSnapshot) -> i64 {
    let since = snapshot.condition(SNAPSHOT_CREATED);
    since.map_or(0, |created| created.last_transition_time.0.as_second())
}

/// An attempt failed, and another one may succeed.
async fn repeat(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    task: &VirtualMachineTask,
    why: &str,
) -> Outcome<()> {
    let node = &task.spec.node_name;
    let text = format!("node {node} failed to take the snapshot, and tries again: {why}");
    // The guest writes on until then.
    freeze::cancel(pass, snapshot).await?;
    wait(pass.ctx, snapshot, IN_PROGRESS, &text).await?;
    let hold = back_off(pass.seconds().saturating_sub(begun(snapshot))).min(LONGEST_HOLD);
    let age = node_tasks::age(task, pass.seconds()).unwrap_or(hold);
    if age >= hold {
        // The next attempt is of another time.
        let mut draft = snapshot.status.clone().unwrap_or_default();
        draft.manifest = None;
        write::status(pass.ctx, snapshot, draft).await?;
        tasks::delete(pass, task).await?;
        pass.requeue_within(tasks::NEXT);
        return Ok(());
    }
    let rest = u64::try_from(hold - age).unwrap_or_default();
    pass.requeue_within(Duration::from_secs(rest.max(1)));
    Ok(())
}

async fn finish(
    pass: &mut Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    task: &VirtualMachineTask,
) -> Outcome<()> {
    pass.status().current_snapshot = Some(snapshot.reference());
    patch::status(pass).await?;
    let mut draft = snapshot.status.clone().unwrap_or_default();
    draft.unique_id = snapshot.uid();
    let taken = task
        .status
        .as_ref()
        .and_then(|status| status.snapshot.as_ref());
    let memory = taken.map_or(0, |taken| taken.memory_bytes);
    if snapshot.spec.memory && memory == 0 {
        let why = "the node has taken the snapshot without the memory of the guest: delete it, upgrade vmlet and vmlet-agent \
                   there, and create another one";
        return fail(pass, snapshot, why).await;
    }
    draft.memory = memory > 0;
    if let Some(taken) = taken {
        draft.quiesced = taken.quiesced;
        draft.power_state = Some(if taken.running {
            PowerState::PoweredOn
        } else {
            PowerState::PoweredOff
        });
        draft.creation_time.clone_from(&taken.created_time);
        draft.storage = Some(SnapshotStorage {
            requested: Some(quantity(taken.virtual_bytes.saturating_add(memory).into())),
            used: Some(quantity(taken.used_bytes.into())),
        });
    }
    if !draft.claims.is_empty() {
        // What the node has taken is on record, whatever becomes of the rest.
        claims::begin(pass, &mut draft);
        write::status(pass.ctx, snapshot, draft).await?;
        return take_claims(pass, snapshot).await;
    }
    let text = format!("node {} has taken the snapshot", task.spec.node_name);
    complete(pass, snapshot, draft, &text).await
}

/// Lets the storage system take the claims, the last step of a machine that has some.
async fn take_claims(pass: &mut Pass<'_>, snapshot: &mut VirtualMachineSnapshot) -> Outcome<()> {
    let mut draft = snapshot.status.clone().unwrap_or_default();
    match claims::take(pass, snapshot, &mut draft).await? {
        Progress::Waits(why) => wait_with(pass.ctx, snapshot, draft, IN_PROGRESS, &why).await,
        Progress::Failed(why) => fail(pass, snapshot, &why).await,
        Progress::Taken => {
            match freeze::end(pass, snapshot).await? {
                Thaw::Requested(why) => {
                    return wait_with(pass.ctx, snapshot, draft, IN_PROGRESS, &why).await;
                }
                Thaw::Done { quiesced } => draft.quiesced = quiesced,
            }
            let times = draft.claims.iter();
            let times = times.filter_map(|record| record.creation_time.clone());
            let last = times.max_by_key(|time| time.0);
            draft.creation_time = draft.creation_time.or(last);
            let text = "the storage system has taken snapshots of all claims";
            complete(pass, snapshot, draft, text).await
        }
    }
}

async fn complete(
    pass: &Pass<'_>,
    snapshot: &mut VirtualMachineSnapshot,
    mut draft: VirtualMachineSnapshotStatus,
    text: &str,
) -> Outcome<()> {
    let state = (Status::True, "", consistency(&snapshot.spec, &draft));
    write::condition(pass.ctx, snapshot, &mut draft, SNAPSHOT_CREATED, state);
    claims::conditions(pass, snapshot, &mut draft);
    write::status(pass.ctx, snapshot, draft).await?;
    pass.ctx.events.normal(snapshot, "SnapshotCreated", text);
    Ok(())
}

/// The snapshot is not taken, and never will be.
async fn fail(pass: &Pass<'_>, snapshot: &mut VirtualMachineSnapshot, why: &str) -> Outcome<()> {
    freeze::cancel(pass, snapshot).await?;
    wait(pass.ctx, snapshot, CREATION_FAILED, why).await?;
    pass.ctx.events.warning(snapshot, "SnapshotFailed", why);
    Ok(())
}
