//! Flattens the linked root disk of a machine, so that it needs its image no more.
//!
//! ```text
//! True NothingToPromote      no linked disk
//! True Promoted              done, for as long as the disk lives
//! True StaysLinked           the mode is Online, and the installation or the node flattens no disk of a running machine;
//!                            or the disk has snapshots, or the layer that its next backup is based on
//! True NotImplemented        the node cannot
//! False DiskPromotionPending ──task──► DiskPromotionRunning ──► Promoted
//!          ▲     ▲                             │
//!          │     └── DiskPromotionTaskTransientError, back-off
//!          └──────── DiskPromotionTaskError, until its task is swept or the machine changes
//! ```
//!
//! Invariant: one task of the machine at a time; a promotion never delays another operation of the
//! machine: one that needs the disk, or the power, cancels it.
//! Failure: the condition has the node's words; the pass goes on.

use std::sync::Arc;
use std::time::Duration;

use crds::conditions::{self, DISK_PROMOTION_STARTED, DISK_PROMOTION_SYNCED, READY, Status};
use crds::vm::PromoteDisksMode;
use crds::{PowerState, TaskKind, TaskState, VirtualMachineTask, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use lifecycle::Action;
use service::settings::Timespan;

use super::{config, tasks};
use crate::flow::{Flow, Outcome};
use crate::reconcile::backup::Kept;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::observe::backups;
use crate::reconcile::vm::observe::mode::Mode;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::observe::promotion::{
    Facts, OnlineFacts, back_off, reason_to_stop, reason_to_wait, time_to_boot,
};
use crate::reconcile::vm::observe::snapshots;
use crate::reconcile::vm::pass::Pass;

const PENDING: &str = conditions::DISK_PROMOTION_PENDING;
const RUNNING: &str = conditions::DISK_PROMOTION_RUNNING;
const TASK_ERROR: &str = "DiskPromotionTaskError";
const TRANSIENT_ERROR: &str = "DiskPromotionTaskTransientError";
/// Reason of True for a disk that was linked and is not any more.
const PROMOTED: &str = "Promoted";
/// Reason of True for a disk that stays an overlay, which its owner did not request to change.
const STAYS_LINKED: &str = "StaysLinked";

/// Why a disk stays linked.
const ONLINE: &str = "the root disk stays an overlay on its image: this installation flattens no disk of a running \
    machine (machines.online_promotion_after of the controller), and promoteDisksMode: Offline flattens it while the \
    machine is off";
const SNAPSHOTS: &str = "the root disk stays an overlay on its image for as long as it has snapshots: delete them to \
    have it flattened";
const BACKUPS: &str = "the root disk stays an overlay on its image for as long as it has the layer that its next backup \
    is based on: delete the last one of its backups, with its data, to have it flattened";

/// How often the progress of a task is looked at: its changes wake no machine.
const PROGRESS: Duration = Duration::from_secs(30);

/// Sets the conditions, and creates or cancels the task.
pub(crate) async fn run(pass: &mut Pass<'_>, action: &Action) -> Outcome {
    let mode = pass.vm.spec.promote_disks_mode;
    let mode = mode.unwrap_or(PromoteDisksMode::Online);
    let all = tasks::all(pass).into_iter();
    let mut all = all.filter(|task| task.spec.kind == TaskKind::Promote);
    let live = all.find(|task| !task.is_final());
    let is_online = mode == PromoteDisksMode::Online;
    let after = pass.ctx.config.machines.online_promotion_after;
    let is_requested = match mode {
        PromoteDisksMode::Online => after.is_some(),
        PromoteDisksMode::Offline => true,
        PromoteDisksMode::Disabled => false,
    };
    let is_other = |task: &&VirtualMachineTask| !is_requested || task.spec.online != is_online;
    let other = live.as_deref().filter(is_other);
    if let Some(task) = other {
        tasks::cancel(pass, task).await?;
    }
    if mode == PromoteDisksMode::Disabled {
        forget(pass);
        return Ok(Flow::Continue);
    }
    if !is_linked(pass) {
        pass.drop_condition(DISK_PROMOTION_STARTED);
        pass.condition(DISK_PROMOTION_SYNCED, Status::True, "", "");
        return Ok(Flow::Continue);
    }
    if reason(pass) == Some(PROMOTED) {
        promoted(pass);
        return Ok(Flow::Continue);
    }
    if !is_requested {
        stays_linked(pass, ONLINE);
        return Ok(Flow::Continue);
    }
    if let Some(why) = layers(pass) {
        if let Some(task) = &live {
            tasks::cancel(pass, task).await?;
        }
        stays_linked(pass, why);
        return Ok(Flow::Continue);
    }
    if other.is_some() {
        pending(pass, "the node ends an attempt of another mode");
        return Ok(Flow::Continue);
    }
    let online = after.filter(|_| is_online);
    let online = online.map(|after| online_facts(pass, action, after));
    let wait = match online {
        Some(facts) => reason_to_stop(facts),
        None => reason_to_wait(facts(pass, action)),
    };
    if let Some(task) = live {
        return follow(pass, &task, wait.is_some()).await;
    }
    let Some(node) = able_node(pass, is_online) else {
        return Ok(Flow::Continue);
    };
    let is_backed_up = backups::has_any(pass, Kept::Content);
    let wait = wait.or(is_backed_up.then_some("a backup of the root disk is made"));
    if let Some(why) = wait {
        pending(pass, why);
        return Ok(Flow::Continue);
    }
    match online.map(time_to_boot) {
        None | Some(Some(0)) => begin(pass, &node, is_online).await,
        Some(rest) => {
            pending(pass, "the root disk is flattened when the guest has booted");
            if let Some(rest) = rest {
                pass.requeue_within(Duration::from_secs(rest.unsigned_abs()));
            }
            Ok(Flow::Continue)
        }
    }
}

/// Why the disk has layers that are based on its image, if it has.
fn layers(pass: &Pass<'_>) -> Option<&'static str> {
    if snapshots::has_any(pass) {
        return Some(SNAPSHOTS);
    }
    backups::has_any(pass, Kept::Layer).then_some(BACKUPS)
}

/// A new disk is made: what is known is about another one.
pub(super) fn forget(pass: &mut Pass<'_>) {
    pass.drop_condition(DISK_PROMOTION_STARTED);
    pass.drop_condition(DISK_PROMOTION_SYNCED);
}

/// Follows the task in progress, or cancels it when it is in the way.
async fn follow(pass: &mut Pass<'_>, task: &VirtualMachineTask, is_in_the_way: bool) -> Outcome {
    // A machine is never kept from starting.
    if is_in_the_way {
        tasks::cancel(pass, task).await?;
        pending(pass, "the node ends an attempt for another operation");
        return Ok(Flow::Continue);
    }
    let node = &task.spec.node_name;
    match task.state() {
        Some(TaskState::Running) => {
            let status = task.status.as_ref();
            let percent = status.map_or(0, |status| status.progress_percent) / 10 * 10;
            let text = format!("node {node} flattens the root disk: {percent} %");
            pass.condition(DISK_PROMOTION_STARTED, Status::True, "", "");
            pass.condition(DISK_PROMOTION_SYNCED, Status::False, RUNNING, &text);
            pass.requeue_within(PROGRESS);
        }
        _ => {
            let text = format!("the root disk waits for other disks on node {node}");
            pending(pass, &text);
        }
    }
    Ok(Flow::Continue)
}

/// Creates the task, or deals with the last one.
async fn begin(pass: &mut Pass<'_>, node: &str, is_online: bool) -> Outcome {
    let instance = pass.instance().map(|instance| instance.uid.clone());
    let generation = pass.vm.metadata.generation.unwrap_or_default();
    // What failed for one instance or specification may succeed for the next.
    let seed = format!("{}/{generation}", instance.unwrap_or_default());
    let places = tasks::places(pass, TaskKind::Promote, &seed);
    let last = tasks::all(pass).into_iter().find(|task| {
        let is_at = |place: &crate::context::Key| {
            task.name_any() == place.name && task.namespace().as_deref() == Some(&place.namespace)
        };
        places.iter().any(is_at)
    });
    let Some(last) = last else {
        let mut task = tasks::spec(pass, node, TaskKind::Promote);
        task.online = is_online;
        tasks::ensure(pass, task, &seed).await?;
        pending(pass, "the root disk waits for its node");
        return Ok(Flow::Continue);
    };
    end(pass, &last).await
}

/// Takes over how a task ended.
async fn end(pass: &mut Pass<'_>, task: &Arc<VirtualMachineTask>) -> Outcome {
    let status = task.status.clone().unwrap_or_default();
    if status.state == Some(TaskState::Success) {
        promoted(pass);
        return Ok(Flow::Continue);
    }
    let may_pass = status.transient || status.state == Some(TaskState::Cancelled);
    let (reason, text) = match status.state {
        Some(TaskState::Cancelled) => (TRANSIENT_ERROR, "the attempt was cancelled"),
        _ if may_pass => (TRANSIENT_ERROR, status.message.as_str()),
        _ => (TASK_ERROR, status.message.as_str()),
    };
    let hold = back_off(unsynced(pass));
    pass.condition(DISK_PROMOTION_STARTED, Status::True, "", "");
    pass.condition(DISK_PROMOTION_SYNCED, Status::False, reason, text);
    if !may_pass {
        // It is swept, as every task that ended; then there is another attempt.
        return Ok(Flow::Continue);
    }
    let age = node_tasks::age(task, pass.seconds()).unwrap_or(hold);
    if age >= hold {
        tasks::delete(pass, task).await?;
        pass.requeue_within(tasks::NEXT);
    } else {
        let rest = u64::try_from(hold - age).unwrap_or_default();
        pass.requeue_within(Duration::from_secs(rest.max(1)));
    }
    Ok(Flow::Continue)
}

fn facts(pass: &Pass<'_>, action: &Action) -> Facts {
    let power = pass.seen().and_then(|status| status.power_state);
    let is_off = power.is_none_or(|power| power == PowerState::PoweredOff);
    Facts {
        has_pod: pass.view.pod.is_some(),
        stays_off: is_off && *action == Action::Nothing,
        is_paused: config::is_admin_paused(pass),
    }
}

fn online_facts(pass: &Pass<'_>, action: &Action, after: Timespan) -> OnlineFacts {
    let seen = pass.seen();
    let is_on = seen.and_then(|status| status.power_state) == Some(PowerState::PoweredOn);
    let ready = seen.and_then(|status| conditions::find(&status.conditions, READY));
    let ready = ready.filter(|ready| ready.status == "True");
    let since = ready.map(|ready| ready.last_transition_time.0.as_second());
    OnlineFacts {
        stays_on: is_on && pass.view.pod.is_some() && *action == Action::Nothing,
        is_paused: config::is_admin_paused(pass),
        ready: since.map(|since| pass.seconds().saturating_sub(since)),
        after: i64::try_from(after.get().as_secs()).unwrap_or(i64::MAX),
    }
}

/// Whether a disk that has this reason is to be flattened.
pub(crate) fn is_due(reason: &str) -> bool {
    [PENDING, RUNNING, TRANSIENT_ERROR].contains(&reason)
}

/// The root disk was made as an overlay, as far as that is known: the setting may have changed since.
fn is_linked(pass: &Pass<'_>) -> bool {
    let was_linked = reason(pass).is_some_and(|reason| {
        let kept = [PROMOTED, STAYS_LINKED, conditions::NOT_IMPLEMENTED];
        kept.contains(&reason) || reason.starts_with("DiskPromotion")
    });
    pass.root_claim().is_none() && (pass.mode == Mode::Linked || was_linked)
}

/// The node of the disk, if its programs can flatten disks; the condition says why not.
fn able_node(pass: &mut Pass<'_>, is_online: bool) -> Option<String> {
    let pod = pass.view.pod.as_deref();
    let node = pod.and_then(pods::node).map(str::to_owned);
    let Some(node) = node.or_else(|| pass.node_name()) else {
        pending(pass, "the machine has no node yet");
        return None;
    };
    let agents = &pass.ctx.stores.agents;
    if !agents.are_listed() {
        if reason(pass).is_none() {
            pending(pass, "the agents of the nodes are not known yet");
        }
        // The list wakes the machine.
        return None;
    }
    if is_online {
        if agents.has(&node, names::ONLINE_DISK_PROMOTION) {
            return Some(node);
        }
        // Its owner did not choose this mode more than others have: it is the default.
        let text = format!(
            "the root disk stays an overlay on its image: the programs of node {node} cannot flatten the disk of a \
             running machine; upgrade vmlet and vmlet-agent there"
        );
        stays_linked(pass, &text);
        return None;
    }
    if agents.has(&node, names::DISK_PROMOTION) {
        return Some(node);
    }
    // A machine that waited for it would have a raised priority indefinitely. Its agent, once it is
    // another one, wakes the machine.
    let text = format!(
        "the programs of node {node} cannot flatten disks: upgrade vmlet and vmlet-agent there"
    );
    pass.drop_condition(DISK_PROMOTION_STARTED);
    let reason = conditions::NOT_IMPLEMENTED;
    pass.condition(DISK_PROMOTION_SYNCED, Status::True, reason, &text);
    None
}

fn synced<'a>(pass: &'a Pass<'_>) -> Option<&'a Condition> {
    conditions::find(&pass.seen()?.conditions, DISK_PROMOTION_SYNCED)
}

fn reason<'a>(pass: &'a Pass<'_>) -> Option<&'a str> {
    synced(pass).map(|condition| condition.reason.as_str())
}

/// Seconds since the condition is False.
fn unsynced(pass: &Pass<'_>) -> i64 {
    let condition = synced(pass).filter(|condition| condition.status == "False");
    let since = condition.map(|condition| condition.last_transition_time.0.as_second());
    since.map_or(0, |since| pass.seconds().saturating_sub(since))
}

fn pending(pass: &mut Pass<'_>, why: &str) {
    pass.condition(DISK_PROMOTION_STARTED, Status::False, PENDING, "");
    pass.condition(DISK_PROMOTION_SYNCED, Status::False, PENDING, why);
}

/// The machine is well, and nothing waits for its disk.
fn stays_linked(pass: &mut Pass<'_>, text: &str) {
    pass.drop_condition(DISK_PROMOTION_STARTED);
    pass.condition(DISK_PROMOTION_SYNCED, Status::True, STAYS_LINKED, text);
}

fn promoted(pass: &mut Pass<'_>) {
    let text = "the root disk does not depend on its image";
    pass.condition(DISK_PROMOTION_STARTED, Status::True, "", "");
    pass.condition(DISK_PROMOTION_SYNCED, Status::True, PROMOTED, text);
}
