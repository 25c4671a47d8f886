//! Pods that are deleted at the worst moment, and many that come and go at once, leave nothing
//! behind.
//!
//! Invariant: each moment is awaited, not guessed; afterwards the node is as empty as before.
//! Failure: what was left is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, eventually, program, vm_pod};
use serde_json::{Value, json};

const MOMENT: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const STORM: usize = 20;

#[tokio::test]
#[ignore = "needs root"]
async fn pods_deleted_in_mid_flight_and_in_storms_leave_nothing() -> Result<()> {
    let cluster = Cluster::up()?;
    during_sandbox(&cluster)
        .await
        .context("while the sandbox is made")?;
    during_pull(&cluster)
        .await
        .context("while the image is pulled")?;
    during_boot(&cluster)
        .await
        .context("while the machine boots")?;
    twice(&cluster).await.context("twice at once")?;
    storm(&cluster).await.context("storm")?;
    cluster.down()
}

/// Bound to the node at this instant: kubelet has hardly begun.
async fn during_sandbox(cluster: &Cluster) -> Result<()> {
    cluster.apply(&vm_pod("early"))?;
    cluster.await_condition("pod/early", "condition=PodScheduled", MOMENT)?;
    cluster.delete("pod/early", GONE)?;
    cluster.await_clean().await
}

/// The first pull of a name that no node has yet.
async fn during_pull(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("pulling");
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    cluster.apply(&pod)?;
    cluster
        .await_event("pulling", "Pulling", "", MOMENT)
        .await?;
    cluster.delete("pod/pulling", GONE)?;
    cluster.await_clean().await
}

/// QEMU runs, but no guest has spoken yet.
async fn during_boot(cluster: &Cluster) -> Result<()> {
    cluster.apply(&vm_pod("booting"))?;
    cluster
        .await_event("booting", "Started", "", MOMENT)
        .await?;
    cluster.kubectl(&[
        "delete",
        "pod",
        "booting",
        "--grace-period=2",
        "--timeout=180s",
    ])?;
    cluster.await_clean().await
}

async fn twice(cluster: &Cluster) -> Result<()> {
    cluster.apply(&vm_pod("twice"))?;
    cluster.await_event("twice", "Started", "", MOMENT).await?;
    let arguments = [
        "delete",
        "pod",
        "twice",
        "--grace-period=2",
        "--timeout=180s",
    ];
    let first = cluster.kubectl_command(&arguments)?.spawn()?;
    let second = cluster.kubectl_command(&arguments)?.spawn()?;
    let ended = [first, second].map(|child| program::ended("kubectl delete", child));
    let ended = ended.into_iter().collect::<Result<Vec<_>>>()?;
    // The later one may find nothing any more.
    ensure!(ended.iter().any(|one| one.status.success()), "{ended:?}");
    cluster.await_gone("pod/twice", GONE)?;
    cluster.await_clean().await
}

/// Created together, deleted together, whatever each of them has reached.
async fn storm(cluster: &Cluster) -> Result<()> {
    let pods: Vec<Value> = (0..STORM)
        .map(|number| {
            let mut pod = vm_pod(&format!("storm-{number}"));
            pod["metadata"]["labels"] = json!({ "app": "storm" });
            pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
            pod
        })
        .collect();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }))?;
    eventually(MOMENT, "half of the storm's machines", || async {
        let running = cluster.stack().domains()?.len();
        ensure!(running >= STORM / 2, "{running} run");
        Ok(())
    })
    .await?;
    cluster.kubectl(&[
        "delete",
        "pods",
        "--selector",
        "app=storm",
        "--timeout=300s",
    ])?;
    cluster.await_clean().await
}
