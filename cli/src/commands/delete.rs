//! `delete`: deletes virtual machines with their root disks.
//!
//! Invariant: only the object that was read is deleted, never another one of its name.
//! Failure: the API server's; a machine that is being deleted already is a conflict, unless its
//! guest is to be ended at once.

use std::process::ExitCode;

use clap::Args;
use crds::VirtualMachine;
use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use lifecycle::verbs::Verb;

use super::follow::{Goal, Target, follow};
use super::{each, power};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names};

/// Machines to delete, and how.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    names: Names,
    /// Power off the guest immediately, even if the machine is already being deleted.
    #[arg(long)]
    force: bool,
    /// Only validate the deletion in the cluster; do not make it.
    #[arg(long)]
    dry_run: bool,
    /// Print each step until the machines are deleted. Ctrl-C ends this only.
    #[arg(short, long, alias = "wait", conflicts_with = "dry_run")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &DeleteArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let done = if args.dry_run {
        "deletion requested (dry run)"
    } else {
        "deletion requested"
    };
    let mut targets = Vec::new();
    let ended = each::machine(&args.names, done, async |name| {
        let vm = delete(&cluster, name, args.force, args.dry_run).await?;
        targets.push(Target::new(&vm, Goal::Deleted));
        Ok(())
    })
    .await;
    if args.watch && !targets.is_empty() {
        follow(&args.cluster, targets).await?;
    }
    ended
}

async fn delete(
    cluster: &Cluster,
    name: &str,
    force: bool,
    dry_run: bool,
) -> Result<VirtualMachine, ClusterError> {
    let found = cluster.find(name).await?;
    if found.vm.metadata.deletion_timestamp.is_none() {
        let params = DeleteParams {
            dry_run,
            preconditions: Some(Preconditions {
                uid: found.vm.uid(),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        let about = |error| ClusterError::about(&cluster.namespace, name, error);
        cluster
            .machines()
            .delete(name, &params)
            .await
            .map_err(about)?;
    } else if !force {
        return Err(ClusterError::Conflict {
            name: name.to_owned(),
            conflict: "it is being deleted already; --force ends its guest at once".to_owned(),
        });
    }
    if force && !dry_run {
        end_at_once(cluster, name).await?;
    }
    Ok(found.vm)
}

/// A machine that no longer exists by now, or that has no guest to end, needs nothing more.
async fn end_at_once(cluster: &Cluster, name: &str) -> Result<(), ClusterError> {
    let verb = Verb::Stop {
        grace_seconds: Some(0),
    };
    match power::ask_again(cluster, name, verb, false).await {
        Err(ClusterError::NotFound { .. } | ClusterError::Conflict { .. }) => Ok(()),
        other => other.map(drop),
    }
}
