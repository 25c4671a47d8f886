//! etcd loses its data. A new cluster over the same node recovers the machine from the manifest beside its
//! disk.
//!
//! Invariant: no disk is made and none is removed: the disk counts its boots, and is the only one of the node.
//! Failure: the step is named; the machine and its tasks are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Stack, eventually, program};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
const NAME: &str = "kept";
/// In the order in which they are stopped; they are started the other way round.
const CONTROL_PLANE: [&str; 4] = [
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
];
const OURS: [&str; 2] = ["vmlet-controller", "vmlet-agent"];

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_gets_its_disk_back_after_the_loss_of_etcd() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.apply(&machine(NAME, &json!({ "runStrategy": "Always" })))?;
    cluster.kubectl(&["label", "vm", NAME, "team=blue"])?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_boots(NAME, &[1], UP).await?;
    let before = cluster.vm(NAME)?;
    let uid = before["metadata"]["uid"].as_str().context("no UID")?;
    let disk = cluster.stack().dir().join("state/disks").join(uid);
    eventually(UP, "the manifest beside the disk", || async {
        let text = std::fs::read_to_string(disk.join("manifest"))?;
        ensure!(text.contains("\"team\":\"blue\""), "{text}");
        Ok(())
    })
    .await?;

    lose_etcd(&cluster).await?;
    bring_up(&cluster).await?;
    let found = cluster.kubectl(&["get", "vm", "-o", "name"])?;
    ensure!(found.is_empty(), "{found}");
    ensure!(only_disk(cluster.stack())? == uid, "before the recovery");
    let listed = recover(&cluster, &["--dry-run"])?;
    ensure!(listed.contains("would be recovered"), "{listed}");
    let listed = recover(&cluster, &["--all"])?;
    ensure!(listed.contains("recovered"), "{listed}");

    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_boots(NAME, &[2], UP).await?;
    let after = cluster.vm(NAME)?;
    ensure!(after["metadata"]["uid"] != uid, "it is the same object");
    ensure!(after["metadata"]["labels"]["team"] == "blue", "{after}");
    ensure!(after["status"]["diskUID"] == uid, "{after}");
    for field in ["biosUUID", "instanceUUID"] {
        let found = &after["status"][field];
        ensure!(*found == before["status"][field], "{field}: {found}");
    }
    let annotations = &after["metadata"]["annotations"];
    ensure!(
        annotations["vmlet.dev.protected/adopt-disk"].is_null(),
        "{annotations}"
    );
    ensure!(only_disk(cluster.stack())? == uid, "after the recovery");
    let again = recover(&cluster, &[NAME])?;
    ensure!(again.contains("has its disk"), "{again}");
    // The manifest is that of the machine that has the disk.
    let new = after["metadata"]["uid"].as_str().context("no UID")?;
    eventually(UP, "the manifest of the new machine", || async {
        let text = std::fs::read_to_string(disk.join("manifest"))?;
        ensure!(text.contains(new), "{text}");
        Ok(())
    })
    .await?;

    cluster.delete(&format!("vm/{NAME}"), UP)?;
    ensure!(!disk.exists(), "the disk outlives its machine");
    cluster.await_clean().await?;
    cluster.down()
}

/// Everything that reads and writes etcd ends, and its data are removed.
async fn lose_etcd(cluster: &Cluster) -> Result<()> {
    let stack = cluster.stack();
    for program in OURS.iter().chain(&CONTROL_PLANE) {
        stack
            .kill(program, Signal::SIGKILL)
            .await
            .context(*program)?;
    }
    std::fs::remove_dir_all(stack.dir().join("etcd")).context("the data of etcd")
}

/// A new cluster over the same node, as an administrator makes it.
async fn bring_up(cluster: &Cluster) -> Result<()> {
    let stack = cluster.stack();
    for program in ["etcd", "kube-apiserver"] {
        stack.restart(program)?;
    }
    eventually(UP, "the API server", || async {
        cluster.kubectl(&["get", "--raw", "/readyz"]).map(drop)
    })
    .await?;
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    for (flag, part) in [
        ("-k", "crds"),
        ("-k", "admission"),
        ("-f", "namespace.yaml"),
        ("-f", "users.yaml"),
        ("-f", "controller/serviceaccount.yaml"),
        ("-f", "agent/serviceaccount.yaml"),
        ("-f", "agent/node-limits.yaml"),
    ] {
        let path = format!("{deploy}/{part}");
        cluster.kubectl(&["apply", "--server-side", flag, &path])?;
    }
    cluster.apply(&json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": "vmlet" }, "handler": "vmlet",
        "overhead": { "podFixed": { "cpu": "10m", "memory": "160Mi" } },
        "scheduling": { "nodeSelector": { "vmlet.dev/node": "true" } },
    }))?;
    for program in ["kube-controller-manager", "kube-scheduler", "kubelet"] {
        stack.restart(program)?;
    }
    cluster.await_condition("node/node1", "create", UP)?;
    cluster.kubectl(&["label", "node", "node1", "vmlet.dev/node=true"])?;
    admit_agent(cluster)?;
    for program in OURS {
        stack.restart(program)?;
    }
    cluster.await_condition("serviceaccount/default", "create", UP)?;
    cluster.machine_basics()
}

/// The agent's token went with its object.
fn admit_agent(cluster: &Cluster) -> Result<()> {
    let token = cluster.kubectl(&[
        "-n",
        "vmlet-system",
        "create",
        "token",
        "vmlet-agent",
        "--bound-object-kind=Node",
        "--bound-object-name=node1",
        "--duration=4h",
    ])?;
    let path = cluster.stack().dir().join("agent.kubeconfig");
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    file["users"][0]["user"] = json!({ "token": token.trim() });
    std::fs::write(&path, file.to_string()).context("the agent's kubeconfig")
}

/// `vmletctl recover` with what `vmletctl node manifests` prints on the node.
fn recover(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let stack = cluster.stack();
    let socket = stack.dir().join("run/node/node.sock");
    let mut list = stack.command("vmletctl");
    list.args(["node", "manifests", "--node-endpoint"]);
    let listed = program::output(list.arg(socket))?;
    let words = String::from_utf8_lossy(&listed.stderr);
    ensure!(listed.status.success(), "node manifests: {words}");
    let file = stack.dir().join("kept-disks.jsonl");
    std::fs::write(&file, &listed.stdout)?;
    let mut recover = stack.command("vmletctl");
    recover.args(["recover", "--node", "node1", "--disks"]);
    let recovered = program::output(recover.arg(file).args(arguments))?;
    let words = String::from_utf8_lossy(&recovered.stderr);
    let text = String::from_utf8(recovered.stdout)?;
    ensure!(recovered.status.success(), "recover: {words}{text}");
    Ok(text)
}

/// The UID of the only disk of a node.
fn only_disk(stack: &Stack) -> Result<String> {
    let folder = stack.dir().join("state/disks");
    let entries: Vec<_> = std::fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    ensure!(entries.len() == 1, "{entries:?}");
    Ok(entries[0].file_name().to_string_lossy().into_owned())
}
