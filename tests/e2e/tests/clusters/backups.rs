//! Backups of a machine that runs, with the controller, the agent and a guest, and machines that are restored from them.
//!
//! Invariant: the guest counts its boots on the disk: a machine that is restored counts on from the number that the backup
//! has. A claim has the backups of its namespace, for machines on any node that can mount it.
//! Failure: the backup or the machine is shown, with its pod and its tasks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, NodeApi, Options, eventually};
use jiff::{SignedDuration, Timestamp};
use nodeapi::v1;
use nodeapi::v1::export_event::Event;
use serde_json::{Value, json};
use tonic::Status;

use crate::claims;
use crate::images::vmletctl;

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
/// Each node of a test has it.
const IN_TARGET: [&str; 2] = ["--target", "local"];
/// A claim of the test, and its volume.
const CLAIM: &str = "store";
const IN_CLAIM: [&str; 2] = ["--claim", CLAIM];

#[tokio::test]
#[ignore = "needs root"]
async fn machines_are_restored_from_backups_of_one_that_is_gone() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("vm", &[1], UP).await?;
    let first = backup(&cluster, "first", &IN_TARGET)?;
    ensure!(first["status"]["type"] == "Full", "{first}");
    ensure!(first["status"]["powerState"] == "PoweredOn", "{first}");

    restart(&cluster).await?;
    cluster.await_boots("vm", &[2], UP).await?;
    let second = backup(&cluster, "second", &IN_TARGET)?;
    ensure!(second["status"]["type"] == "Incremental", "{second}");
    ensure!(second["status"]["parent"]["name"] == "first", "{second}");
    vmletctl(&cluster, &["backup", "verify", "second", "--watch"])?;
    let verified = cluster.get_json(&["vmbackup", "second"])?;
    let state = condition(&verified, "VirtualMachineBackupVerified");
    ensure!(state["status"] == "True", "{state}");

    // The machine goes, and its backups stay.
    cluster.delete("vm/vm", DOWN)?;
    let list = vmletctl(&cluster, &["backup", "list", "vm"])?;
    ensure!(list.contains("Incremental"), "{list}");
    for (name, of, boots) in [("later", "second", 3), ("earlier", "first", 2)] {
        vmletctl(&cluster, &["restore", of, name, "--watch"])?;
        cluster.await_boots(name, &[boots], UP).await?;
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }

    cluster.kubectl(&["delete", "vmbackup", "first", "--wait=false"])?;
    eventually(UP, "the wait for the later backup", || async {
        let first = cluster.get_json(&["vmbackup", "first"])?;
        let ready = condition(&first, "VirtualMachineBackupReady");
        let text = ready["message"].as_str().unwrap_or_default();
        ensure!(text.contains("backup second builds upon it"), "{ready}");
        Ok(())
    })
    .await?;
    cluster.delete("vmbackup/second", DOWN)?;
    cluster.await_gone("vmbackup/first", DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_claim_has_the_backups_of_its_namespace() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    let store = shared_claim(&cluster)?;
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("vm", &[1], UP).await?;
    let first = backup(&cluster, "first", &IN_CLAIM)?;
    ensure!(first["status"]["type"] == "Full", "{first}");
    let claim = cluster.get_json(&["pvc", CLAIM])?;
    let is_recorded = first["status"]["targetClaimUID"] == claim["metadata"]["uid"];
    ensure!(is_recorded, "{first}");
    ensure!(manifests(&store)? == 1, "nothing is in the claim");

    restart(&cluster).await?;
    cluster.await_boots("vm", &[2], UP).await?;
    let second = backup(&cluster, "second", &IN_CLAIM)?;
    ensure!(second["status"]["type"] == "Incremental", "{second}");
    vmletctl(&cluster, &["backup", "verify", "second", "--watch"])?;
    await_no_pod(&cluster).await?;
    fetch(&cluster, &second).await?;

    // The machine is made again on the other node.
    let node = cluster.vm("vm")?["status"]["nodeName"].clone();
    let node = node.as_str().context("no node")?;
    cluster.delete("vm/vm", DOWN)?;
    cluster.kubectl(&["cordon", node])?;
    vmletctl(&cluster, &["restore", "second", "later", "--watch"])?;
    cluster.await_boots("later", &[3], UP).await?;
    let later = cluster.vm("later")?;
    ensure!(later["status"]["nodeName"] != node, "{later}");
    cluster.kubectl(&["uncordon", node])?;
    await_no_pod(&cluster).await?;
    cluster.delete("vm/later", DOWN)?;
    cluster.delete("vmbackup/second", DOWN)?;
    cluster.delete("vmbackup/first", DOWN)?;
    ensure!(manifests(&store)? == 0, "something is left in the claim");
    cluster.await_clean().await?;
    cluster.down()
}

