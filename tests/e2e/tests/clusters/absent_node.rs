//! A node that does not report for longer than Kubernetes waits before it evicts, and comes back.
//!
//! Invariant: an ordinary pod on the node shows that the eviction has begun; the machine beside it, whose
//! disk is on the node, is not touched: its guest runs through.
//! Failure: the step is named; the machine and its pod are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Options, container_pod, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
/// Up to a minute until the node counts as absent, then five minutes.
const EVICTED: Duration = Duration::from_secs(600);
const NAME: &str = "runs-through";
const ORDINARY: &str = "ordinary";

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_runs_through_the_absence_of_its_node() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    cluster.machine_basics()?;
    cluster.kubectl(&["cordon", "node1"])?;
    cluster.apply(&machine(NAME, &json!({ "runStrategy": "Always" })))?;
    cluster.apply(&container_pod(ORDINARY, "exec sleep 100000"))?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_boots(NAME, &[1], UP).await?;
    cluster.await_ready(&format!("pod/{ORDINARY}"), UP)?;
    let before = identity(&cluster)?;

    cluster.node(2).kill("kubelet", Signal::SIGKILL).await?;
    eventually(EVICTED, "the eviction of the ordinary pod", || async {
        let pod = cluster.get_json(&["pod", ORDINARY])?;
        ensure!(is_deleted(&pod), "{}", pod["status"]);
        Ok(())
    })
    .await?;
    let pod = cluster.get_json(&["pod", NAME])?;
    ensure!(
        !is_deleted(&pod),
        "the pod of the machine was evicted: {pod}"
    );

    cluster.node(2).restart("kubelet")?;
    cluster.await_gone(&format!("pod/{ORDINARY}"), UP)?;
    cluster.await_ready("node/node2", UP)?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_boots(NAME, &[1], UP).await?;
    let after = identity(&cluster)?;
    ensure!(before == after, "{before} became {after}");
    cluster.delete(&format!("vm/{NAME}"), UP)?;
    cluster.await_clean().await?;
    cluster.down()
}

fn is_deleted(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// What a new pod or a new container of the machine would change.
fn identity(cluster: &Cluster) -> Result<Value> {
    let pod = cluster.get_json(&["pod", NAME])?;
    let container = &pod["status"]["containerStatuses"][0]["containerID"];
    let container = container.as_str().context("no container")?;
    Ok(json!({ "pod": pod["metadata"]["uid"], "container": container }))
}
