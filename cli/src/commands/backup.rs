//! `backup create`: makes a backup of a virtual machine; `backup list`, `backup verify`.
//!
//! Invariant: the object is created once; waiting for it changes nothing.
//! Failure: the cluster's; a backup that the node does not make is an error with the node's words.

mod list;
mod verify;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use crds::conditions::BACKUP_COMPLETED;
use crds::{BackupMode, Quiesce, VirtualMachineBackup, VirtualMachineBackupSpec};
use k8s_openapi::jiff::Timestamp;

use super::requested;
use crate::cluster::{Cluster, ClusterArgs, Names, seconds};

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
    /// Target that the configuration of the nodes has [default: default].
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Claim of the namespace that is to have the backup, in place of a target of the nodes.
    #[arg(long, value_name = "CLAIM", conflicts_with = "target")]
    claim: Option<String>,
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
    let name = name.unwrap_or_else(|| requested::default_name(machine, Timestamp::now()));
    let spec = VirtualMachineBackupSpec {
        vm_name: machine.to_owned(),
        target: args.target.clone(),
        target_claim_name: args.claim.clone(),
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
    let backup = VirtualMachineBackup::new(&name, spec);
    let uid = requested::create(&cluster, &backup, "backup").await?;
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

/// Waits until the target has it, and says meanwhile how far it is.
async fn completed(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<()> {
    let deleted = format!("backup {name} was deleted before it was complete");
    requested::follow(
        cluster.api::<VirtualMachineBackup>(),
        name,
        uid,
        &deleted,
        |backup, said| {
            let Some(state) = backup.condition(BACKUP_COMPLETED) else {
                return Ok(false);
            };
            if backup.has_failed() {
                bail!("backup {name} is not made: {}", state.message);
            }
            if backup.is_completed() {
                // What it does not contain.
                said.say(&state.message);
                return Ok(true);
            }
            said.say(&progress(backup, &state.message));
            Ok(false)
        },
    )
    .await
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
