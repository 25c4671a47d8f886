//! `snapshot`: takes a snapshot of a virtual machine.
//!
//! Invariant: the object is created once; waiting for it changes nothing.
//! Failure: the cluster's; a snapshot that the node does not take is an error with the node's words.

pub(crate) mod list;
pub(crate) mod revert;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use crds::conditions::SNAPSHOT_CREATED;
use crds::{Quiesce, VirtualMachineSnapshot, VirtualMachineSnapshotSpec};
use futures_util::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;

use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names, innermost, seconds};

/// Reason of a snapshot that is not taken.
const FAILED: &str = "VirtualMachineSnapshotCreationFailed";

/// Machine of which to take a snapshot.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// Name of the virtual machine.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Name of the snapshot [default: name of the machine, date and time].
    #[arg(long = "name", value_name = "SNAPSHOT")]
    snapshot: Option<String>,
    /// Let the guest agent freeze the file systems, and wait for it for at most this time, such as
    /// 30s or 5m; no snapshot is taken without it.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m",
        value_parser = seconds
    )]
    quiesce: Option<u32>,
    /// Description of the snapshot.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Wait until the node has taken the snapshot.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = Names::machine(&args.machine);
    cluster.find(machine).await?;
    let name = args.snapshot.clone();
    let name = name.unwrap_or_else(|| default_name(machine, Timestamp::now()));
    let spec = VirtualMachineSnapshotSpec {
        vm_name: machine.to_owned(),
        memory: false,
        quiesce: args.quiesce.map(|seconds| Quiesce {
            timeout: Some(format!("{seconds}s")),
        }),
        description: args.description.clone(),
    };
    let uid = create(&cluster, &name, spec).await?;
    if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        taken(&cluster, &name, &uid).await?;
        super::print(&format!("virtualmachinesnapshot.vmlet.dev/{name} taken\n"))?;
    } else {
        super::print(&format!(
            "virtualmachinesnapshot.vmlet.dev/{name} requested\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A name with the time at which it was taken.
fn default_name(machine: &str, now: Timestamp) -> String {
    format!("{machine}-{}", now.strftime("%Y%m%d-%H%M%S"))
}

/// Creates the object, and returns its UID.
async fn create(
    cluster: &Cluster,
    name: &str,
    spec: VirtualMachineSnapshotSpec,
) -> Result<String, ClusterError> {
    let params = PostParams {
        field_manager: Some("vmletctl".to_owned()),
        ..PostParams::default()
    };
    let snapshot = VirtualMachineSnapshot::new(name, spec);
    let api: Api<VirtualMachineSnapshot> = cluster.api();
    match api.create(&params, &snapshot).await {
        Ok(made) => Ok(made.uid().unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Err(ClusterError::Conflict {
                name: name.to_owned(),
                conflict: "there is a snapshot of that name already".to_owned(),
            })
        }
        Err(error) => Err(ClusterError::about(&cluster.namespace, name, error)),
    }
}

/// Waits until the node has taken it, and says meanwhile what it waits for.
async fn taken(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<()> {
    let mut said = Said::default();
    let seen = watch_object(cluster.api::<VirtualMachineSnapshot>(), name);
    let mut seen = std::pin::pin!(seen.default_backoff());
    loop {
        let snapshot = match seen.next().await.context("the watch ended")? {
            Ok(snapshot) => snapshot,
            Err(error) => {
                said.say(&broken(&error));
                continue;
            }
        };
        let Some(snapshot) = snapshot.filter(|found| found.uid().as_deref() == Some(uid)) else {
            bail!("snapshot {name} was deleted before it was taken");
        };
        if snapshot.is_created() {
            return Ok(());
        }
        let Some(created) = snapshot.condition(SNAPSHOT_CREATED) else {
            continue;
        };
        if created.reason == FAILED {
            bail!("snapshot {name} is not taken: {}", created.message);
        }
        said.say(&created.message);
    }
}

/// What was said last, so that nothing is said twice.
#[derive(Debug, Default)]
pub(super) struct Said(String);

impl Said {
    pub(super) fn say(&mut self, text: &str) {
        if !text.is_empty() && self.0 != text {
            eprintln!("{}", crate::table::printable(text));
            text.clone_into(&mut self.0);
        }
    }
}

pub(super) fn broken(error: &kube::runtime::watcher::Error) -> String {
    let why = innermost(error);
    format!("warning: the watch broke off and is begun again: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_machine_and_the_time() {
        let now = "2026-03-01T07:08:09.5Z".parse().unwrap();
        assert_eq!(default_name("web", now), "web-20260301-070809");
    }
}
