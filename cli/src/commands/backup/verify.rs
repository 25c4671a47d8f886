//! `backup verify`: has a node compare a backup with what was written.
//!
//! Invariant: the request is written on the version of the backup that was read; its result is that of this request.
//! Failure: with `--watch` a damaged backup is an error with the node's words.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crds::VirtualMachineBackup;
use crds::conditions::BACKUP_VERIFIED;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::super::requested;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};

/// Backup to verify.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Name of the backup.
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// Wait for the result; a damaged backup ends with code 1.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) async fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let name = &args.backup;
    let request = Timestamp::now().to_string();
    let uid = send(&cluster, name, &request).await?;
    let done = if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        verified(&cluster, name, &uid, &request).await?;
        "verified"
    } else {
        "verification requested"
    };
    super::super::print(&format!("virtualmachinebackup.vmlet.dev/{name} {done}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the request, and returns the UID of the backup.
async fn send(cluster: &Cluster, name: &str, request: &str) -> Result<String, ClusterError> {
    let about = |error| ClusterError::about(&cluster.namespace, name, error);
    let api = cluster.api::<VirtualMachineBackup>();
    let backup = api.get(name).await.map_err(about)?;
    if !backup.is_completed() {
        return Err(ClusterError::Conflict {
            name: name.to_owned(),
            conflict: "the backup is not complete".to_owned(),
        });
    }
    let params = PatchParams {
        field_manager: Some("vmletctl".to_owned()),
        ..PatchParams::default()
    };
    let body = json!({
        "metadata": { "uid": backup.uid(), "resourceVersion": backup.resource_version() },
        "spec": { "verifyRequest": request },
    });
    let written = api.patch(name, &params, &Patch::Merge(body)).await;
    Ok(written.map_err(about)?.uid().unwrap_or_default())
}

/// Waits for the result of this request.
async fn verified(cluster: &Cluster, name: &str, uid: &str, request: &str) -> anyhow::Result<()> {
    let deleted = format!("backup {name} was deleted");
    requested::follow(
        cluster.api::<VirtualMachineBackup>(),
        name,
        uid,
        &deleted,
        |backup, said| {
            let Some(state) = backup.condition(BACKUP_VERIFIED) else {
                return Ok(false);
            };
            let status = backup.status.as_ref();
            let known = status.and_then(|status| status.verification.as_ref());
            let is_answer =
                known.is_some_and(|known| known.observed_request.as_deref() == Some(request));
            match state.status.as_str() {
                "True" if is_answer => return Ok(true),
                "False" if is_answer => bail!("backup {name} is damaged: {}", state.message),
                "Unknown" => said.say(&state.message),
                _ => {}
            }
            Ok(false)
        },
    )
    .await
}
