//! `restore`: creates a virtual machine with a root disk that is made from a backup.
//!
//! Invariant: the new object has the specification that the backup has on record, without what identifies a machine and
//! without its other disks; it is created once. The machine of the backup is not changed.
//! Failure: the cluster's; with `--watch` also what the controller reports when it cannot make the disk.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use crds::vm::{CloneSource, SourceReference};
use crds::{VirtualMachine, VirtualMachineBackup, VirtualMachineSpec};
use kube::ResourceExt;
use serde_json::Value;

use super::clone::{self, left_out, without_identity};
use crate::cluster::{ClusterArgs, ClusterError};

/// Backup to restore, and the name of the new machine.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Name of the backup.
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// Name of the new virtual machine.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Wait until the disk is made.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let backup = cluster
        .api::<VirtualMachineBackup>()
        .get(&args.backup)
        .await;
    let about = |error| ClusterError::about(&cluster.namespace, &args.backup, error);
    let backup = backup.map_err(about)?;
    let recorded = recorded(&backup)?;
    let vm = draft(&backup, &recorded, &args.machine);
    let uid = clone::create(&cluster, &vm).await?;
    let left_out = left_out(&recorded);
    if !left_out.is_empty() {
        eprintln!("left out: {}", left_out.join(", "));
    }
    let name = &args.machine;
    let done = if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        clone::made(&cluster, name, &uid).await?;
        "restored"
    } else {
        "created"
    };
    super::print(&format!("virtualmachine.vmlet.dev/{name} {done}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The specification of the machine when the backup was requested.
fn recorded(backup: &VirtualMachineBackup) -> anyhow::Result<VirtualMachineSpec> {
    let name = backup.name_any();
    let status = backup.status.as_ref();
    let manifest = status.and_then(|status| status.manifest.as_ref()?.fields());
    let spec = manifest.and_then(|mut fields| fields.remove("spec").filter(Value::is_object));
    let Some(spec) = spec else {
        bail!(
            "backup {name} has no specification of its machine on record: create a VirtualMachine with \
             spec.source.backup.name: {name}"
        );
    };
    serde_json::from_value(spec).with_context(|| {
        format!("failed to read the specification that backup {name} has on record")
    })
}

fn draft(
    backup: &VirtualMachineBackup,
    recorded: &VirtualMachineSpec,
    name: &str,
) -> VirtualMachine {
    let source = CloneSource {
        backup: Some(SourceReference {
            name: backup.name_any(),
        }),
        ..CloneSource::default()
    };
    VirtualMachine::new(name, without_identity(recorded, source))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backup(manifest: &Value) -> VirtualMachineBackup {
        serde_json::from_value(json!({
            "metadata": { "name": "web-1" }, "spec": { "vmName": "web" },
            "status": { "manifest": manifest },
        }))
        .unwrap()
    }

    #[test]
    fn a_restored_machine_has_the_recorded_specification_and_an_identity_of_its_own() {
        let backup = backup(&json!({ "spec": {
            "className": "small", "imageName": "debian", "powerState": "PoweredOn",
            "biosUUID": "0f0f0f0f-0000-4000-8000-000000000001",
            "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }],
        } }));
        let recorded = recorded(&backup).unwrap();
        assert_eq!(left_out(&recorded), ["volumes"]);
        let made = serde_json::to_value(draft(&backup, &recorded, "again")).unwrap();
        assert_eq!(made["metadata"], json!({ "name": "again" }));
        let spec = &made["spec"];
        assert_eq!(spec["source"], json!({ "backup": { "name": "web-1" } }));
        assert_eq!(spec["className"], "small");
        assert_eq!(spec["powerState"], "PoweredOn");
        for gone in ["imageName", "biosUUID", "volumes"] {
            assert!(spec.get(gone).is_none(), "{gone}");
        }
    }

    #[test]
    fn a_backup_without_a_record_says_what_to_do() {
        let error = recorded(&backup(&json!({}))).unwrap_err().to_string();
        assert!(error.contains("spec.source.backup.name: web-1"), "{error}");
        let odd = recorded(&backup(&json!({ "spec": { "volumes": 7 } })));
        assert!(odd.unwrap_err().to_string().contains("failed to read"));
    }
}
