//! `NodeConfig` objects: their settings count on a node that they match, without a restart of the
//! daemon.
//!
//! Invariant: no other machine runs; the process of the daemon is the same at the end.
//! Failure: the step is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::condition;
use e2e::{Cluster, eventually, vm_pod};
use serde_json::json;

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const LABEL: &str = "example.com/size";

pub(super) async fn settings_count_for_the_next_pod_of_a_node_with_the_label(
    cluster: &Cluster,
) -> Result<()> {
    let daemon = cluster.stack().pid("vmlet")?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "NodeConfig", "metadata": { "name": "small" },
        "spec": {
            "nodeSelector": { LABEL: "small" },
            "config": { "defaultVcpus": 2, "defaultMemory": "160Mi", "accelerator": "tcg" },
        },
    }))?;
    await_applied(cluster, 0).await?;
    cluster.kubectl(&["label", "node", "node1", &format!("{LABEL}=small")])?;
    await_applied(cluster, 1).await?;
    run(cluster, "small", "2", "163840 KiB")
        .await
        .context("with the label")?;
    cluster.kubectl(&["label", "node", "node1", &format!("{LABEL}-")])?;
    await_applied(cluster, 0).await?;
    run(cluster, "usual", "1", "1048576 KiB")
        .await
        .context("without the label")?;
    cluster.delete("nodeconfig/small", GONE)?;
    ensure!(
        cluster.stack().pid("vmlet")? == daemon,
        "the daemon was restarted"
    );
    Ok(())
}

/// Runs a pod that specifies nothing, and compares what its machine has.
async fn run(cluster: &Cluster, name: &str, vcpus: &str, memory: &str) -> Result<()> {
    let mut pod = vm_pod(name);
    pod["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": "50m", "memory": "96Mi" } });
    cluster.apply(&pod)?;
    cluster.await_ready(&format!("pod/{name}"), READY)?;
    let stack = cluster.stack();
    let domains = stack.virsh(&["list", "--name"])?;
    let mut domains = domains.split_whitespace();
    let domain = domains.next().context("no machine runs")?;
    ensure!(domains.next().is_none(), "another machine runs");
    let info = stack.virsh(&["dominfo", domain])?;
    for (key, expected) in [("CPU(s):", vcpus), ("Max memory:", memory)] {
        let mut lines = info.lines();
        let found = lines.find_map(|line| line.strip_prefix(key));
        ensure!(
            found.map(str::trim) == Some(expected),
            "{key} {expected}: {info}"
        );
    }
    cluster.delete(&format!("pod/{name}"), GONE)
}

async fn await_applied(cluster: &Cluster, nodes: u32) -> Result<()> {
    eventually(READY, "the status of the NodeConfig", || async {
        let object = cluster.get_json(&["nodeconfig", "small"])?;
        let ready = condition(&object, "Ready");
        let is_so = object["status"]["nodes"] == nodes
            && ready["status"] == "True"
            && ready["reason"] == "Applied";
        ensure!(is_so, "{object}");
        Ok(())
    })
    .await
}
