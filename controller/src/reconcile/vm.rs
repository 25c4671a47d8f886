//! One pass over one virtual machine.
//!
//! ```text
//! observe ─► deleted? ── yes ─► act: delete ───────────────────────────────────────────────────┐
//!               └─ no ─► no disk:  prerequisites ─► act: create (node, image, disk) ───────────┤
//!                    └─► has disk: write: status ─► observe: location ─► act: config, power ───┴─► write: patch
//! ```
//!
//! | folder | what |
//! | --- | --- |
//! | `observe/` | which pod is the machine, what it says, where its disk is; changes nothing |
//! | `prerequisites/` | class, image, network, volumes: what a machine needs, each with its condition |
//! | `act/` | pods, tasks and power: what changes the cluster |
//! | `write/` | the status, and the one place that writes what the pass found out |
//!
//! [`normal`] and [`update`] hold the order of the steps; [`pass`] what they share.
//!
//! Invariant: what a pass found out is written at its end, also when it failed; nothing is written
//! when nothing changed; no pass waits for a guest or a copy.
//! Failure: the error of the steps is the result; one of the final write only when the steps had
//! none.

mod act;
pub(crate) mod error;
mod normal;
mod observe;
mod pass;
mod prerequisites;
#[cfg(test)]
mod tests;
mod update;
mod write;

pub(crate) use act::backup::is_outdated as is_backup_outdated;
pub(crate) use act::config::is_paused_by_admin;
pub(crate) use observe::{placeholder, pods};
pub(crate) use pass::shortened;
pub(crate) use prerequisites::{VOLUME_MODE, disk_bytes, disk_uid, quantity, thousandths};

use std::time::Duration;

use crds::PowerState;
use crds::names;
use kube::ResourceExt;
use lifecycle::Failure;
use tokio::sync::mpsc;

use self::act::{delete, left_behind, slot, snapshot, tasks};
use self::observe::mode;
use self::pass::Pass;
use self::prerequisites::cache;
use self::write::{patch, status};
use super::node_tasks;
use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome, PassError};
use crate::shared::expectations;

/// One pass.
///
/// # Errors
///
/// See [`PassError`].
pub async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let ended = look_at(ctx, key).await;
    slot::pass_on_slots(ctx);
    ended
}

/// Wakes those whom the silence of an agent concerns, which no pass has seen: who waits for a slot
/// that was its, and whose work it has. Without end.
pub async fn follow_agents(ctx: &Context, wake: &mpsc::Sender<Key>) {
    loop {
        for node in ctx.stores.agents.lost().await {
            tracing::info!(node, "agent lease expired");
            for key in node_tasks::waiting(ctx, &node) {
                // The receiver was dropped: the process ends.
                let _ = wake.send(key).await;
            }
        }
        slot::pass_on_slots(ctx);
    }
}

async fn look_at(ctx: &Context, key: &Key) -> Outcome {
    // What stays for now holds up no other machine of that name.
    let tasks = left_behind::delete_tasks(ctx, key).await;
    let snapshots = left_behind::delete_snapshots(ctx, key).await;
    let flow = look_at_present(ctx, key).await?;
    tasks.and(snapshots).map(|()| flow)
}

async fn look_at_present(ctx: &Context, key: &Key) -> Outcome {
    let Some(found) = ctx.stores.vm(key) else {
        ctx.shared.expected.forget(key);
        let why = "the machine does not exist: the snapshot is taken when it does and has a disk";
        snapshot::without_disk(ctx, key, None, why).await?;
        return left_behind::release(ctx, key).await;
    };
    let now = (ctx.clock)().0.as_second();
    if ctx.shared.expected.is_old(key, &found, now) {
        // The event of our own write is on its way.
        let timeout = Duration::from_secs(expectations::TIMEOUT.unsigned_abs());
        return Ok(Flow::RequeueAfter(timeout));
    }
    let mode = mode::resolve(ctx, &found);
    let mut pass = Pass::new(ctx, key, &found, mode);
    let is_deleted = found.metadata.deletion_timestamp.is_some();
    let result = if is_deleted {
        Box::pin(delete::run(&mut pass)).await
    } else {
        Box::pin(normal::run(&mut pass)).await
    };
    conclude(&mut pass, &result);
    let written = patch::finish(&mut pass).await;
    let result = result.map(|flow| last(&pass, is_deleted, flow));
    match (result, written) {
        (Ok(flow), Ok(())) => Ok(flow),
        // What was found out is written by no other pass.
        (Ok(_), Err(error)) => Err(error),
        (Err(PassError::Failed(error)), Ok(())) => match pass.secret_due() {
            Some(after) => {
                tracing::info!(vm = %key, error = error::text(&error), ?after, "secret awaited");
                Ok(Flow::RequeueAfter(after))
            }
            None => Err(PassError::Failed(error)),
        },
        (Err(error), Ok(())) => Err(error),
        (Err(first), Err(error)) => {
            tracing::warn!(vm = %key, %error, "machine status not written");
            Err(first)
        }
    }
}

/// Conditions that depend on the result of the pass. A pass that was not allowed to do anything
/// says nothing.
fn conclude(pass: &mut Pass<'_>, result: &Outcome) {
    let is_mine = pass.base.finalizers().iter().any(|f| f == names::FINALIZER);
    let is_leaving = !pass.vm.finalizers().iter().any(|f| f == names::FINALIZER);
    if pass.is_paused() || !is_mine || is_leaving {
        return;
    }
    let failure = match result {
        Err(PassError::Failed(error)) => Some(Failure {
            reason: error::reason(error),
            message: shortened(&error::text(error)).to_owned(),
        }),
        _ => tasks::unresponsive_agent(pass),
    };
    status::conclude(pass, failure.as_ref());
    if let Err(PassError::Failed(error)) = result {
        status::without_pod(pass, error::word(error));
    }
}

/// The flow of the steps, with what is due at a time that has no event.
fn last(pass: &Pass<'_>, is_deleted: bool, flow: Flow) -> Flow {
    let after = match &flow {
        Flow::Continue => min(delay(pass, is_deleted), pass.requeue()),
        Flow::Done(_) => pass.requeue(),
        Flow::RequeueAfter(after) => min(Some(*after), pass.requeue()),
        Flow::Waiting(_) => None,
    };
    after.map_or(flow, Flow::RequeueAfter)
}

fn delay(pass: &Pass<'_>, is_deleted: bool) -> Option<Duration> {
    if is_deleted || pass.is_paused() {
        return None;
    }
    let recheck = pass.ctx.config.runner.recheck.get();
    if !pass.is_created() {
        return Some(recheck).filter(|_| !cache::is_awaited(pass));
    }
    if pass.ctx.config.machines.signals {
        return None;
    }
    let status = pass.seen()?;
    let is_on = status.power_state == Some(PowerState::PoweredOn);
    let network = status.network.as_ref();
    let has_address = network.is_some_and(|n| n.primary_ip4.is_some() || n.primary_ip6.is_some());
    (is_on && status::is_enabled(&pass.vm) && !has_address).then_some(recheck)
}

fn min(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
