//! Machines that are clones of a snapshot and of a machine, with the controller, the agent and guests.
//!
//! Invariant: the guest counts its boots on the disk: a clone counts on from the number that its source has.
//! Failure: the machine is shown, with its pod and its tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Cluster;
use e2e::machines::machine;
use serde_json::{Value, json};

use crate::snapshots::await_taken;

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn clones_run_beside_their_source_with_an_identity_of_their_own() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("vm", &[1], UP).await?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
        "metadata": { "name": "first" }, "spec": { "vmName": "vm" },
    }))?;
    await_taken(&cluster, "first").await?;

    // Of a machine that runs.
    let first = json!({ "snapshot": { "name": "first" } });
    cluster.apply(&clone("copy", &first))?;
    cluster.await_boots("copy", &[2], UP).await?;
    let source = identity(&cluster, "vm")?;
    let copy = identity(&cluster, "copy")?;
    ensure!(source.is_disjoint(&copy), "{source:?}, {copy:?}");
    let disks = cluster.stack().node().await?.disks().await?;
    let linked = disks.iter().filter(|disk| disk.linked).count();
    ensure!(disks.len() == 2 && linked == 1, "{disks:?}");

    // The clone outlives its source.
    cluster.delete("vm/vm", DOWN)?;
    cluster.await_gone("vmsnap/first", DOWN)?;
    off(&cluster, "copy").await?;
    cluster.patch_vm("copy", &json!({ "runStrategy": "Always" }))?;
    cluster.await_boots("copy", &[3], UP).await?;
    let later = identity(&cluster, "copy")?;
    ensure!(later == copy, "{later:?}, {copy:?}");

    // Of a machine that is off.
    off(&cluster, "copy").await?;
    let of_copy = json!({ "virtualMachine": { "name": "copy" } });
    cluster.apply(&clone("next", &of_copy))?;
    cluster.await_boots("next", &[4], UP).await?;
    let next = identity(&cluster, "next")?;
    ensure!(next.is_disjoint(&copy), "{next:?}, {copy:?}");
    for name in ["copy", "next"] {
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_that_runs_is_cloned_without_a_stop_and_keeps_no_snapshot() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("vm", &[1], UP).await?;
    let before = cluster.pod_uid("vm")?;
    let of_vm = json!({ "virtualMachine": { "name": "vm" } });
    cluster.apply(&clone("copy", &of_vm))?;
    let uid = cluster.vm("copy")?["metadata"]["uid"].clone();
    let uid = uid.as_str().context("no UID")?;
    cluster.await_boots("copy", &[2], UP).await?;
    cluster.await_gone(&format!("vmsnap/clone-{uid}"), DOWN)?;
    ensure!(cluster.pod_uid("vm")? == before, "the source was stopped");
    cluster.await_boots("vm", &[1], UP).await?;
    let source = identity(&cluster, "vm")?;
    let copy = identity(&cluster, "copy")?;
    ensure!(source.is_disjoint(&copy), "{source:?}, {copy:?}");
    // The source goes on with the disk that it has.
    off(&cluster, "vm").await?;
    cluster.patch_vm("vm", &json!({ "runStrategy": "Always" }))?;
    cluster.await_boots("vm", &[2], UP).await?;
    for name in ["vm", "copy"] {
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// A machine with this source in place of an image.
fn clone(name: &str, source: &Value) -> Value {
    let fields = json!({ "runStrategy": "Always", "source": source });
    let mut vm = machine(name, &fields);
    if let Some(spec) = vm["spec"].as_object_mut() {
        spec.remove("imageName");
    }
    vm
}

async fn off(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.patch_vm(name, &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word(name, "Stopped", DOWN).await
}

/// What a guest knows itself by: UUIDs, and the generation ID.
fn identity(cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
    let vm = cluster.vm(name)?;
    let status = ["biosUUID", "instanceUUID"].map(|field| &vm["status"][field]);
    let known = status.into_iter().filter_map(Value::as_str);
    let mut all: BTreeSet<_> = known.map(str::to_owned).collect();
    let uid = vm["metadata"]["uid"].as_str().context("no UID")?;
    all.insert(cluster.stack().generation(&format!("vmlet-{uid}"))?);
    ensure!(all.len() == 3, "{all:?}");
    Ok(all)
}
