//! `backup create`: makes a backup of a virtual machine; `backup list`, `backup verify`.
//!
//! Invariant: the object is created once; waiting for it changes nothing.
//! Failure: the cluster's; a backup that the node does not make is an error with the node's words.

mod list;
mod verify;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use crds::conditions::BACKUP_COMPLETED;
use crds::{BackupMode, Quiesce, VirtualMachineBackup, VirtualMachineBackupSpec};
use futures_util::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;

use super::snapshot::{Said, broken};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names, seconds};

/// Commands for backups.
#[derive(Debug, Subcommand)]
pub(crate) enum BackupArgs {
    /// Make a backup of the root disk of a virtual machine, while it runs or is off.
    ///
    /// The node of the disk writes it to a target outside the node. A backup after the first one has only what has
    /// changed since. Without --quiesce the disk is as after a cut of the power.
    Create(CreateArgs),
    /// List the backups of a virtual machine, or of a namespace.
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Verify that the target has a backup, and all that it builds upon, as it was made.
    Verify(verify::VerifyArgs),
}

/// Machine to back up.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the virtual machine.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Name of the backup [default: name of the machine, date and time].
    #[arg(long = "name", value_name = "BACKUP")]
    backup: Option<String>,
    /// Target that the configuration of the nodes has.
    #[arg(long, value_name = "TARGET", default_value = "default")]
    target: String,
    /// Back up the whole disk, also where an earlier backup is known.
    #[arg(long)]
    full: bool,
    /// Verify the backup when it is complete.
    #[arg(long)]
    verify: bool,
    /// Let the guest agent freeze the file systems, and wait for it for at most this time, such as
    /// 30s or 5m; no backup is made without it.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m",
        value_parser = seconds
    )]
    quiesce: Option<u32>,
    /// Description of the backup.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Wait until the target has the backup, and show the progress.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    match args {
        BackupArgs::Create(args) => Box::pin(create(args)).await,
        BackupArgs::List(args) => list::run(args).await,
        BackupArgs::Verify(args) => Box::pin(verify::run(args)).await,
    }
}

async fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = Names::machine(&args.machine);
    cluster.find(machine).await?;
    let name = args.backup.clone();
    let name = name.unwrap_or_else(|| default_name(machine, Timestamp::now()));
    let spec = VirtualMachineBackupSpec {
        vm_name: machine.to_owned(),
        target: args.target.clone(),
        mode: if args.full {
            BackupMode::Full
        } else {
            BackupMode::Incremental
        },
        quiesce: args.quiesce.map(|seconds| Quiesce {
            timeout: Some(format!("{seconds}s")),
        }),
        verify: args.verify,
        description: args.description.clone(),
        ..VirtualMachineBackupSpec::default()
    };
    let uid = send(&cluster, &name, spec).await?;
    let done = if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        completed(&cluster, &name, &uid).await?;
        "completed"
    } else {
        "requested"
    };
    super::print(&format!("virtualmachinebackup.vmlet.dev/{name} {done}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// A name that tells when it was made.
fn default_name(machine: &str, now: Timestamp) -> String {
    format!("{machine}-{}", now.strftime("%Y%m%d-%H%M%S"))
}

/// Creates the object, and returns its UID.
async fn send(
    cluster: &Cluster,
    name: &str,
    spec: VirtualMachineBackupSpec,
) -> Result<String, ClusterError> {
    let params = PostParams {
        field_manager: Some("vmletctl".to_owned()),
        ..PostParams::default()
    };
    let backup = VirtualMachineBackup::new(name, spec);
    let api: Api<VirtualMachineBackup> = cluster.api();
    match api.create(&params, &backup).await {
        Ok(made) => Ok(made.uid().unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Err(ClusterError::Conflict {
                name: name.to_owned(),
                conflict: "there is a backup of that name already".to_owned(),
            })
        }
        Err(error) => Err(ClusterError::about(&cluster.namespace, name, error)),
    }
}

/// Waits until the target has it, and says meanwhile how far it is.
async fn completed(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<()> {
    let mut said = Said::default();
    let seen = watch_object(cluster.api::<VirtualMachineBackup>(), name);
    let mut seen = std::pin::pin!(seen.default_backoff());
    loop {
        let backup = match seen.next().await.context("the watch ended")? {
            Ok(backup) => backup,
            Err(error) => {
                said.say(&broken(&error));
                continue;
            }
        };
        let Some(backup) = backup.filter(|found| found.uid().as_deref() == Some(uid)) else {
            bail!("backup {name} was deleted before it was complete");
        };
        let Some(state) = backup.condition(BACKUP_COMPLETED) else {
            continue;
        };
        if backup.has_failed() {
            bail!("backup {name} is not made: {}", state.message);
        }
        if backup.is_completed() {
            // What it does not contain.
            said.say(&state.message);
            return Ok(());
        }
        said.say(&progress(&backup, &state.message));
    }
}

/// What a backup waits for, or how far it is.
fn progress(backup: &VirtualMachineBackup, message: &str) -> String {
    let percent = backup
        .status
        .as_ref()
        .map_or(0, |status| status.progress_percent);
    match percent {
        0 => message.to_owned(),
        percent => format!("{message}: {percent} %"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_has_the_machine_and_the_time() {
        let now = "2026-03-01T07:08:09.5Z".parse().unwrap();
        assert_eq!(default_name("web", now), "web-20260301-070809");
    }

    #[test]
    fn the_progress_is_shown_once_there_is_some() {
        let backup = |percent: u32| -> VirtualMachineBackup {
            serde_json::from_value(json!({
                "metadata": { "name": "b" }, "spec": { "vmName": "vm" },
                "status": { "progressPercent": percent },
            }))
            .unwrap()
        };
        assert_eq!(progress(&backup(0), "it waits"), "it waits");
        assert_eq!(progress(&backup(40), "it is made"), "it is made: 40 %");
    }
}
