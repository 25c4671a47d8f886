//! The disk that a user means: of a machine that is off, of one of its snapshots, or in a backup.
//!
//! Invariant: a snapshot is of the disk that the machine has now, as the objects say and the node checks.
//! Failure: a sentence that says why it cannot be had, and what to do.

use std::convert::Infallible;
use std::future::pending;

use anyhow::bail;
use clap::Args;
use crds::VirtualMachineSnapshot;
use crds::vm::PrintableStatus;
use kube::ResourceExt as _;

use super::backup::{self, ExportedBackup};
use crate::cluster::{Cluster, ClusterError, Found, Names};

/// Machine whose disk is meant, and its snapshot; or a backup.
#[derive(Debug, Args)]
pub(in crate::commands) struct DiskArgs {
    /// Name of the virtual machine. It must be off, unless a snapshot is named.
    #[arg(value_name = "NAME", required_unless_present = "backup")]
    name: Option<String>,
    /// Name of a snapshot of the machine, which may run.
    #[arg(long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,
    /// Name of a backup, in place of a machine, which may run or be gone.
    #[arg(long, value_name = "BACKUP", conflicts_with_all = ["name", "snapshot"])]
    backup: Option<String>,
}

/// A disk, and the node that has it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) struct ExportedDisk {
    pub(in crate::commands) node: String,
    /// UID under which the node has the disk.
    pub(in crate::commands) uid: String,
    /// UID of the snapshot.
    pub(in crate::commands) snapshot: Option<String>,
    /// The backup that has it.
    pub(in crate::commands) backup: Option<ExportedBackup>,
}

impl DiskArgs {
    /// Finds the disk. `vmlet`: the namespace in which Vmlet is installed.
    pub(in crate::commands) async fn find(
        &self,
        cluster: &Cluster,
        vmlet: &str,
    ) -> anyhow::Result<ExportedDisk> {
        if let Some(backup) = &self.backup {
            return backup::find(cluster, vmlet, backup).await;
        }
        let name = self.machine();
        let found = cluster.find(name).await?;
        let Some(snapshot) = &self.snapshot else {
            return disk(name, &found);
        };
        let api = cluster.api::<VirtualMachineSnapshot>();
        let about = |error| ClusterError::about(&cluster.namespace, snapshot, error);
        let object = api.get_opt(snapshot).await.map_err(about)?;
        snapshot_of(name, &found, snapshot, object.as_ref())
    }

    /// The name of the machine; empty where a backup is named.
    fn machine(&self) -> &str {
        Names::machine(self.name.as_deref().unwrap_or_default())
    }
}

impl ExportedDisk {
    /// Has its node reach it for as long as this runs.
    pub(super) async fn hold(&self, cluster: &Cluster) -> Infallible {
        match &self.backup {
            Some(backup) => backup.hold(cluster).await,
            None => pending().await,
        }
    }

    /// It was fetched: the node needs nothing more for it.
    pub(in crate::commands) async fn leave(&self, cluster: &Cluster) {
        if let Some(backup) = &self.backup {
            backup.leave(cluster).await;
        }
    }
}

/// As users name it.
impl std::fmt::Display for DiskArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let machine = self.machine();
        match (&self.backup, &self.snapshot) {
            (Some(backup), _) => write!(f, "backup {backup}"),
            (None, Some(snapshot)) => write!(f, "snapshot {snapshot} of {machine}"),
            (None, None) => f.write_str(machine),
        }
    }
}

/// Where the disk of a machine is, if it is complete as it is now.
fn disk(name: &str, found: &Found) -> anyhow::Result<ExportedDisk> {
    let status = found.vm.status.clone().unwrap_or_default();
    if status.printable_status == Some(PrintableStatus::Suspended) {
        bail!(
            "{name} is suspended, and its disk is incomplete without its memory: `vmletctl resume {name}`, then \
             `vmletctl stop {name}`"
        );
    }
    if found.pod.is_some() {
        refuse_claim(name, found)?;
        bail!(
            "{name} runs, and its disk changes while it does: take a snapshot (`vmletctl snapshot {name} --watch`) and name \
             it with --snapshot, or `vmletctl stop {name}` and wait until `vmletctl status {name}` says Stopped"
        );
    }
    place(name, found)
}

