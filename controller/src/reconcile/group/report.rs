//! The status of a group: its members, its change of power, `Ready`.
//!
//! | `Ready` | reason | when |
//! | --- | --- | --- |
//! | True | `Ready` | all members are linked and placed, and have the power state of the group |
//! | False | `MembersNotReady` | one is not: the message names it, and its conditions say why |
//! | False | `Error` | the groups contain each other: no member is changed |
//!
//! Invariant: written where it differs, on the version of the group that was read; a status with a change
//! of power is written before the first member is changed. What members do by themselves is written once
//! in a while: a group of a thousand has a change of one of them all the time.
//! Failure: a write that the API server refuses is repeated with the pass.

use std::collections::BTreeSet;
use std::time::Duration;

use crds::conditions::{
    self, GROUP_LINKED, MEMBER_PLACEMENT_READY, MEMBER_POWER_STATE_SYNCED, READY, Status,
};
use crds::{GroupMemberStatus, VirtualMachineGroup, VirtualMachineGroupStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::members::{ConditionState, Member, Object, enumerated};
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone};

/// Owner of the status fields.
const MANAGER: &str = "vmlet-controller";
/// Longest message about a member, in bytes: a group may have 1024 of them.
const LONGEST_OF_MEMBER: usize = 128;
/// Longest message about the group, in bytes.
const LONGEST: usize = 1024;
/// Shortest time between two writes of what is not urgent, in seconds.
const INTERVAL: u64 = 1;
/// How many members make it a second longer.
const MEMBERS_PER_SECOND: u64 = 100;

/// A member, and whether it has the power state of the group.
#[derive(Debug, Clone)]
pub(super) struct Finding<'a> {
    pub(super) member: &'a Member,
    pub(super) synced: Option<ConditionState>,
}

/// The part of the status about one member.
pub(super) fn of_member(
    group: &VirtualMachineGroup,
    finding: &Finding<'_>,
    now: &Time,
) -> GroupMemberStatus {
    let member = finding.member;
    let object = member.object.as_ref();
    let uid = object.and_then(Object::uid);
    let linked = object.filter(|_| member.unlinked.is_none());
    let old = member.reported(group).filter(|old| old.uid == uid);
    let mut all = old.map_or_else(Vec::new, |old| old.conditions.clone());
    let link = match &member.unlinked {
        None => ConditionState::met(),
        Some(why) => ConditionState::unmet(why.reason(), why.message()),
    };
    put(&mut all, GROUP_LINKED, Some(&link), now);
    let synced = finding.synced.as_ref().filter(|_| linked.is_some());
    put(&mut all, MEMBER_POWER_STATE_SYNCED, synced, now);
    let placed = linked.map(Object::is_placed);
    put(&mut all, MEMBER_PLACEMENT_READY, placed.as_ref(), now);
    let ready = linked.map(Object::is_ready);
    put(&mut all, READY, ready.as_ref(), now);
    GroupMemberStatus {
        kind: member.kind,
        name: member.name.clone(),
        uid,
        power_state: linked.and_then(Object::power_state),
        placement: linked.and_then(Object::placement),
        conditions: all,
    }
}

fn put(all: &mut Vec<Condition>, kind: &str, verdict: Option<&ConditionState>, now: &Time) {
    let Some(verdict) = verdict else {
        conditions::remove(all, kind);
        return;
    };
    let end = verdict.message.floor_char_boundary(LONGEST_OF_MEMBER);
    let message = &verdict.message[..end];
    conditions::set(
        all,
        kind,
        verdict.status,
        verdict.reason,
        message,
        None,
        now,
    );
}

/// `Ready` of the group.
pub(super) fn ready(
    status: &mut VirtualMachineGroupStatus,
    cycle: Option<&str>,
    generation: Option<i64>,
    now: &Time,
) {
    let is_good = |member: &GroupMemberStatus| {
        let counts = |one: &&Condition| one.type_ != READY;
        member
            .conditions
            .iter()
            .filter(counts)
            .all(|one| one.status == "True")
    };
    let bad = status.members.iter().filter(|member| !is_good(member));
    let bad: Vec<_> = bad.map(|member| member.name.as_str()).collect();
    let verdict = match cycle {
        Some(cycle) => ConditionState::unmet("Error", cycle),
        None if bad.is_empty() => ConditionState::met(),
        None => {
            let text = format!("conditions of members say why: {}", enumerated(&bad));
            ConditionState::unmet("MembersNotReady", text)
        }
    };
    let end = verdict.message.floor_char_boundary(LONGEST);
    let message = &verdict.message[..end];
    let all = &mut status.conditions;
    conditions::set(
        all,
        READY,
        verdict.status,
        verdict.reason,
        message,
        generation,
        now,
    );
}

/// Writes the status where it differs, and at most once in an interval if nothing in it is urgent. The rest
/// of the interval, if the write has to wait for that.
pub(super) async fn write_in_turn(
    ctx: &Context,
    group: VirtualMachineGroup,
    new: &VirtualMachineGroupStatus,
) -> Outcome<Option<Duration>> {
    let old = group.status.as_ref();
    let can_wait = old.is_some_and(|old| old != new && !is_urgent(old, new));
    let rest = ctx
        .shared
        .reports
        .rest(&Key::from_object(&group), interval(new), milliseconds(ctx));
    match rest.filter(|_| can_wait) {
        Some(rest) => Ok(Some(rest)),
        None => write(ctx, group, new).await.map(|_| None),
    }
}

