//! A replica set of two guests: both run, one is scaled away, the other is replaced.
//!
//! Invariant: machines are distinguished by their UIDs.
//! Failure: the set, or the machine, as it was last seen.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::condition;
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn a_set_runs_scales_and_replaces_its_guests() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    story(&cluster).await?;
    cluster.await_clean().await?;
    cluster.down()
}

async fn story(cluster: &Cluster) -> Result<()> {
    let labels = json!({ "app": "farm" });
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineReplicaSet",
        "metadata": { "name": "farm" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": labels },
            "updateStrategy": { "type": "RollingUpdate" },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "className": "tiny", "imageName": "guest", "runStrategy": "Always",
                    "powerOffTimeout": "30s",
                },
            },
        },
    }))?;
    ready(cluster, 2).await?;
    for name in ["farm-0", "farm-1"] {
        cluster.await_boots(name, &[1], UP).await?;
    }
    let pods = cluster.kubectl(&["get", "pods", "-l", "app=farm", "-o", "name"])?;
    ensure!(pods.lines().count() == 2, "{pods}");

    cluster.kubectl(&["scale", "vmrs", "farm", "--replicas=1"])?;
    cluster.kubectl(&["wait", "vm/farm-1", "--for=delete", "--timeout=180s"])?;
    ready(cluster, 1).await?;

    let before = uid(&cluster.vm("farm-0")?);
    let change = json!({ "spec": { "template": { "spec": { "powerOffTimeout": "20s" } } } });
    let change = change.to_string();
    cluster.kubectl(&["patch", "vmrs", "farm", "--type=merge", "-p", &change])?;
    eventually(UP, "farm-0 is another machine", || async {
        let vm = cluster.vm("farm-0")?;
        ensure!(uid(&vm) != before, "{vm:#}");
        Ok(())
    })
    .await?;
    ready(cluster, 1).await?;
    cluster.await_boots("farm-0", &[1], UP).await?;
    cluster.delete("vmrs/farm", DOWN)?;
    cluster
        .kubectl(&["wait", "vm/farm-0", "--for=delete", "--timeout=180s"])
        .map(drop)
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].to_string()
}

/// Waits until the set has so many machines, all of the present template and ready.
async fn ready(cluster: &Cluster, replicas: u64) -> Result<()> {
    eventually(UP, &format!("{replicas} guests are ready"), || async {
        let set = cluster.get_json(&["vmrs", "farm"])?;
        let status = &set["status"];
        let counts = ["replicas", "availableReplicas", "updatedReplicas"];
        let is_it = counts.iter().all(|count| status[count] == replicas);
        let is_seen = status["observedGeneration"] == set["metadata"]["generation"];
        let is_ready = condition(&set, "Ready")["status"] == "True";
        ensure!(is_it && is_seen && is_ready, "{set:#}");
        Ok(())
    })
    .await
}
