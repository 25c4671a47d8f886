//! A machine whose root disk is a claim: a local volume on a loop device.
//!
//! Invariant: the image is written to the volume once; what the guest wrote outlives its pods, and
//! the machine.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, LoopDevice};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
const DOWN: Duration = Duration::from_secs(300);

/// A volume that is the device, on that node, and a claim to it.
fn volume_and_claim(device: &LoopDevice, node: &str) -> Value {
    let size = json!({ "storage": "96Mi" });
    let on_node = json!({
        "key": "kubernetes.io/hostname",
        "operator": "In",
        "values": [node],
    });
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": "disk" },
        "spec": {
            "capacity": size,
            "volumeMode": "Block",
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "by-hand",
            "local": { "path": device.path() },
            "nodeAffinity": {
                "required": { "nodeSelectorTerms": [{ "matchExpressions": [on_node] }] },
            },
        },
    });
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "disk" },
        "spec": {
            "volumeMode": "Block",
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "resources": { "requests": size },
        },
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [volume, claim] })
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_in_a_claim_keeps_its_disk_over_pods() -> Result<()> {
    let device = LoopDevice::new(96)?;
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    cluster.apply(&volume_and_claim(&device, node))?;
    let root = json!({
        "name": "root",
        "persistentVolumeClaim": { "claimName": "disk", "root": true },
    });
    let spec = json!({ "powerState": "PoweredOn", "volumes": [root] });
    let name = "claimed";
    cluster.apply(&machine(name, &spec))?;
    cluster.await_word(name, "Running", UP).await?;
    let vm = cluster.vm(name)?;
    let unique = vm["status"]["uniqueID"].as_str().unwrap_or_default();
    ensure!(unique.starts_with("pvc/"), "{vm}");
    let conditions = vm["status"]["conditions"].to_string();
    ensure!(!conditions.contains("volumes"), "{conditions}");
    let write = "echo kept >/boot/note && sync";
    cluster.run_inside(name, &["sh", "-c", write], UP).await?;

    let first = cluster.pod_uid(name)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    ensure!(first != cluster.pod_uid(name)?, "the pod is the same");
    let note = cluster.run_inside(name, &["cat", "/boot/note"], UP).await?;
    ensure!(note == "kept", "the disk says {note:?}");

    cluster.delete(&format!("vm/{name}"), DOWN)?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    let phase = &cluster.get_json(&["pvc", "disk"])?["status"]["phase"];
    ensure!(phase == "Bound", "the claim went with the machine: {phase}");
    let head = device.head().context("the device")?;
    ensure!(head.starts_with("vmlet-root 1 whole sha256:"), "{head}");
    cluster.delete("pvc/disk", DOWN)?;
    cluster.delete("pv/disk", DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}