/// Where a snapshot of a machine is, if it was taken of the disk that the machine has.
fn snapshot_of(
    machine: &str,
    found: &Found,
    name: &str,
    object: Option<&VirtualMachineSnapshot>,
) -> anyhow::Result<ExportedDisk> {
    let Some(snapshot) = object else {
        bail!(
            "there is no snapshot {name}: `vmletctl snapshots {machine}` lists those of {machine}"
        );
    };
    if snapshot.spec.vm_name != machine {
        let other = &snapshot.spec.vm_name;
        bail!("snapshot {name} is one of machine {other}, and not of {machine}");
    }
    if !snapshot.is_created() {
        bail!("snapshot {name} is not taken yet: `vmletctl snapshots {machine}` says why");
    }
    let place = place(machine, found)?;
    let taken_of = snapshot
        .status
        .as_ref()
        .and_then(|status| status.disk_uid.as_ref());
    if taken_of.is_some_and(|uid| *uid != place.uid) {
        bail!("snapshot {name} is one of an earlier disk of {machine}, which is gone");
    }
    Ok(ExportedDisk {
        snapshot: snapshot.uid(),
        ..place
    })
}

/// The node that has the disk of a machine.
fn place(name: &str, found: &Found) -> anyhow::Result<ExportedDisk> {
    refuse_claim(name, found)?;
    let status = found.vm.status.clone().unwrap_or_default();
    let uid = status.disk_uid.or_else(|| found.vm.metadata.uid.clone());
    match status.node_name.zip(uid) {
        Some((node, uid)) => Ok(ExportedDisk {
            node,
            uid,
            snapshot: None,
            backup: None,
        }),
        None => bail!("{name} has no disk yet: `vmletctl status {name}` says what it waits for"),
    }
}

fn refuse_claim(name: &str, found: &Found) -> anyhow::Result<()> {
    let status = found.vm.status.as_ref();
    let unique_id = status.and_then(|status| status.unique_id.as_ref());
    if unique_id.is_some_and(|id| id.starts_with("pvc/")) {
        bail!(
            "the root disk of {name} is a claim, and not a file of a node: copy the claim with the means of its storage"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(status: &Value, pod: Option<()>) -> Found {
        let vm = serde_json::from_value(json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "uid": "u1"}, "spec": {"running": true}, "status": status,
        }));
        Found {
            vm: vm.unwrap(),
            pod: pod.map(|()| k8s_openapi::api::core::v1::Pod::default()),
        }
    }

    fn taken(vm: &str, disk: Option<&str>, created: &str) -> VirtualMachineSnapshot {
        let created = json!({"type": "VirtualMachineSnapshotCreated", "status": created, "reason": "R",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let snapshot = json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
            "metadata": {"name": "s", "uid": "s1"}, "spec": {"vmName": vm},
            "status": {"diskUID": disk, "conditions": [created]},
        });
        serde_json::from_value(snapshot).unwrap()
    }

    #[test]
    fn the_disk_of_a_stopped_machine_is_on_its_node() {
        let disk_of = |status, pod| disk("web", &found(&status, pod));
        let here = disk_of(json!({"nodeName": "n1"}), None).unwrap();
        assert_eq!((&*here.node, &*here.uid), ("n1", "u1"));
        let adopted = disk_of(json!({"nodeName": "n1", "diskUID": "u2"}), None).unwrap();
        assert_eq!(adopted.uid, "u2");
        for (status, pod, words) in [
            (json!({}), None, "has no disk yet"),
            (json!({"nodeName": "n1"}), Some(()), "vmletctl stop web"),
            (
                json!({"printableStatus": "Suspended", "nodeName": "n1"}),
                Some(()),
                "is suspended",
            ),
            (
                json!({"uniqueID": "pvc/x", "nodeName": "n1"}),
                None,
                "is a claim",
            ),
            (
                json!({"uniqueID": "pvc/x", "nodeName": "n1"}),
                Some(()),
                "is a claim",
            ),
        ] {
            let refused = disk_of(status, pod).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_snapshot_is_of_the_disk_that_the_machine_has_now() {
        let running = found(&json!({"nodeName": "n1", "diskUID": "u2"}), Some(()));
        let find =
            |object: Option<&VirtualMachineSnapshot>| snapshot_of("web", &running, "s", object);
        for disk in [Some("u2"), None] {
            let here = find(Some(&taken("web", disk, "True"))).unwrap();
            assert_eq!(here.snapshot.as_deref(), Some("s1"));
            assert_eq!((&*here.node, &*here.uid), ("n1", "u2"));
        }
        for (object, words) in [
            (None, "there is no snapshot s"),
            (Some(taken("db", Some("u2"), "True")), "of machine db"),
            (Some(taken("web", Some("u2"), "False")), "not taken yet"),
            (Some(taken("web", Some("u1"), "True")), "an earlier disk"),
        ] {
            let refused = find(object.as_ref()).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let claim = found(&json!({"uniqueID": "pvc/x", "nodeName": "n1"}), None);
        let refused = snapshot_of("web", &claim, "s", Some(&taken("web", None, "True")));
        assert!(refused.unwrap_err().to_string().contains("is a claim"));
    }
}
