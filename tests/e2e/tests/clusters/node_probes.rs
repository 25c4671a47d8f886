//! Readiness probes that kubelet does not make are made by the node: one that names a host, and one
//! that was edited while the machine runs.
//!
//! Invariant: the results follow the guest's port and the edits, also when agent and daemon are killed
//! in between; the machine is never started again.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Cluster;
use e2e::machines::{condition, machine};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const NAME: &str = "probed";
const UP: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(180);

pub(super) async fn the_node_makes_the_probes_that_kubelet_does_not_make(
    cluster: &Cluster,
) -> Result<()> {
    cluster.apply(&machine(NAME, &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_agent(NAME, UP).await?;
    let pod = cluster.pod_uid(NAME)?;
    let address = cluster.pod_ip(NAME)?;

    // The pod was made without a probe. The test guest serves port 80, and no other. Each result is another
    // one than that of the probe before, which stays until the node has its own.
    probe(cluster, &json!({ "port": 81, "host": address }))?;
    await_ready(cluster, "False", "a connection from the node").await?;
    probe(cluster, &json!({ "port": 80, "host": address }))?;
    await_ready(cluster, "True", "").await?;
    let facts = facts(cluster)?;
    ensure!(facts["probe"]["probe"]["host"] == json!(address), "{facts}");
    ensure!(facts["probe"]["outcome"] == "Connected", "{facts}");
    probe(cluster, &json!({ "port": 81 }))?;
    await_ready(cluster, "False", "a connection from the node").await?;
    // The machine's own address.
    probe(cluster, &json!({ "port": 80, "host": null }))?;
    await_ready(cluster, "True", "").await?;
    probe(cluster, &json!({ "port": 80, "host": "127.0.0.1" }))?;
    await_ready(cluster, "False", "an address of the node").await?;

    for program in ["vmlet-agent", "vmlet"] {
        cluster.stack().kill(program, Signal::SIGKILL).await?;
    }
    probe(cluster, &json!({ "port": 80, "host": address }))?;
    for program in ["vmlet", "vmlet-agent"] {
        cluster.stack().restart(program)?;
    }
    await_ready(cluster, "True", "").await?;
    cluster.stack().kill("vmlet", Signal::SIGKILL).await?;
    cluster.stack().restart("vmlet")?;
    follows_the_guest(cluster).await.context("by the record")?;

    ensure!(cluster.pod_uid(NAME)? == pod, "it was started again");
    cluster.delete(&format!("vm/{NAME}"), SOON)?;
    cluster.await_gone(&format!("pod/{NAME}"), SOON)
}

/// The daemon that was started last probes by its record: no task has set the probe since.
async fn follows_the_guest(cluster: &Cluster) -> Result<()> {
    let down = "for link in /sys/class/net/*; do \
                [ ! -e $link/device ] || ip link set ${link##*/} down; done";
    cluster.run_inside(NAME, &["sh", "-c", down], UP).await?;
    await_ready(cluster, "False", "the readiness probe fails").await
}

fn probe(cluster: &Cluster, socket: &Value) -> Result<()> {
    let probe = json!({ "tcpSocket": socket, "periodSeconds": 1, "timeoutSeconds": 5 });
    cluster.patch_vm(NAME, &json!({ "readinessProbe": probe }))
}

/// Waits until the condition `Ready` has this status, for a reason in these words.
async fn await_ready(cluster: &Cluster, status: &str, words: &str) -> Result<()> {
    let what = format!("Ready is {status}");
    cluster
        .await_vm(NAME, &what, SOON, |vm| {
            let ready = condition(vm, "Ready");
            ensure!(ready["status"] == status, "{ready}");
            let generation = &vm["metadata"]["generation"];
            ensure!(ready["observedGeneration"] == *generation, "{ready}");
            let message = ready["message"].as_str().unwrap_or_default();
            ensure!(message.contains(words), "{ready}");
            Ok(())
        })
        .await
}

/// What the agent reports of the guest.
fn facts(cluster: &Cluster) -> Result<Value> {
    let pod = cluster.get_json(&["pod", NAME])?;
    let facts = pod["metadata"]["annotations"]["vmlet.dev/guest-facts"].as_str();
    Ok(serde_json::from_str(facts.context("no facts")?)?)
}