/// A node sends what the backup has, while the controller has the claim mounted for that, and to no other namespace.
async fn fetch(cluster: &Cluster, backup: &Value) -> Result<()> {
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let key = "vmlet.dev/backup-mounted-until";
    let annotate = |change: String| cluster.kubectl(&["annotate", "vmbackup", "second", &change]);
    annotate(format!("{key}={until}"))?;
    let node = eventually(UP, "a pod with the claim", || async {
        let pods = cluster.get_json(&["pods", "-l", "vmlet.dev/role=backup-target"])?;
        let pod = &pods["items"][0];
        let state = &pod["status"]["containerStatuses"][0]["state"];
        ensure!(!state["running"].is_null(), "{pods}");
        Ok(pod["spec"]["nodeName"].clone())
    })
    .await?;
    let mut nodes = cluster.nodes();
    let node = nodes.find(|one| one.var("VMLET_CLUSTER_NODE").is_ok_and(|name| node == name));
    let node = node.context("no such node")?.node().await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &backup["status"];
    let request = |vm_name: &str| v1::ExportBackupRequest {
        vm_uid: text(&status["diskUID"]),
        backup_uid: text(&backup["metadata"]["uid"]),
        target: format!("claim:{}", text(&status["targetClaimUID"])),
        vm_name: vm_name.to_owned(),
        sha256: text(&status["manifestSHA256"]),
        ..v1::ExportBackupRequest::default()
    };
    let refused = sent(&node, request("other/vm")).await;
    let refused = refused.err().context("another namespace has the backup")?;
    let is_refused = refused.message().contains("no pod of namespace other");
    ensure!(is_refused, "{refused}");
    ensure!(
        sent(&node, request("default/vm")).await? > 0,
        "nothing is sent"
    );
    annotate(format!("{key}-"))?;
    await_no_pod(cluster).await
}

/// How many bytes a node sends of a backup.
async fn sent(node: &NodeApi, request: v1::ExportBackupRequest) -> Result<usize, Status> {
    let events = node.node.clone().export_backup(request).await?;
    let mut events = events.into_inner();
    let mut bytes = 0;
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Data(data)) => bytes += data.len(),
            Some(Event::End(_)) => return Ok(bytes),
            _ => {}
        }
    }
    Err(Status::unknown("the export has no end"))
}

/// A claim that each node can mount; returns what it has.
fn shared_claim(cluster: &Cluster) -> Result<PathBuf> {
    let directory = claims::directory(cluster, CLAIM)?;
    let nodes = cluster.nodes().map(|node| node.var("VMLET_CLUSTER_NODE"));
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    let mut volume = claims::volume(CLAIM, "Filesystem", &directory, nodes[0]);
    let modes = json!(["ReadWriteMany"]);
    volume["spec"]["accessModes"] = modes.clone();
    let required = &mut volume["spec"]["nodeAffinity"]["required"];
    required["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] = json!(nodes);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": CLAIM },
        "spec": {
            "accessModes": modes, "storageClassName": "", "volumeName": CLAIM,
            "resources": { "requests": { "storage": "96Mi" } },
        },
    });
    let items = json!([volume, claim]);
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
    Ok(directory)
}

/// How many complete backups a directory has.
fn manifests(directory: &Path) -> Result<usize> {
    let mut found = 0;
    for machine in fs::read_dir(directory)? {
        for backup in fs::read_dir(machine?.path())? {
            found += usize::from(backup?.path().join("manifest.json").exists());
        }
    }
    Ok(found)
}

/// No node has the claim mounted.
async fn await_no_pod(cluster: &Cluster) -> Result<()> {
    eventually(DOWN, "the end of the pods with the claim", || async {
        let pods = cluster.get_json(&["pods", "-l", "vmlet.dev/role=backup-target"])?;
        let all = pods["items"].as_array().context("no list")?;
        ensure!(all.is_empty(), "{pods}");
        Ok(())
    })
    .await
}

/// A backup of the machine, once its place has it.
fn backup(cluster: &Cluster, name: &str, place: &[&str; 2]) -> Result<Value> {
    let request = ["backup", "create", "vm", "--watch", "--name", name];
    vmletctl(cluster, &[request.as_slice(), place].concat())?;
    cluster.get_json(&["vmbackup", name])
}

/// The guest powers off, and boots in another pod.
async fn restart(cluster: &Cluster) -> Result<()> {
    cluster.patch_vm("vm", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("vm", "Stopped", DOWN).await?;
    cluster.patch_vm("vm", &json!({ "runStrategy": "Always" }))
}
