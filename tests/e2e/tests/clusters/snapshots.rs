//! A machine reverts to a snapshot of its disk, with the controller, the agent and a guest.
//!
//! Invariant: the guest counts its boots on the disk: after a revert it counts on from the number that the
//! snapshot has.
//! Failure: the machine is shown, with its pod and its tasks.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_boots_from_the_disk_of_its_snapshot_after_a_revert() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("vm", &[1], UP).await?;
    cluster.await_agent("vm", UP).await?;

    // Of a guest that runs. Its disk has no file system that it could freeze.
    let spec = json!({ "vmName": "vm" });
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
        "metadata": { "name": "first" }, "spec": spec,
    }))?;
    let taken = await_taken(&cluster, "first").await?;
    let status = &taken["status"];
    ensure!(
        status["quiesced"] == false && status["powerState"] == "PoweredOn",
        "{status}"
    );
    restart(&cluster).await?;
    cluster.await_boots("vm", &[2], UP).await?;

    cluster.patch_vm("vm", &json!({ "currentSnapshotName": "first" }))?;
    cluster
        .await_vm("vm", "the end of the revert", UP, |vm| {
            let is_over = vm["spec"]["currentSnapshotName"].is_null()
                && vm["status"]["snapshotRevert"].is_null();
            ensure!(is_over, "{}", vm["spec"]);
            Ok(())
        })
        .await?;
    cluster.await_boots("vm", &[2], UP).await?;
    restart(&cluster).await?;
    cluster.await_boots("vm", &[3], UP).await?;

    cluster.patch_vm("vm", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("vm", "Stopped", DOWN).await?;
    cluster.delete("vmsnap/first", DOWN)?;
    cluster.patch_vm("vm", &json!({ "runStrategy": "Always" }))?;
    cluster.await_boots("vm", &[4], UP).await?;
    cluster.delete("vm/vm", DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}

/// The guest powers off, and boots in another pod.
async fn restart(cluster: &Cluster) -> Result<()> {
    cluster.patch_vm("vm", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("vm", "Stopped", DOWN).await?;
    cluster.patch_vm("vm", &json!({ "runStrategy": "Always" }))
}

pub(crate) async fn await_taken(cluster: &Cluster, name: &str) -> Result<Value> {
    let snapshot = eventually(UP, "the snapshot", || async {
        let snapshot = cluster.get_json(&["vmsnap", name])?;
        let created = condition(&snapshot, "VirtualMachineSnapshotCreated");
        let is_decided = created["status"] == "True"
            || created["reason"] == "VirtualMachineSnapshotCreationFailed";
        ensure!(is_decided, "{}", snapshot["status"]);
        Ok(snapshot)
    })
    .await?;
    let created = condition(&snapshot, "VirtualMachineSnapshotCreated");
    ensure!(created["status"] == "True", "{created}");
    Ok(snapshot)
}
