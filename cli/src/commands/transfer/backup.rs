//! The backup that a user means, and the node that sends what it has.
//!
//! Invariant: what a node sends is named by the UIDs of backup and disk, and by the digest of the backup's manifest. A user
//! who may not restore a backup does not export it by this command, although who runs programs in the pods of Vmlet could
//! read it by other means.
//! Failure: a sentence that says why it cannot be had, and what to do.

use std::convert::Infallible;
use std::future::pending;

use anyhow::{Context as _, bail};
use crds::guard::Guarded;
use crds::node_facts::{NodeFacts, is_fresh, node_of_lease};
use crds::{BackupPlace, VirtualMachineBackup, names};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PostParams};

use super::claim;
use super::disk::ExportedDisk;
use crate::cluster::{Cluster, ClusterError, listed};

/// A backup in its target, as nodes name it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) struct ExportedBackup {
    /// UID of its object.
    pub(super) uid: String,
    pub(super) target: String,
    /// `namespace/name` of its machine.
    pub(super) vm_name: String,
    /// Of its manifest.
    pub(super) sha256: Option<String>,
    /// Name of its object, if it is in a claim that a pod has mounted for this command.
    claimed: Option<String>,
}

/// Finds a backup of the namespace, and a node with its target. `vmlet`: the namespace in which Vmlet is installed.
pub(super) async fn find(
    cluster: &Cluster,
    vmlet: &str,
    name: &str,
) -> anyhow::Result<ExportedDisk> {
    let about = |error| ClusterError::about(&cluster.namespace, name, error);
    let api = cluster.api::<VirtualMachineBackup>();
    let Some(object) = api.get_opt(name).await.map_err(about)? else {
        bail!("there is no backup {name}: `vmletctl backup list` lists those of the namespace");
    };
    refuse_unusable(name, &object)?;
    refuse_forbidden(cluster, name).await?;
    let status = object.status.unwrap_or_default();
    let Some(disk) = status.disk_uid else {
        bail!("backup {name} has no disk on record: export another one");
    };
    let uid = object.metadata.uid.unwrap_or_default();
    let made_by = status.node_name.as_deref();
    let (node, target, claimed) = match object.spec.place() {
        BackupPlace::Target(target) => {
            let node = node_of(cluster, vmlet, target, made_by).await?;
            (node, target.to_owned(), None)
        }
        BackupPlace::Claim(_) => {
            let claim = status.target_claim_uid.unwrap_or_default();
            let target = format!("{}{claim}", names::CLAIM_TARGET);
            let node = claim::mount(cluster, name, &uid).await?;
            (node, target, Some(name.to_owned()))
        }
    };
    Ok(ExportedDisk {
        node,
        uid: disk,
        snapshot: None,
        backup: Some(ExportedBackup {
            uid,
            target,
            vm_name: format!("{}/{}", cluster.namespace, object.spec.vm_name),
            sha256: status.manifest_sha256,
            claimed,
        }),
    })
}

/// The node that made the backup, or else another one that has its target.
async fn node_of(
    cluster: &Cluster,
    vmlet: &str,
    target: &str,
    made_by: Option<&str>,
) -> anyhow::Result<String> {
    let leases: Api<Guarded<Lease>> = Api::namespaced(cluster.client.clone(), vmlet);
    let ours = ListParams::default().labels(names::NODE_LEASE_LABEL);
    let leases = listed::readable(&leases, &ours).await?;
    let able = able(&leases, target, Timestamp::now());
    let made_by = made_by.filter(|node| able.iter().any(|one| one == node));
    let node = made_by.map(str::to_owned);
    let Some(node) = node.or_else(|| able.into_iter().next()) else {
        bail!(
            "no node with a vmlet-agent that renews its lease has the backup target {target}: add it to backup.targets of a \
             node that reaches it"
        );
    };
    Ok(node)
}

impl ExportedBackup {
    /// Has its claim stay mounted for as long as this runs.
    pub(super) async fn hold(&self, cluster: &Cluster) -> Infallible {
        match &self.claimed {
            Some(name) => claim::hold(cluster, name).await,
            None => pending().await,
        }
    }

    /// It was fetched: no node needs its claim any more.
    pub(super) async fn leave(&self, cluster: &Cluster) {
        if let Some(name) = &self.claimed {
            claim::unmount(cluster, name).await;
        }
    }
}

