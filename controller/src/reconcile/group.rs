//! One pass over one group of machines.
//!
//! ```text
//! cycle? ── yes ─► Ready: Error, no member is changed
//!    └─ no ─► members ─► a new change of power? ─► status with the change ─► times of the tiers ─► members ─► status
//! ```
//!
//! A machine waits for its group before its disk is made and before its first start
//! ([`crate::reconcile::vm`]); it obeys the time that its group writes by itself.
//!
//! Invariant: a change of power is on record before a member is changed, and a member is given each
//! change once: what is changed directly after that stays. A pass waits for no guest; nothing is written
//! when nothing changed.
//! Failure: a member that is missing, does not name the group or cannot follow shows in its conditions, and
//! the others go on.

mod change;
pub(crate) mod family;
mod members;
pub(crate) mod placement;
mod push;
mod report;
mod synced;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::conditions::{MEMBER_POWER_STATE_SYNCED, READY};
use crds::{GroupMemberStatus, VirtualMachineGroup, VirtualMachineGroupStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use self::change::Schedule;
use self::members::{ConditionState, Member};
use self::report::Finding;
use self::synced::{REFUSED, Standard};
use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::answers::again;
use crate::shared::expectations;

/// One pass.
///
/// # Errors
///
/// What the API server reports of a write; see [`PassError`].
pub async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let group = family::find(&ctx.stores, key);
    let group = group.filter(|group| group.metadata.deletion_timestamp.is_none());
    let Some(group) = group else {
        ctx.shared.reports.forget(key);
        return Ok(Flow::Continue);
    };
    match family::cycle(&ctx.stores, &group) {
        Some(cycle) => reject(ctx, &group, &cycle).await,
        None => serve(ctx, &group).await,
    }
}

/// The groups contain each other: which one is to change first is not defined.
async fn reject(ctx: &Context, group: &VirtualMachineGroup, cycle: &str) -> Outcome {
    let now = change::seconds((ctx.clock)().0);
    let mut status = group.status.clone().unwrap_or_default();
    let members = members::all(&ctx.stores, group);
    let finding = |member| Finding {
        member,
        synced: None,
    };
    let draft = members
        .iter()
        .map(|member| report::of_member(group, &finding(member), &now));
    status.members = draft.collect();
    report::ready(&mut status, Some(cycle), group.metadata.generation, &now);
    let rest = report::write_in_turn(ctx, group.clone(), &status).await?;
    Ok(rest.map_or(Flow::Continue, Flow::RequeueAfter))
}

async fn serve(ctx: &Context, group: &Arc<VirtualMachineGroup>) -> Outcome {
    let time = change::seconds((ctx.clock)().0);
    let now = time.0;
    let members = members::all(&ctx.stores, group);
    let above = family::of_group(&ctx.stores, group).and_then(Result::ok);
    let above = above.map(|above| {
        let uid = above.uid().unwrap_or_default();
        (uid, above.spec.power_state.is_some())
    });
    let above = above
        .as_ref()
        .map(|(uid, desires)| (uid.as_str(), *desires));
    let due = change::due(group, above, now);
    let mut status = group.status.clone().unwrap_or_default();
    status.power_change = due.change;
    draft(group, &members, &mut status, now);
    let schedule = schedule(ctx, group, &mut status, now);
    if schedule.is_some() {
        // Members of a tier that no longer waits.
        draft(group, &members, &mut status, now);
    }
    applied(group, &members, &mut status, now);
    let changes = status.power_change != group.status.as_ref().and_then(|s| s.power_change.clone());
    let mut written = VirtualMachineGroup::clone(group);
    if changes {
        let Some(new) = report::write(ctx, written, &status).await? else {
            return Ok(Flow::Continue);
        };
        written = new;
    }
    let standard = Standard {
        group,
        change: status.power_change.as_ref(),
        now,
    };
    let pushed = push::run(ctx, &standard, &members).await;
    for (index, why) in &pushed.refused {
        let finding = Finding {
            member: &members[*index],
            synced: Some(ConditionState::unmet(REFUSED, why)),
        };
        status.members[*index] = report::of_member(group, &finding, &time);
    }
    let rest = report::write_in_turn(ctx, written, &status).await?;
    if let Some(error) = pushed.error {
        return Err(PassError::Failed(error));
    }
    if pushed.conflicts > 0 {
        return Err(again());
    }
    let gate = schedule.and_then(|schedule| schedule.gate);
    // The event of the write wakes the group before that.
    let early = now.checked_add(SignedDuration::from_secs(expectations::TIMEOUT));
    let early = early.ok().filter(|_| pushed.is_early);
    let until = gate.and_then(|gate| gate.until);
    let again = gate.and_then(|gate| gate.again);
    let next = [due.next, until, again, early].into_iter().flatten().min();
    let left = next.map(|at| {
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        left.max(Duration::from_secs(1))
    });
    let after = left.into_iter().chain(rest).min();
    Ok(after.map_or(Flow::Continue, Flow::RequeueAfter))
}

/// What the members show, in the status.
fn draft(
    group: &VirtualMachineGroup,
    members: &[Member],
    status: &mut VirtualMachineGroupStatus,
    now: Timestamp,
) {
    let time = Time(now);
    let change = status.power_change.clone();
    let standard = Standard {
        group,
        change: change.as_ref(),
        now,
    };
    let of_member = |member| {
        let finding = Finding {
            member,
            synced: standard.compare(member),
        };
        report::of_member(group, &finding, &time)
    };
    status.members = members.iter().map(of_member).collect();
    report::ready(status, None, group.metadata.generation, &time);
}

/// Adds the times of the tiers that are known now.
fn schedule(
    ctx: &Context,
    group: &VirtualMachineGroup,
    status: &mut VirtualMachineGroupStatus,
    now: Timestamp,
) -> Option<Schedule> {
    let change = status.power_change.as_mut()?;
    let is_up = |member: &GroupMemberStatus| {
        report::is_true(member, MEMBER_POWER_STATE_SYNCED) && report::is_true(member, READY)
    };
    let shown = status.members.iter();
    let up: BTreeMap<_, _> = shown
        .map(|member| ((member.kind, member.name.as_str()), is_up(member)))
        .collect();
    let is_ready = |tier: usize| {
        let mut listed = group.spec.boot_order[tier].members.iter();
        listed.all(|one| up.get(&(one.kind, one.name.as_str())) == Some(&true))
    };
    let made = change::schedule(change, &group.spec.boot_order, is_ready, now);
    for tier in &made.overdue {
        let text = format!(
            "tier {} is powered on although tier {tier} is not ready after readyTimeout",
            tier + 1
        );
        ctx.events.warning(group, "ReadyTimeout", &text);
    }
    change.tier_times.clone_from(&made.times);
    Some(made)
}

/// Records that every member has received the change.
fn applied(
    group: &VirtualMachineGroup,
    members: &[Member],
    status: &mut VirtualMachineGroupStatus,
    now: Timestamp,
) {
    let change = status.power_change.clone();
    let standard = Standard {
        group,
        change: change.as_ref(),
        now,
    };
    let has_it = |member: &Member| {
        let object = member.object.as_ref();
        member.unlinked.is_none() && object.is_some_and(|object| standard.is_given(object))
    };
    let Some(change) = &change else { return };
    let last = status.last_updated_power_state_time.as_ref();
    let is_recorded = last.is_some_and(|last| last.0 >= change.time.0);
    if !is_recorded && members.iter().all(has_it) {
        let time = now.max(change.time.0).as_second();
        let time = Timestamp::from_second(time).unwrap_or(now);
        status.last_updated_power_state_time = Some(Time(time));
    }
}
