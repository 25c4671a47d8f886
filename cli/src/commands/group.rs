//! `group`: groups of virtual machines.
//!
//! Invariant: a verb writes one field of the group, or of a member, and tests what it was decided from;
//! the controller does the rest.
//! Failure: the cluster's, about the group by its name; the other names are still done.

mod list;
mod members;
mod power;
mod status;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use crds::VirtualMachineGroup;

use crate::cluster::{Cluster, ClusterError};

/// Commands for groups.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupArgs {
    /// List the groups of a namespace.
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show a group: its power state, its tiers, and each member with what it waits for.
    #[command(visible_alias = "describe")]
    Status(status::StatusArgs),
    /// Power on the members of groups, tier by tier.
    ///
    /// Writes spec.powerState of the group. The controller gives it to each member once; a member
    /// that was changed directly since keeps its own power state, unless --again is given.
    Start(power::PowerArgs),
    /// Power off the members of groups, tier by tier in reverse order.
    Stop(power::PowerArgs),
    /// Suspend the members of groups, all at once.
    Suspend(power::PowerArgs),
    /// Add machines and groups to a group.
    ///
    /// Writes spec.bootOrder of the group, then spec.groupName of the members.
    Add(members::AddArgs),
    /// Remove members from a group; they stay as they are.
    Remove(members::RemoveArgs),
}

/// Selects groups.
#[derive(Debug, Clone, Args)]
pub(crate) struct Groups {
    /// Names of groups.
    #[arg(value_name = "GROUP", required = true)]
    groups: Vec<String>,
}

pub(crate) async fn run(args: &GroupArgs) -> anyhow::Result<ExitCode> {
    use crds::PowerState::{PoweredOff, PoweredOn, Suspended};
    match args {
        GroupArgs::List(args) => list::run(args).await,
        GroupArgs::Status(args) => status::run(args).await,
        GroupArgs::Start(args) => power::run(args, PoweredOn, "start").await,
        GroupArgs::Stop(args) => power::run(args, PoweredOff, "stop").await,
        GroupArgs::Suspend(args) => power::run(args, Suspended, "suspend").await,
        GroupArgs::Add(args) => members::add(args).await,
        GroupArgs::Remove(args) => members::remove(args).await,
    }
}

/// The name alone: `vmg/shop` is what users of kubectl type.
fn name(word: &str) -> &str {
    match word.split_once('/') {
        Some((kind, name)) if is_kind(kind) => name,
        _ => word,
    }
}

/// The kind VirtualMachineGroup, as kubectl takes it.
fn is_kind(word: &str) -> bool {
    let kind = word.strip_suffix(".vmlet.dev").unwrap_or(word);
    ["vmg", "virtualmachinegroup", "virtualmachinegroups"].contains(&kind)
}

/// From an answer about a group.
fn about(cluster: &Cluster, name: &str, error: kube::Error) -> ClusterError {
    match ClusterError::about(&cluster.namespace, name, error) {
        ClusterError::NotFound { namespace, name } => ClusterError::NoGroup { namespace, name },
        other => other,
    }
}

async fn read(cluster: &Cluster, name: &str) -> Result<VirtualMachineGroup, ClusterError> {
    let read = cluster.api().get(name).await;
    read.map_err(|error| about(cluster, name, error))
}

/// Does something to each of several objects; one that is refused keeps no other from being done.
async fn each(
    names: impl IntoIterator<Item = String>,
    mut act: impl AsyncFnMut(&str) -> Result<String, ClusterError>,
) -> anyhow::Result<ExitCode> {
    let mut last: Option<ClusterError> = None;
    for name in names {
        match act(&name).await {
            Ok(done) => super::print(&format!("{done}\n"))?,
            Err(error) => {
                if let Some(error) = last.replace(error) {
                    eprintln!("error: {error:#}");
                }
            }
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}
