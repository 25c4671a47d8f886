//! `revert`: reverts a virtual machine to a snapshot.
//!
//! Invariant: the field is written on the version of the machine that was read.
//! Failure: a snapshot that the machine cannot revert to is a conflict with the reason; with `--watch` also
//! what the controller reports before anything is changed.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crds::conditions::{REVERT_SUCCEEDED, find};
use crds::{VirtualMachine, VirtualMachineSnapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::super::requested;
use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names};

/// Reasons with which the machine goes on as it is.
const REFUSED: [&str; 2] = [
    "VirtualMachineSnapshotRevertFailed",
    "VirtualMachineSnapshotRevertFailedInvalidVMManifest",
];

/// Machine to revert, and the snapshot.
#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// Name of the virtual machine.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Name of the snapshot.
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// Wait until the machine has reverted.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &RevertArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = Names::machine(&args.machine);
    let found = cluster.find(machine).await?;
    let generation = request(&cluster, &found.vm, &args.snapshot).await?;
    let done = if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        reverted(&cluster, &found.vm, &args.snapshot, generation).await?;
        "reverted"
    } else {
        "revert requested"
    };
    super::super::print(&format!("virtualmachine.vmlet.dev/{machine} {done}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the field, and returns the generation that has it.
async fn request(
    cluster: &Cluster,
    vm: &VirtualMachine,
    snapshot: &str,
) -> Result<i64, ClusterError> {
    let machine = vm.name_any();
    let refused = |why: &str| ClusterError::Conflict {
        name: snapshot.to_owned(),
        conflict: why.to_owned(),
    };
    let about = |error| ClusterError::about(&cluster.namespace, &machine, error);
    let found = cluster.api::<VirtualMachineSnapshot>();
    let found = found.get_opt(snapshot).await.map_err(about)?;
    match found {
        None => return Err(refused("there is no such snapshot")),
        Some(found) if found.spec.vm_name != machine => {
            return Err(refused("it is a snapshot of another machine"));
        }
        Some(found) if !found.is_created() => return Err(refused("it is not taken yet")),
        Some(_) => {}
    }
    let params = PatchParams {
        field_manager: Some("vmletctl".to_owned()),
        ..PatchParams::default()
    };
    let body = json!({
        "metadata": { "uid": vm.uid(), "resourceVersion": vm.resource_version() },
        "spec": { "currentSnapshotName": snapshot },
    });
    let api = cluster.machines();
    let patched = api.patch(&machine, &params, &Patch::Merge(&body)).await;
    let patched = patched.map_err(about)?;
    Ok(patched.metadata.generation.unwrap_or_default())
}

/// What the controller reports of the request, not of an earlier one.
fn report(vm: &VirtualMachine, generation: i64) -> Option<&Condition> {
    let status = vm.status.as_ref()?;
    let found = find(&status.conditions, REVERT_SUCCEEDED)?;
    let is_about_it = |seen: i64| seen >= generation;
    found
        .observed_generation
        .is_some_and(is_about_it)
        .then_some(found)
}

/// Waits until the controller has removed the name, and says meanwhile what it does.
async fn reverted(
    cluster: &Cluster,
    vm: &VirtualMachine,
    snapshot: &str,
    generation: i64,
) -> anyhow::Result<()> {
    let machine = vm.name_any();
    let uid = vm.uid().unwrap_or_default();
    let deleted = format!("{machine} was deleted");
    requested::follow(cluster.machines(), &machine, &uid, &deleted, |now, said| {
        let status = now.status.clone().unwrap_or_default();
        let named = now.spec.current_snapshot_name.as_deref();
        if named != Some(snapshot) && status.snapshot_revert.is_none() {
            let current = status.current_snapshot.map(|current| current.name);
            if named.is_none() && current.as_deref() == Some(snapshot) {
                return Ok(true);
            }
            bail!("the revert of {machine} was ended by another client");
        }
        if let Some(condition) = report(now, generation) {
            let is_begun = status.snapshot_revert.is_some();
            if REFUSED.contains(&condition.reason.as_str()) && !is_begun {
                bail!("{machine} does not revert: {}", condition.message);
            }
            said.say(&condition.message);
        }
        Ok(false)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reported_of_an_earlier_request_is_no_answer() {
        let vm = |generation: i64| -> VirtualMachine {
            serde_json::from_value(json!({
                "metadata": { "name": "vm" },
                "spec": { "className": "small" },
                "status": { "conditions": [{
                    "type": REVERT_SUCCEEDED, "status": "False", "reason": REFUSED[0],
                    "message": "a: it does not exist", "observedGeneration": generation,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] },
            }))
            .unwrap()
        };
        assert!(report(&vm(4), 5).is_none());
        let about_it = vm(5);
        assert_eq!(report(&about_it, 5).unwrap().reason, REFUSED[0]);
    }
}