/// Refuses a backup of which no target has data.
fn refuse_unusable(name: &str, backup: &VirtualMachineBackup) -> anyhow::Result<()> {
    if backup.metadata.deletion_timestamp.is_some() {
        bail!("backup {name} is being deleted: export another one");
    }
    let requested = backup.annotations().get(names::BACKUP_UID);
    if requested.is_some() && requested != backup.metadata.uid.as_ref() {
        bail!(
            "the object of backup {name} was restored from a backup or copied, and no target has data of it: export another one"
        );
    }
    if backup.has_failed() {
        bail!("backup {name} failed: export another one");
    }
    if !backup.is_completed() {
        bail!(
            "backup {name} is not complete yet: `vmletctl backup list {}` shows when it is",
            backup.spec.vm_name
        );
    }
    Ok(())
}

/// The same right as for a machine that is restored from the backup.
async fn refuse_forbidden(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let namespace = &cluster.namespace;
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(crds::GROUP.to_owned()),
                resource: Some("virtualmachinebackups".to_owned()),
                subresource: Some("source".to_owned()),
                verb: Some("create".to_owned()),
                namespace: Some(namespace.clone()),
                name: Some(name.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let judged = api.create(&PostParams::default(), &review).await;
    let judged = judged
        .map_err(ClusterError::from_api)
        .context("failed to find out whether you may read the backup")?;
    if judged.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    bail!(
        "not allowed: to export backup {name} needs create on virtualmachinebackups/source in namespace {namespace}, as to \
         restore it"
    )
}

/// The nodes that work on a target now, in the order of their names.
fn able(leases: &[Lease], target: &str, now: Timestamp) -> Vec<String> {
    let feature = format!("{}{target}", names::BACKUP_TARGET);
    let has_target = |lease: &&Lease| {
        let facts = NodeFacts::of_lease(lease).filter(|facts| facts.daemon.reachable);
        let features = facts.map(|facts| [facts.daemon.features, facts.features].concat());
        features.is_some_and(|all| all.contains(&feature))
    };
    let fresh = leases.iter().filter(|lease| is_fresh(lease, &Time(now)));
    let able = fresh.filter(has_target);
    let mut able: Vec<_> = able
        .filter_map(|lease| node_of_lease(lease.metadata.name.as_deref()?).map(str::to_owned))
        .collect();
    able.sort_unstable();
    able
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(status: &Value, (field, value): (&str, Value)) -> VirtualMachineBackup {
        let mut object = json!({
            "metadata": { "name": "b", "uid": "u1" }, "spec": { "vmName": "web" },
            "status": status,
        });
        object["metadata"][field] = value;
        serde_json::from_value(object).unwrap()
    }

    fn completed(status: &str, reason: &str) -> Value {
        json!({ "conditions": [{
            "type": "VirtualMachineBackupCompleted", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] })
    }

    #[test]
    fn a_backup_that_no_target_has_is_refused() {
        let complete = completed("True", "Completed");
        let own = ("annotations", json!({ names::BACKUP_UID: "u1" }));
        refuse_unusable("b", &backup(&complete, own.clone())).unwrap();
        let failed = completed("False", crds::conditions::BACKUP_FAILED);
        let copied = ("annotations", json!({ names::BACKUP_UID: "u0" }));
        let deleted = ("deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        for (status, field, words) in [
            (json!({}), own.clone(), "not complete yet"),
            (failed, own, "failed"),
            (complete.clone(), copied, "no target has data of it"),
            (complete, deleted, "is being deleted"),
        ] {
            let refused = refuse_unusable("b", &backup(&status, field));
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn the_nodes_of_a_target_are_those_that_live_and_have_it() {
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let lease = |node: &str, seconds: u32, reachable: bool, target: &str| -> Lease {
            let facts = json!({
                "daemon": { "reachable": reachable, "features": [] },
                "features": [format!("{}{target}", names::BACKUP_TARGET)],
            });
            serde_json::from_value(json!({
                "metadata": {
                    "name": format!("vmlet-node-{node}"),
                    "annotations": { names::NODE_FACTS: facts.to_string() },
                },
                "spec": { "renewTime": format!("2026-01-01T00:00:{seconds:02}.000000Z") },
            }))
            .unwrap()
        };
        let mut late = lease("late", 0, true, "nfs");
        let renewed = late.spec.as_mut().unwrap().renew_time.as_mut().unwrap();
        renewed.0 = "2025-12-31T23:59:00Z".parse().unwrap();
        let leases = [
            lease("n2", 29, true, "nfs"),
            lease("n1", 29, true, "nfs"),
            lease("away", 29, false, "nfs"),
            lease("other", 29, true, "nfs-2"),
            late,
        ];
        assert_eq!(able(&leases, "nfs", now), ["n1", "n2"]);
        assert_eq!(able(&leases, "gone", now), Vec::<String>::new());
    }
}
