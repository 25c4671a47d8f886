//! `status`: everything about one machine.
//!
//! Invariant: what is printed is one moment's answer; nothing is changed.
//! Failure: the cluster's; parts that may not be read are left out with a message.

mod report;

use std::process::ExitCode;

use clap::Args;
use crds::VirtualMachineTask;
use crds::guard::Guarded;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};

use super::events;
use super::follow::{Goal, Target, follow};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, listed};
use crate::colour::When;

/// Machine whose status to show.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Name of the virtual machine.
    name: String,
    /// Also show the conditions that report no problem.
    #[arg(long, short)]
    verbose: bool,
    /// Then watch: print a line whenever the machine changes, until it is deleted.
    #[arg(long, short)]
    watch: bool,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t)]
    color: When,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let found = cluster.find(&args.name).await?;
    let tasks = tasks(&cluster, &args.name).await;
    let events_found = events::about(&cluster, &args.name).await;
    let report = report::Report {
        vm: &found.vm,
        pod: found.pod.as_ref(),
        tasks: tasks.as_deref().ok(),
        events: events_found.as_deref().ok(),
        verbose: args.verbose,
        now: Timestamp::now(),
    };
    super::print(&report.render(args.color.is_on()))?;
    if args.watch {
        super::print("\n")?;
        let target = Target::new(&found.vm, Goal::Followed);
        follow(&args.cluster, vec![target]).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn tasks(cluster: &Cluster, name: &str) -> Result<Vec<VirtualMachineTask>, ClusterError> {
    let api: Api<Guarded<VirtualMachineTask>> = cluster.api();
    let mut tasks = listed::readable(&api, &ListParams::default()).await?;
    tasks.retain(|task| task.spec.vm_name == name);
    tasks.sort_by_key(|task| task.metadata.creation_timestamp.as_ref().map(|t| t.0));
    Ok(tasks)
}
