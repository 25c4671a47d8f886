//! `--watch` of groups: a line whenever a member changes, until the group has done what was requested.
//!
//! Invariant: it only reads. What a group reports of an earlier request is no answer.
//! Failure: the group was deleted, or members do not follow it and will not by themselves.

use std::collections::HashMap;
use std::pin::pin;

use anyhow::bail;
use crds::conditions::{GROUP_LINKED, MEMBER_POWER_STATE_SYNCED, READY, find};
use crds::{GroupMemberStatus, PowerState, VirtualMachineGroup};
use futures_util::StreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;

use super::super::requested::{Said, broken};
use super::status::{HEADER, row};
use crate::cluster::ClusterArgs;
use crate::table::Table;

/// Reasons of a member that does not follow the group.
const FINAL: [&str; 3] = ["NotSupported", "NotFound", "NotMember"];

/// What a group is followed for.
#[derive(Debug, Clone)]
pub(super) struct Target {
    name: String,
    uid: Option<String>,
    /// Power state that is requested, in this generation and for this `nextForcePowerStateSyncTime`;
    /// none: it is followed until it is deleted.
    goal: Option<Goal>,
}

#[derive(Debug, Clone)]
struct Goal {
    power: PowerState,
    generation: i64,
    force: Option<String>,
}

/// How far a group is.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    Reached,
    Failed(String),
}

impl Target {
    pub(super) fn all(group: &VirtualMachineGroup) -> Self {
        Self {
            name: group.name_any(),
            uid: group.uid(),
            goal: None,
        }
    }

    /// The group as the request has made it.
    pub(super) fn requested(group: &VirtualMachineGroup, power: PowerState) -> Self {
        Self {
            goal: Some(Goal {
                power,
                generation: group.metadata.generation.unwrap_or_default(),
                force: group.spec.next_force_power_state_sync_time.clone(),
            }),
            ..Self::all(group)
        }
    }

    fn judge(&self, group: &VirtualMachineGroup) -> Verdict {
        let Some(goal) = &self.goal else {
            return Verdict::Open;
        };
        if group.spec.power_state != Some(goal.power) {
            return Verdict::Failed("another power state was requested since".to_owned());
        }
        let status = group.status.clone().unwrap_or_default();
        let ready = find(&status.conditions, READY);
        let seen = ready.and_then(|ready| ready.observed_generation);
        if seen.is_none_or(|seen| seen < goal.generation) {
            return Verdict::Open;
        }
        if let Some(error) = ready.filter(|ready| ready.reason == "Error") {
            return Verdict::Failed(error.message.clone());
        }
        let change = status.power_change.as_ref();
        let is_it = change.is_some_and(|change| {
            change.power_state == goal.power && change.force_sync_time >= goal.force
        });
        if !is_it {
            return Verdict::Open;
        }
        let others: Vec<_> = status
            .members
            .iter()
            .filter(|one| !is_synced(one))
            .collect();
        if others.is_empty() {
            return Verdict::Reached;
        }
        let reasons: Vec<_> = others.iter().filter_map(|one| refusal(one)).collect();
        if reasons.len() == others.len() {
            return Verdict::Failed(format!("members do not follow: {}", reasons.join("; ")));
        }
        Verdict::Open
    }
}

fn is_synced(member: &GroupMemberStatus) -> bool {
    let synced = find(&member.conditions, MEMBER_POWER_STATE_SYNCED);
    synced.is_some_and(|synced| synced.status == "True")
}

/// Why a member does not follow the group, and will not by itself.
fn refusal(member: &GroupMemberStatus) -> Option<String> {
    let kinds = [GROUP_LINKED, MEMBER_POWER_STATE_SYNCED];
    let mut unmet = kinds.iter().filter_map(|kind| {
        let found = find(&member.conditions, kind);
        found.filter(|found| found.status != "True")
    });
    let first = unmet.next()?;
    let is_final = FINAL.contains(&first.reason.as_str());
    is_final.then(|| format!("{}: {} {}", member.name, first.reason, first.message))
}

/// The lines that were printed, by members.
struct Screen {
    table: Table,
    printed: HashMap<String, [String; 8]>,
}

impl Screen {
    fn new() -> Self {
        let mut table = Table::new(&HEADER);
        // Lines come one by one; usual values should not move the columns.
        let usual = [4, 16, 10, 6, 5, 12, 20, 0].map(|width| "x".repeat(width));
        table.measure(&usual);
        let printed = HashMap::new();
        Self { table, printed }
    }

    /// The lines of members that are not as they were printed.
    fn take(&mut self, group: &VirtualMachineGroup) -> String {
        let status = group.status.clone().unwrap_or_default();
        let mut text = String::new();
        for member in &status.members {
            let row = row(group, member);
            if self.printed.get(&row[1]) == Some(&row) {
                continue;
            }
            self.table.measure(&row);
            text.push_str(&self.table.row(&row, |_, cell| cell));
            self.printed.insert(row[1].clone(), row);
        }
        text
    }
}

/// Prints the members of a group as they change, until the group is what it is to become.
pub(super) async fn follow(args: &ClusterArgs, target: Target) -> anyhow::Result<()> {
    let cluster = args.connect_to_watch().await?;
    let mut screen = Screen::new();
    super::super::print(&screen.table.header())?;
    let mut said = Said::default();
    let seen = watch_object(cluster.api::<VirtualMachineGroup>(), &target.name);
    let mut seen = pin!(seen.default_backoff());
    loop {
        let group = match seen.next().await {
            Some(Ok(group)) => group,
            Some(Err(error)) => {
                said.say(&broken(&error));
                continue;
            }
            None => bail!("the watch has ended"),
        };
        let Some(group) = group.filter(|group| group.uid() == target.uid) else {
            if target.goal.is_none() {
                return Ok(());
            }
            bail!("group {} was deleted", target.name);
        };
        super::super::print(&screen.take(&group))?;
        match target.judge(&group) {
            Verdict::Open => {}
            Verdict::Reached => return Ok(()),
            Verdict::Failed(why) => {
                bail!("group {}: {}", target.name, crate::table::printable(&why))
            }
        }
    }
}

#[cfg(test)]
mod tests;
