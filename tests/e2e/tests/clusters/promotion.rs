//! Linked root disks become independent of their image, with the controller, the agent and guests.
//!
//! Invariant: the guest counts its boots on the disk, so that another disk would show; the pod's UID
//! shows that a guest was not restarted.
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
async fn linked_disks_are_promoted_while_the_guest_runs_or_is_off() -> Result<()> {
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
    let pod = cluster.pod_uid("online")?;
    await_reason(&cluster, "online", "Promoted").await?;
    await_reason(&cluster, "offline", "DiskPromotionPending").await?;
    ensure!(
        cluster.pod_uid("online")? == pod,
        "the guest was not restarted"
    );
    cluster.patch_vm("offline", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("offline", "Stopped", DOWN).await?;
    await_reason(&cluster, "offline", "Promoted").await?;
    let disks = cluster.stack().node().await?.disks().await?;
    ensure!(disks.len() == 2, "{disks:?}");
    ensure!(disks.iter().all(|disk| !disk.linked), "{disks:?}");

    // Both boot from the disks alone.
    cluster.patch_vm("online", &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word("online", "Stopped", DOWN).await?;
    for name in ["online", "offline"] {
        cluster.patch_vm(name, &json!({ "runStrategy": "Always" }))?;
        cluster.await_boots(name, &[2], UP).await?;
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}
