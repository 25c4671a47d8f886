//! Backups of a machine that runs, with the controller, the agent and a guest, and machines that are restored from them.
//!
//! Invariant: the guest counts its boots on the disk: a machine that is restored counts on from the number that the backup
//! has.
//! Failure: the backup or the machine is shown, with its pod and its tasks.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

use crate::images::vmletctl;

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
/// Each node of a test has it.
const TARGET: &str = "local";

#[tokio::test]
#[ignore = "needs root"]
async fn machines_are_restored_from_backups_of_one_that_is_gone() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("vm", &[1], UP).await?;
    let first = backup(&cluster, "first")?;
    ensure!(first["status"]["type"] == "Full", "{first}");
    ensure!(first["status"]["powerState"] == "PoweredOn", "{first}");

    restart(&cluster).await?;
    cluster.await_boots("vm", &[2], UP).await?;
    let second = backup(&cluster, "second")?;
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

/// A backup of the machine, once the target has it.
fn backup(cluster: &Cluster, name: &str) -> Result<Value> {
    let request = ["backup", "create", "vm", "--watch"];
    let options = ["--target", TARGET, "--name", name];
    vmletctl(cluster, &[request, options].concat())?;
    cluster.get_json(&["vmbackup", name])
}

/// The guest powers off, and boots in another pod.
async fn restart(cluster: &Cluster) -> Result<()> {
    cluster.patch_vm("vm", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("vm", "Stopped", DOWN).await?;
    cluster.patch_vm("vm", &json!({ "runStrategy": "Always" }))
}
