//! `ssh-config`: blocks of ~/.ssh/config with which ssh, and what is built upon it, reaches guests.
//!
//! Invariant: a block says what the verb `ssh` would tell ssh at this moment. A machine that is made again under its
//! name has another host key, which ssh then reports until the block is printed again.
//! Failure: a machine that is not there, if it may be read.

use std::process::ExitCode;

use clap::Args;
use crds::VirtualMachine;
use kube::ResourceExt;
use kube::api::ListParams;

use super::openssh::{DOMAIN, Guest, plain};
use crate::cluster::{ClusterArgs, ClusterError};

/// Machines that ssh is to reach.
#[derive(Debug, Args)]
pub(crate) struct SshConfigArgs {
    /// Names of virtual machines or VM pods [default: all machines of the namespace].
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The end of the host names: one of its own for each cluster, where several are used.
    #[arg(long, value_name = "DOMAIN", default_value = DOMAIN, value_parser = domain)]
    domain: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SshConfigArgs) -> anyhow::Result<ExitCode> {
    let names = if args.names.is_empty() {
        all(&args.cluster).await?
    } else {
        args.names.clone()
    };
    let mut text = String::new();
    for name in &names {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &Guest::new(&args.cluster, name).await?.block(&args.domain);
    }
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn domain(text: &str) -> anyhow::Result<String> {
    plain("domain", text).map(str::to_owned)
}

/// The names of all machines of the namespace.
async fn all(args: &ClusterArgs) -> anyhow::Result<Vec<String>> {
    let cluster = args.connect().await?;
    let machines = cluster.api::<VirtualMachine>();
    let found = machines.list_metadata(&ListParams::default()).await;
    let found = found.map_err(ClusterError::from_api)?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}
