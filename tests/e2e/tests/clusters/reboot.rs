//! A power cut of a node: all its pods restart, machines as well as containers.
//!
//! Invariant: kubelet brings the same pods up again, each in a new sandbox and by one start; what
//! the boot before left is tidied away.
//! Failure: pods, events and the ends of logs are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, always, container_pod, eventually, vm_pod};

const READY: Duration = Duration::from_secs(300);

#[tokio::test]
#[ignore = "needs root"]
async fn pods_of_both_kinds_come_back_after_a_power_cut_and_nothing_is_orphaned() -> Result<()> {
    let cluster = Cluster::up()?;
    let pods = [
        container_pod("box", "exec sleep 1000000"),
        vm_pod("machine"),
    ];
    for pod in &pods {
        cluster.apply(pod)?;
    }
    let mut uids = Vec::new();
    for name in ["box", "machine"] {
        cluster.await_ready(&format!("pod/{name}"), READY)?;
        cluster.await_event(name, "Started", "", READY).await?;
        ensure!(starts(&cluster, name)? == 1, "{name} was started twice");
        uids.push(cluster.get_json(&["pod", name])?["metadata"]["uid"].clone());
    }

    cluster.stack().reboot()?;

    for (name, uid) in ["box", "machine"].into_iter().zip(uids) {
        // What was true before the cut still stands in the API until kubelet has looked.
        eventually(READY, &format!("{name} again"), || async {
            let pod = cluster.get_json(&["pod", name])?;
            always(pod["metadata"]["uid"] == uid, || {
                format!("another pod: {pod}")
            })?;
            let status = &pod["status"]["containerStatuses"][0];
            let restarts = status["restartCount"].as_u64().context("restartCount")?;
            ensure!(restarts > 0 && status["ready"] == true, "{status}");
            let starts = starts(&cluster, name)?;
            ensure!(starts > 1, "kubelet has reported {starts} starts");
            Ok(())
        })
        .await?;
        // An attempt that came too early for a runtime counts as a restart, and has started
        // nothing.
        let starts = starts(&cluster, name)?;
        ensure!(starts == 2, "{name} was started {starts} times");
    }
    let machines = cluster.stack().domains()?;
    ensure!(machines.len() == 1, "domains: {machines:?}");
    for name in ["box", "machine"] {
        cluster.delete(&format!("pod/{name}"), READY)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// How often the container of a pod has been started, from kubelet's events.
fn starts(cluster: &Cluster, pod: &str) -> Result<u64> {
    let selector = format!("--field-selector=involvedObject.name={pod},reason=Started");
    let events = cluster.get_json(&["events", &selector])?;
    let events = events["items"].as_array().context("items")?;
    let counts = events
        .iter()
        .map(|event| event["count"].as_u64().unwrap_or(1));
    Ok(counts.sum())
}
