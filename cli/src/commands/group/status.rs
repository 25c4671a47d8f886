//! `group status`: a group with its members.
//!
//! Invariant: what is printed is one moment's answer; a member is in the row of the tier that it belongs to.
//! Failure: the cluster's.

use std::process::ExitCode;

use clap::Args;
use crds::conditions::{
    GROUP_LINKED, MEMBER_PLACEMENT_READY, MEMBER_POWER_STATE_SYNCED, READY, find,
};
use crds::{GroupMemberStatus, PowerState, VirtualMachineGroup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::{name, read, watch};
use crate::cluster::ClusterArgs;
use crate::table::{self, printable};

/// Group whose status to show.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Name of the group.
    #[arg(value_name = "GROUP")]
    group: String,
    /// Then watch: print each member again when it changes, until the group is deleted.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let group = read(&cluster, name(&args.group)).await?;
    super::super::print(&render(&group))?;
    if args.watch {
        super::super::print("\n")?;
        watch::follow(&args.cluster, watch::Target::all(&group)).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(group: &VirtualMachineGroup) -> String {
    let status = group.status.clone().unwrap_or_default();
    let spec = &group.spec;
    let power = spec.power_state.map(|power| format!("{power:?}"));
    let change = status.power_change.as_ref().map(|change| {
        let times: Vec<_> = change
            .tier_times
            .iter()
            .map(|at| at.0.to_string())
            .collect();
        let tiers = spec.boot_order.len().saturating_sub(times.len());
        let wait = match tiers {
            0 => String::new(),
            tiers => format!(", and {tiers} tiers wait until the tier before them is ready"),
        };
        let times = times.join(", ");
        format!("{:?}, tiers at {times}{wait}", change.power_state)
    });
    let ready = find(&status.conditions, READY).map(|ready| match ready.message.as_str() {
        "" => ready.status.clone(),
        message => format!("{} ({}): {message}", ready.status, ready.reason),
    });
    let none = || "-".to_owned();
    let fields = [
        ("Name", Some(group.name_any())),
        ("Namespace", group.namespace()),
        ("Group", spec.group_name.clone()),
        ("Power", Some(power.unwrap_or_else(none))),
        ("Change", change),
        ("Ready", Some(ready.unwrap_or_else(none))),
    ];
    let lines = fields.into_iter().filter_map(|(field, value)| {
        let field = format!("{field}:");
        value.map(|value| format!("{field:12}{}\n", printable(&value)))
    });
    let head: String = lines.collect();
    let rows: Vec<_> = status
        .members
        .iter()
        .map(|member| row(group, member))
        .collect();
    if rows.is_empty() {
        return head;
    }
    format!("{head}\nMembers:\n{}", table::render(HEADER, &rows))
}

/// Columns of a member.
pub(super) const HEADER: [&str; 8] = [
    "TIER", "MEMBER", "POWER", "SYNCED", "READY", "NODE", "REASON", "MESSAGE",
];

/// A member in a line.
pub(super) fn row(group: &VirtualMachineGroup, member: &GroupMemberStatus) -> [String; 8] {
    let condition = |kind: &str| find(&member.conditions, kind);
    let word = |kind: &str| condition(kind).map_or("-".to_owned(), |found| found.status.clone());
    let tier = tier(group, member).map_or("-".to_owned(), |tier| (tier + 1).to_string());
    let node = member.placement.as_ref().and_then(|at| at.node.clone());
    let unmet = obstacle(member);
    let kind = match member.kind {
        crds::GroupMemberKind::VirtualMachine => "vm",
        crds::GroupMemberKind::VirtualMachineGroup => "vmg",
    };
    [
        tier,
        format!("{kind}/{}", member.name),
        member
            .power_state
            .map_or("-".to_owned(), |power| format!("{power:?}")),
        word(MEMBER_POWER_STATE_SYNCED),
        word(READY),
        node.unwrap_or_else(|| "-".to_owned()),
        unmet.map_or(String::new(), |one| one.reason.clone()),
        unmet.map_or(String::new(), |one| one.message.clone()),
    ]
}

/// The tier of the boot order that a member belongs to: the first that names it.
fn tier(group: &VirtualMachineGroup, member: &GroupMemberStatus) -> Option<usize> {
    let tiers = &group.spec.boot_order;
    tiers.iter().position(|tier| {
        let mut names = tier.members.iter();
        names.any(|one| one.kind == member.kind && one.name == member.name)
    })
}

/// The first condition, in the order in which they are reached, that is not met. A member that is to be
/// off is not asked to be ready.
pub(super) fn obstacle(member: &GroupMemberStatus) -> Option<&Condition> {
    let is_on = member.power_state == Some(PowerState::PoweredOn);
    let kinds = [
        Some(GROUP_LINKED),
        Some(MEMBER_POWER_STATE_SYNCED),
        Some(MEMBER_PLACEMENT_READY).filter(|_| is_on),
        Some(READY).filter(|_| is_on),
    ];
    let mut unmet = kinds.into_iter().flatten().filter_map(|kind| {
        let found = find(&member.conditions, kind);
        found.filter(|found| found.status != "True")
    });
    unmet.next()
}

#[cfg(test)]
pub(super) mod tests;