fn interval(status: &VirtualMachineGroupStatus) -> Duration {
    let members = u64::try_from(status.members.len()).unwrap_or_default();
    Duration::from_secs(INTERVAL + members / MEMBERS_PER_SECOND)
}

fn milliseconds(ctx: &Context) -> i64 {
    (ctx.clock)().0.as_millisecond()
}

/// Whether the group itself has another state, or a member came, went, or cannot follow.
fn is_urgent(old: &VirtualMachineGroupStatus, new: &VirtualMachineGroupStatus) -> bool {
    let mut pairs = old.members.iter().zip(&new.members);
    headline(old) != headline(new)
        || old.members.len() != new.members.len()
        || pairs.any(|(old, new)| standing(old) != standing(new))
}

/// The change of power, and `Ready` without the names of members that are on their way.
fn headline(status: &VirtualMachineGroupStatus) -> impl PartialEq + '_ {
    let ready = conditions::find(&status.conditions, READY);
    let ready = ready.map(|ready| {
        let message = Some(&ready.message).filter(|_| ready.reason == "Error");
        (
            &ready.status,
            &ready.reason,
            ready.observed_generation,
            message,
        )
    });
    let last = status.last_updated_power_state_time.as_ref();
    (&status.power_change, last, ready)
}

/// Whether a member belongs to the group, and why it does not follow.
fn standing(member: &GroupMemberStatus) -> impl PartialEq + '_ {
    let link = conditions::find(&member.conditions, GROUP_LINKED);
    (
        member.kind,
        &member.name,
        link.map(|link| (&link.status, &link.reason)),
        refusal(member).map(|refusal| &refusal.reason),
    )
}

/// The condition of a member that cannot follow the group.
fn refusal(member: &GroupMemberStatus) -> Option<&Condition> {
    let found = conditions::find(&member.conditions, MEMBER_POWER_STATE_SYNCED);
    found.filter(|found| matches!(found.reason.as_str(), "NotSupported" | super::REFUSED))
}

/// Writes the status where it differs; the group as it is then.
pub(super) async fn write(
    ctx: &Context,
    group: VirtualMachineGroup,
    new: &VirtualMachineGroupStatus,
) -> Outcome<Option<VirtualMachineGroup>> {
    if group.status.as_ref() == Some(new) {
        return Ok(Some(group));
    }
    let namespace = group.namespace().unwrap_or_default();
    let name = group.name_any();
    let body = json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "VirtualMachineGroup",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": group.uid(),
            "resourceVersion": group.metadata.resource_version,
        },
        "status": new,
    });
    let api = Api::<VirtualMachineGroup>::namespaced(ctx.client.clone(), &namespace);
    let params = PatchParams::apply(MANAGER).force();
    match api.patch_status(&name, &params, &Patch::Apply(body)).await {
        Ok(written) => {
            ctx.shared
                .reports
                .wrote(&Key::from_object(&group), milliseconds(ctx));
            record_events(ctx, &group, new);
            Ok(Some(written))
        }
        // Deleted, or made again.
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => {
            let error = anyhow::Error::new(source);
            let text = format!("failed to write the status of group {namespace}/{name}");
            Err(PassError::Failed(error.context(text)))
        }
    }
}

/// What is new about the change of power, `Ready`, and members that cannot follow.
fn record_events(ctx: &Context, group: &VirtualMachineGroup, new: &VirtualMachineGroupStatus) {
    let old = group.status.clone().unwrap_or_default();
    let time = |status: &VirtualMachineGroupStatus| {
        status
            .power_change
            .as_ref()
            .map(|change| change.time.clone())
    };
    if let Some(change) = new
        .power_change
        .as_ref()
        .filter(|_| time(&old) != time(new))
    {
        let text = format!("members receive {:?}", change.power_state);
        ctx.events.normal(group, "PowerStateChanged", &text);
    }
    if new.last_updated_power_state_time != old.last_updated_power_state_time {
        let text = "all members have received the power state";
        ctx.events.normal(group, "PowerStateApplied", text);
    }
    let failed = |status: &VirtualMachineGroupStatus| {
        let ready = conditions::find(&status.conditions, READY).cloned();
        ready
            .filter(|ready| ready.reason == "Error")
            .map(|ready| ready.message)
    };
    if let Some(message) = failed(new).filter(|message| failed(&old).as_ref() != Some(message)) {
        ctx.events.warning(group, "GroupCycle", &message);
    }
    let refusals = |status: &VirtualMachineGroupStatus| {
        let of_member = |member: &GroupMemberStatus| {
            let found = refusal(member)?;
            Some(format!("{}: {}", member.name, found.message))
        };
        status
            .members
            .iter()
            .filter_map(of_member)
            .collect::<BTreeSet<_>>()
    };
    let before = refusals(&old);
    for refusal in refusals(new).difference(&before) {
        ctx.events.warning(group, "PowerStateNotApplied", refusal);
    }
}

/// Whether a condition of a member is True.
pub(super) fn is_true(member: &GroupMemberStatus, kind: &str) -> bool {
    let found = conditions::find(&member.conditions, kind);
    found.is_some_and(|found| found.status == Status::True.as_str())
}
