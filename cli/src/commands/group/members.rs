//! `group add`, `group remove`: the members of a group.
//!
//! A member is one when the group's boot order names it and it names the group. A machine that names a
//! group which does not name it waits for that, so that the group is written first when a member is added,
//! and last when one is removed.
//!
//! Invariant: what is written was decided on the version that was read. A member of another group is
//! refused. Each step can be repeated: what is done already is not done again.
//! Failure: the cluster's; a command that was interrupted is completed by the same command.

use std::process::ExitCode;

use clap::Args;
use crds::{BootTier, GroupMember, GroupMemberKind, VirtualMachine, VirtualMachineGroup};
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{about, is_kind, name, read};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names};

/// How often a change is decided again when the object changed meanwhile.
const ATTEMPTS: usize = 5;
/// Most tiers of a group, and members of a tier.
const TIERS: usize = 16;
const MEMBERS: usize = 64;

/// Members to add.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Name of the group.
    #[arg(value_name = "GROUP")]
    group: String,
    /// Machines, and groups as vmg/NAME.
    #[arg(value_name = "MEMBER", required = true)]
    members: Vec<String>,
    /// Tier of the boot order, from 1 on; one more than there are makes a new one [default: the last
    /// one].
    #[arg(long, value_name = "N")]
    tier: Option<usize>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Members to remove.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Name of the group.
    #[arg(value_name = "GROUP")]
    group: String,
    /// Machines, and groups as vmg/NAME.
    #[arg(value_name = "MEMBER", required = true)]
    members: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) async fn add(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let group = name(&args.group);
    let members = parsed(&args.members);
    for member in &members {
        free(&cluster, member, group).await?;
    }
    change(&cluster, group, |tiers| added(tiers, &members, args.tier)).await?;
    for member in &members {
        let before = free(&cluster, member, group).await?;
        if !before.is_of(group) {
            link(&cluster, member, &before, Some(group)).await?;
        }
        say(member, group, "added to")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn remove(args: &RemoveArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let group = name(&args.group);
    let members = parsed(&args.members);
    for member in &members {
        // One that does not exist any more is named by the group still.
        let before = linked(&cluster, member).await?;
        if let Some(before) = before.filter(|before| before.is_of(group)) {
            link(&cluster, member, &before, None).await?;
        }
    }
    change(&cluster, group, |tiers| Ok(removed(tiers, &members))).await?;
    for member in &members {
        say(member, group, "removed from")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(member: &GroupMember, group: &str, done: &str) -> Result<(), super::super::PrintError> {
    let kind = match member.kind {
        GroupMemberKind::VirtualMachine => "virtualmachine",
        GroupMemberKind::VirtualMachineGroup => "virtualmachinegroup",
    };
    let text = format!("{kind}.vmlet.dev/{} {done} {group}\n", member.name);
    super::super::print(&text)
}

/// `vmg/shop` is a group, any other word a machine.
fn parsed(words: &[String]) -> Vec<GroupMember> {
    let member = |word: &String| match word.split_once('/') {
        Some((kind, name)) if is_kind(kind) => GroupMember {
            kind: GroupMemberKind::VirtualMachineGroup,
            name: name.to_owned(),
        },
        _ => GroupMember {
            kind: GroupMemberKind::VirtualMachine,
            name: Names::machine(word).to_owned(),
        },
    };
    words.iter().map(member).collect()
}

/// The group that an object names.
#[derive(Debug, PartialEq, Eq)]
struct Link(Option<String>);

impl Link {
    fn is_of(&self, group: &str) -> bool {
        self.0.as_deref() == Some(group)
    }

    fn is_free_for(&self, group: &str) -> bool {
        self.0.is_none() || self.is_of(group)
    }
}

/// The group that a member names; none: there is no such object.
async fn linked(cluster: &Cluster, member: &GroupMember) -> Result<Option<Link>, ClusterError> {
    let failed = |error| about(cluster, &member.name, error);
    let link = match member.kind {
        GroupMemberKind::VirtualMachine => {
            let found = cluster.machines().get_opt(&member.name).await;
            found.map_err(failed)?.map(|vm| Link(vm.spec.group_name))
        }
        GroupMemberKind::VirtualMachineGroup => {
            let api: Api<VirtualMachineGroup> = cluster.api();
            let found = api.get_opt(&member.name).await;
            found.map_err(failed)?.map(|vmg| Link(vmg.spec.group_name))
        }
    };
    Ok(link)
}

/// The group that a member names, which is none or this one.
async fn free(cluster: &Cluster, member: &GroupMember, group: &str) -> Result<Link, ClusterError> {
    let found = linked(cluster, member).await?;
    let found = found.ok_or_else(|| missing(cluster, member))?;
    if found.is_free_for(group) {
        return Ok(found);
    }
    let conflict =
        format!("it is a member of another group: remove it there, then add it to {group}");
    Err(refused(&member.name, &conflict))
}

fn missing(cluster: &Cluster, member: &GroupMember) -> ClusterError {
    let namespace = cluster.namespace.clone();
    let name = member.name.clone();
    match member.kind {
        GroupMemberKind::VirtualMachine => ClusterError::NotFound { namespace, name },
        GroupMemberKind::VirtualMachineGroup => ClusterError::NoGroup { namespace, name },
    }
}

fn refused(name: &str, conflict: &str) -> ClusterError {
    ClusterError::Conflict {
        name: name.to_owned(),
        conflict: conflict.to_owned(),
    }
}

/// Lets a member name the group, or no group any more, if it names what it named before.
async fn link(
    cluster: &Cluster,
    member: &GroupMember,
    before: &Link,
    to: Option<&str>,
) -> Result<(), ClusterError> {
    let path = "/spec/groupName";
    let change = match to {
        Some(to) => json!({"op": "add", "path": path, "value": to}),
        None => json!({"op": "remove", "path": path}),
    };
    let steps = json!([{"op": "test", "path": path, "value": before.0}, change]);
    let patched = match member.kind {
        GroupMemberKind::VirtualMachine => {
            patch::<VirtualMachine>(&cluster.api(), &member.name, steps).await
        }
        GroupMemberKind::VirtualMachineGroup => {
            patch::<VirtualMachineGroup>(&cluster.api(), &member.name, steps).await
        }
    };
    patched.map_err(|error| about(cluster, &member.name, error))
}

async fn patch<K>(api: &Api<K>, name: &str, steps: Value) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let params = PatchParams {
        field_manager: Some("vmletctl".to_owned()),
        ..PatchParams::default()
    };
    let steps = serde_json::from_value(steps).map_err(kube::Error::SerdeError)?;
    let patch = Patch::<()>::Json(steps);
    api.patch(name, &params, &patch).await.map(drop)
}

/// Writes another boot order, if it is another one. The controller writes to the same object, so that a
/// change that loses to it is decided again.
async fn change(
    cluster: &Cluster,
    name: &str,
    decide: impl Fn(&[BootTier]) -> Result<Vec<BootTier>, ClusterError>,
) -> Result<(), ClusterError> {
    let api: Api<VirtualMachineGroup> = cluster.api();
    for attempt in 1.. {
        let group = read(cluster, name).await?;
        let order = decide(&group.spec.boot_order)?;
        if order == group.spec.boot_order {
            return Ok(());
        }
        let steps = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": group.resource_version()},
            {"op": "add", "path": "/spec/bootOrder", "value": order},
        ]);
        let written = patch(&api, name, steps).await;
        match written.map_err(|error| about(cluster, name, error)) {
            Err(ClusterError::Raced { .. }) if attempt < ATTEMPTS => {}
            other => return other,
        }
    }
    Ok(())
}

/// The boot order with these members, those that it has where they are.
fn added(
    tiers: &[BootTier],
    members: &[GroupMember],
    tier: Option<usize>,
) -> Result<Vec<BootTier>, ClusterError> {
    let mut tiers = tiers.to_vec();
    let place = tier.unwrap_or_else(|| tiers.len().max(1));
    if place == 0 || place > (tiers.len() + 1).min(TIERS) {
        let count = tiers.len();
        let text =
            format!("it has {count} tiers, of {TIERS} at most: give --tier from 1 to one more");
        return Err(refused(&format!("tier {place}"), &text));
    }
    let has = |tiers: &[BootTier], member: &GroupMember| {
        tiers.iter().any(|tier| tier.members.contains(member))
    };
    for member in members {
        if has(&tiers, member) {
            continue;
        }
        if tiers.len() < place {
            tiers.push(BootTier::default());
        }
        let tier = &mut tiers[place - 1];
        if tier.members.len() == MEMBERS {
            let text = format!("it has {MEMBERS} members, which is the most: give another --tier");
            return Err(refused(&format!("tier {place}"), &text));
        }
        tier.members.push(member.clone());
    }
    Ok(tiers)
}

/// The boot order without these members; tiers stay with their delays.
fn removed(tiers: &[BootTier], members: &[GroupMember]) -> Vec<BootTier> {
    let mut tiers = tiers.to_vec();
    for tier in &mut tiers {
        tier.members.retain(|member| !members.contains(member));
    }
    tiers
}

#[cfg(test)]
mod tests;
