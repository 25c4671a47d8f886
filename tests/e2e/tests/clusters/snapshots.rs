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

    revert(&cluster, "first").await?;
    cluster.await_boots("vm", &[2], UP).await?;
    restart(&cluster).await?;
    cluster.await_boots("vm", &[3], UP).await?;

    cluster.patch_vm("vm", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("vm", "Stopped", DOWN).await?;
    cluster.delete("vmsnap/first", DOWN)?;
    cluster.patch_vm("vm", &json!({ "runStrategy": "Always" }))?;
    cluster.await_boots("vm", &[4], UP).await?;
    resumes_from_a_snapshot(&cluster).await?;
    cluster.delete("vm/vm", DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}

/// The guest goes on from the moment of its snapshot, and does not boot; it does at the next start.
async fn resumes_from_a_snapshot(cluster: &Cluster) -> Result<()> {
    cluster.await_agent("vm", UP).await?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
        "metadata": { "name": "memory" }, "spec": { "vmName": "vm", "memory": true },
    }))?;
    let taken = await_taken(cluster, "memory").await?;
    ensure!(taken["status"]["memory"] == true, "{}", taken["status"]);
    restart(cluster).await?;
    cluster.await_boots("vm", &[5], UP).await?;
    revert(cluster, "memory").await?;
    cluster
        .await_vm("vm", "the machine that resumes", UP, |vm| {
            let state = &vm["status"]["powerState"];
            ensure!(state == "PoweredOn", "{}", vm["status"]);
            Ok(())
        })
        .await?;
    eventually(UP, "a tick", || async {
        let log = cluster.logs("vm")?;
        ensure!(log.contains("VMLET-TICK"), "{log}");
        Ok(())
    })
    .await?;
    cluster.await_boots("vm", &[], UP).await?;
    cluster.await_commands("vm", UP).await?;
    restart(cluster).await?;
    cluster.await_boots("vm", &[5], UP).await?;
    cluster.delete("vmsnap/memory", DOWN)
}

async fn revert(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.patch_vm("vm", &json!({ "currentSnapshotName": name }))?;
    let is_over = |vm: &Value| {
        let spec = &vm["spec"];
        let is_over = spec["currentSnapshotName"].is_null();
        ensure!(
            is_over && vm["status"]["snapshotRevert"].is_null(),
            "{spec}"
        );
        Ok(())
    };
    let reverted = cluster.await_vm("vm", "the end of the revert", UP, is_over);
    reverted.await.map(drop)
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
