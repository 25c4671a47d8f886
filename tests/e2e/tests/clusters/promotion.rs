//! Linked root disks become independent of their image, with the controller, the agent and guests.
//!
//! Invariant: the guest counts its boots on the disk, so that another disk would show.
//! Failure: the machine is shown, with its pod and its tasks.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::Cluster;
use e2e::machines::{condition, machine};
use serde_json::json;

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
const SYNCED: &str = "VirtualMachineDiskPromotionSynced";

async fn await_reason(cluster: &Cluster, name: &str, reason: &str) -> Result<()> {
    cluster
        .await_vm(name, reason, UP, |vm| {
            let synced = condition(vm, SYNCED);
            ensure!(synced["reason"] == reason, "{synced}");
            Ok(())
        })
        .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_linked_disk_is_promoted_while_its_machine_is_off() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    for (name, mode) in [("online", "Online"), ("offline", "Offline")] {
        let fields = json!({ "runStrategy": "Always", "promoteDisksMode": mode });
        cluster.apply(&machine(name, &fields))?;
    }
    for name in ["online", "offline"] {
        cluster.await_boots(name, &[1], UP).await?;
    }
    await_reason(&cluster, "online", "StaysLinked").await?;
    await_reason(&cluster, "offline", "DiskPromotionPending").await?;
    cluster.patch_vm("offline", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("offline", "Stopped", DOWN).await?;
    await_reason(&cluster, "offline", "Promoted").await?;
    let disks = cluster.stack().node().await?.disks().await?;
    ensure!(disks.len() == 2, "{disks:?}");
    let linked = disks.iter().filter(|disk| disk.linked).count();
    ensure!(linked == 1, "{disks:?}");

    // It boots from the disk alone.
    cluster.patch_vm("offline", &json!({ "runStrategy": "Always" }))?;
    cluster.await_boots("offline", &[2], UP).await?;
    await_reason(&cluster, "offline", "Promoted").await?;
    for name in ["online", "offline"] {
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// What its owner has not chosen is chosen by the installation, which has it here.
#[tokio::test]
#[ignore = "needs root"]
async fn a_linked_disk_is_promoted_while_its_machine_runs() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    let settings = "[machines]\nonline_promotion_after = \"5s\"\n";
    let stack = cluster.stack();
    std::fs::write(stack.dir().join("controller.toml"), settings)?;
    stack.restart("vmlet-controller")?;
    let fields = json!({ "runStrategy": "Always" });
    cluster.apply(&machine("online", &fields))?;
    cluster.await_boots("online", &[1], UP).await?;
    await_reason(&cluster, "online", "Promoted").await?;
    let disks = stack.node().await?.disks().await?;
    ensure!(matches!(&disks[..], [disk] if !disk.linked), "{disks:?}");

    // It boots from the disk alone.
    cluster.patch_vm("online", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("online", "Stopped", DOWN).await?;
    cluster.patch_vm("online", &json!({ "runStrategy": "Always" }))?;
    cluster.await_boots("online", &[2], UP).await?;
    await_reason(&cluster, "online", "Promoted").await?;
    cluster.delete("vm/online", DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}
