//! A VirtualMachine on a real cluster, from its creation to its end, with a real guest.
//!
//! Invariant: the guest's disk is the same one at every start; nothing is left when the object is gone.
//! Failure: the machine is shown whole, with its pod and tasks.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Guest, eventually};
use serde_json::json;

const NAME: &str = "machine";
/// A guest may have to boot on a busy host.
const RUNNING: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_runs_restarts_stops_and_goes() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.apply(&machine(NAME, &json!({ "runStrategy": "Always" })))?;
    cluster.await_word(NAME, "Running", RUNNING).await?;
    let first = cluster.pod_uid(NAME)?;
    has_an_address(&cluster).await?;
    write_marker(&cluster).await?;

    // The guest powers itself off: another pod, the same disk.
    let _ = Guest::of(cluster.stack(), NAME)?.run(&["poweroff"]);
    let second = another_pod(&cluster, &first).await?;
    cluster.await_word(NAME, "Running", RUNNING).await?;
    read_marker(&cluster).await?;

    cluster.patch_vm(NAME, &json!({ "runStrategy": "Halted" }))?;
    cluster.await_word(NAME, "Stopped", SOON).await?;
    cluster.await_gone(&format!("pod/{NAME}"), SOON)?;
    cluster.patch_vm(NAME, &json!({ "runStrategy": "Always" }))?;
    another_pod(&cluster, &second).await?;
    cluster.await_word(NAME, "Running", RUNNING).await?;
    read_marker(&cluster).await?;

    cluster.delete(&format!("vm/{NAME}"), SOON)?;
    cluster.await_gone(&format!("pod/{NAME}"), SOON)?;
    // The harness counts disks, domains, namespaces and links that are left.
    cluster.await_clean().await?;
    cluster.down()
}

async fn has_an_address(cluster: &Cluster) -> Result<()> {
    let what = "an address";
    cluster
        .await_vm(NAME, what, SOON, |vm| {
            let ip = &vm["status"]["network"]["primaryIP4"];
            ensure!(ip.is_string(), "{}", vm["status"]["network"]);
            Ok(())
        })
        .await
}

async fn another_pod(cluster: &Cluster, than: &str) -> Result<String> {
    eventually(SOON, "another pod", || async {
        let uid = cluster.pod_uid(NAME)?;
        ensure!(uid != than, "still {uid}");
        Ok(uid)
    })
    .await
}

async fn write_marker(cluster: &Cluster) -> Result<()> {
    in_guest(cluster, "echo kept >/boot/marker; sync").await
}

async fn read_marker(cluster: &Cluster) -> Result<()> {
    in_guest(cluster, "grep -q kept /boot/marker").await
}

/// Runs a line of shell in the guest, once its agent answers.
async fn in_guest(cluster: &Cluster, line: &str) -> Result<()> {
    eventually(SOON, line, || async {
        Guest::of(cluster.stack(), NAME)?.run(&["sh", "-c", line])?;
        Ok(())
    })
    .await
}
