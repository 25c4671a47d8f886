//! A machine on a lost node keeps its disk, which is not created elsewhere.
//!
//! Invariant: another node has room for it all the time; the disk counts its boots, so that a
//! machine made again would show.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Options, Stack, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
/// Kubernetes itself waits up to a minute before it believes that a node is lost.
const LOST: Duration = Duration::from_secs(300);
const NAME: &str = "stays-away";

#[tokio::test]
#[ignore = "needs root"]
async fn a_lost_node_never_makes_a_new_disk_elsewhere() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    cluster.machine_basics()?;
    cluster.kubectl(&["cordon", "node1"])?;
    cluster.apply(&machine(NAME, &json!({ "runStrategy": "Always" })))?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_boots(NAME, &[1], UP).await?;
    let uid = cluster.vm(NAME)?["metadata"]["uid"].clone();
    cluster.kubectl(&["uncordon", "node1"])?;

    cluster.node(2).kill("kubelet", Signal::SIGKILL).await?;
    await_lost(&cluster, "does not report").await?;
    nothing_new(&cluster, &uid, "while its node does not report").await?;
    cluster.kubectl(&["delete", "node", "node2"])?;
    await_lost(&cluster, "does not exist").await?;
    // Kubernetes removes pods of nodes that no longer exist.
    cluster.await_gone(&format!("pod/{NAME}"), LOST)?;
    nothing_new(&cluster, &uid, "after its node was removed").await?;

    readmit(&cluster)?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_boots(NAME, &[2], UP).await?;
    nothing_new(&cluster, &uid, "after its node came back").await?;
    cluster.delete(&format!("vm/{NAME}"), LOST)?;
    cluster.await_clean().await?;
    cluster.down()
}

async fn await_lost(cluster: &Cluster, words: &str) -> Result<()> {
    cluster
        .await_vm(NAME, words, LOST, |vm| {
            let conditions = vm["status"]["conditions"].as_array();
            let mut all = conditions.into_iter().flatten();
            let found = all.find(|one| one["type"] == "VirtualMachineLocationValid");
            let found = found.context("no condition")?;
            ensure!(found["reason"] == "NodeLost", "{found}");
            let message = found["message"].as_str().unwrap_or_default();
            ensure!(message.contains(words), "{message}");
            Ok(())
        })
        .await
}

/// Another machine is made from beginning to end, on the other node; this one is as it was.
async fn nothing_new(cluster: &Cluster, uid: &Value, when: &str) -> Result<()> {
    let check = async {
        let other = "other";
        cluster.kubectl(&["cordon", "node2"]).ok();
        cluster.apply(&machine(other, &json!({ "powerState": "PoweredOff" })))?;
        cluster.await_word(other, "Stopped", UP).await?;
        cluster.delete(&format!("vm/{other}"), UP)?;
        cluster.kubectl(&["uncordon", "node2"]).ok();
        let vm = cluster.vm(NAME)?;
        ensure!(vm["metadata"]["uid"] == *uid, "it is another machine");
        let node = &vm["status"]["nodeName"];
        ensure!(node == "node2", "it went to {node}");
        let list = cluster.get_json(&["virtualmachinetasks"])?;
        let tasks = list["items"].as_array().context("items")?;
        let provisions = tasks
            .iter()
            .filter(|task| task["spec"]["vmName"] == NAME && task["spec"]["kind"] == "Provision");
        ensure!(provisions.count() == 1, "{list}");
        let found = cluster.kubectl(&["get", "pods", "-o", "name"])?;
        let placeholder = format!("{NAME}-placeholder-");
        ensure!(!found.contains(&placeholder), "{found}");
        eventually(UP, "the disks", || async {
            let here = disks(cluster.node(1))?;
            let there = disks(cluster.node(2))?;
            ensure!(here.is_empty(), "on node1: {here:?}");
            let only: Vec<_> = uid.as_str().into_iter().map(str::to_owned).collect();
            ensure!(there == only, "on node2: {there:?}");
            Ok(())
        })
        .await
    };
    check.await.context(when.to_owned())
}

/// UIDs of the machines that have disks on a node.
fn disks(node: &Stack) -> Result<Vec<String>> {
    let path = node.dir().join("state/disks");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let names = std::fs::read_dir(path)?.flatten();
    Ok(names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

/// The second node registers itself again; its label and its agent's token went with its object.
fn readmit(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(2);
    node.restart("kubelet")?;
    cluster.await_condition("node/node2", "create", LOST)?;
    cluster.kubectl(&["label", "node", "node2", "vmlet.dev/node=true"])?;
    let token = cluster.kubectl(&[
        "-n",
        "vmlet-system",
        "create",
        "token",
        "vmlet-agent",
        "--bound-object-kind=Node",
        "--bound-object-name=node2",
        "--duration=4h",
    ])?;
    let path = node.dir().join("agent.kubeconfig");
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    file["users"][0]["user"] = json!({ "token": token.trim() });
    std::fs::write(&path, file.to_string())?;
    node.restart("vmlet-agent")
}
