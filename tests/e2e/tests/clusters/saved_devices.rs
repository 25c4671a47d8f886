//! Devices of a machine that are edited while its memory is saved.
//!
//! Invariant: the guest continues with the devices that its memory knows; the edits take effect at
//! the next boot.
//! Failure: the devices that the guest sees.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, Guest};
use serde_json::json;

use super::claims;
use super::machines::condition;

/// The volume and its claim.
const EXTRA: &str = "extra";
/// How the port of `vmlet-guest` begins.
const PORT: &str = "dev.vmlet.";
const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);

/// A volume more and a port less than the saved memory knows.
pub(super) fn edit(cluster: &Cluster, name: &str) -> Result<()> {
    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    let path = claims::directory(cluster, EXTRA)?;
    cluster.apply(&claims::volume(EXTRA, "Filesystem", &path, node))?;
    cluster.apply(&json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": EXTRA },
        "spec": {
            "storageClassName": "",
            "volumeName": EXTRA,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "96Mi" } },
        },
    }))?;
    let edits = json!({
        "volumes": [{ "name": EXTRA, "persistentVolumeClaim": { "claimName": EXTRA } }],
        "template": { "metadata": { "annotations": { "vmlet.dev/guest-agent": "off" } } },
    });
    cluster.patch_vm(name, &edits)
}

/// What was edited while the machine was suspended takes effect at its next boot.
pub(super) async fn take_effect(cluster: &Cluster, name: &str) -> Result<()> {
    let devices = ["sh", "-c", "ls /sys/block /dev/virtio-ports"];
    let before = Guest::in_pod(cluster.stack(), name)?.run(&devices)?;
    cluster
        .await_vm(name, "a restart is required", DOWN, |vm| {
            let required = condition(vm, "RestartRequired")?;
            ensure!(required["status"] == "True", "{required}");
            Ok(())
        })
        .await?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    let after = cluster.run_inside(name, &devices, UP).await?;
    // A disk more, and a port less.
    let disks = [count(&before, "vd") + 1, count(&after, "vd")];
    let ports = [count(&before, PORT), count(&after, PORT) + 1];
    ensure!(
        disks[0] == disks[1] && ports[0] == ports[1],
        "{before}, then {after}"
    );
    cluster
        .await_vm(name, "no restart is required", DOWN, |vm| {
            let required = condition(vm, "RestartRequired").ok();
            ensure!(required.is_none_or(|one| one["status"] == "False"), "{vm}");
            Ok(())
        })
        .await
}

/// How many of the devices have names that begin like this.
fn count(devices: &str, begin: &str) -> usize {
    let lines = devices.lines();
    lines.filter(|line| line.starts_with(begin)).count()
}

/// Removes the volume, after the machine.
pub(super) fn forget(cluster: &Cluster) -> Result<()> {
    cluster.delete(&format!("pvc/{EXTRA}"), DOWN)?;
    cluster.delete(&format!("pv/{EXTRA}"), DOWN)
}
