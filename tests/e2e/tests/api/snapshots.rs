//! Snapshots of a machine with the real controller, against a real API server: the node, its agent and the
//! scheduler are the test.
//!
//! Invariant: the machine is off, so that no pod is needed; every rule of the kinds and every policy counts.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, Control, eventually};
use serde_json::{Value, json};

use crate::played::{bind, installed, node, renewals, report};

const SOON: Duration = Duration::from_secs(240);
const CREATED: &str = "VirtualMachineSnapshotCreated";
const ENDED: &str = "2026-01-01T00:00:00Z";

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_is_as_its_snapshot_after_a_revert() -> Result<()> {
    let control = Control::up().await?;
    let cluster = installed(&control).await?;
    node(cluster, "n1", &["Snapshot", "Revert", "DeleteSnapshot"])?;
    let controller = control
        .controller("controller", &["--lease-enabled", "false"])
        .await?;
    let ended = tokio::select! {
        ended = story(cluster) => ended,
        failed = renewals(cluster, "n1") => failed,
    };
    ended.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

async fn story(cluster: &Cluster) -> Result<()> {
    let mut vm = machine("vm", &json!({ "runStrategy": "Halted" }));
    vm["metadata"]["labels"] = json!({ "app": "old" });
    cluster.apply(&vm)?;
    disk(cluster).await?;

    snapshot(cluster, "a")?;
    take(cluster, "a").await?;
    cluster.kubectl(&["label", "vm", "vm", "app=new", "more=1", "--overwrite"])?;
    cluster.patch_vm(
        "vm",
        &json!({ "powerOffTimeout": "7s", "nodeSelector": { "x": "y" } }),
    )?;
    snapshot(cluster, "b")?;
    take(cluster, "b").await?;
    let vm = cluster.vm("vm")?;
    ensure!(vm["status"]["currentSnapshot"]["name"] == "b", "{vm}");
    ensure!(vm["status"]["rootSnapshots"][0]["name"] == "a", "{vm}");
    forged(cluster)?;

    cluster.patch_vm("vm", &json!({ "currentSnapshotName": "a" }))?;
    let task = task(cluster, "Revert").await?;
    let vm = cluster.vm("vm")?;
    ensure!(vm["status"]["snapshotRevert"]["phase"] == "Disk", "{vm}");
    let other = cluster.patch_vm("vm", &json!({ "currentSnapshotName": "b" }));
    let refused = other.err().map(|error| format!("{error:#}"));
    let is_refused = refused.is_some_and(|text| text.contains("cannot change while"));
    ensure!(is_refused, "the name changed during a revert");
    let uid = |task: &str| -> Result<Value> {
        let found = cluster.get_json(&["virtualmachinetasks", task])?;
        Ok(found["metadata"]["uid"].clone())
    };
    let first = uid(&task)?;
    let now = jiff::Timestamp::now();
    let failed = json!({
        "state": "Error", "message": "no space", "transient": true, "completionTime": now,
    });
    report(cluster, "default", &task, &failed)?;
    eventually(SOON, "another attempt", || async {
        let next = uid(&task)?;
        ensure!(!next.is_null() && next != first, "{task} has UID {next}");
        Ok(())
    })
    .await?;
    success(cluster, "Revert", &json!({})).await?;
    let vm = cluster
        .await_vm("vm", "the end of the revert", SOON, |vm| {
            let is_over = vm["status"]["snapshotRevert"].is_null()
                && vm["spec"]["currentSnapshotName"].is_null();
            ensure!(is_over, "{vm}");
            Ok(vm.clone())
        })
        .await?;
    ensure!(vm["spec"]["powerOffTimeout"] == "30s", "{vm}");
    ensure!(vm["spec"]["nodeSelector"].is_null(), "{vm}");
    let labels = &vm["metadata"]["labels"];
    ensure!(labels["app"] == "old" && labels["more"].is_null(), "{vm}");
    ensure!(vm["status"]["currentSnapshot"]["name"] == "a", "{vm}");

    cluster.kubectl(&["delete", "vmsnap", "a", "--wait=false"])?;
    success(cluster, "DeleteSnapshot", &json!({})).await?;
    eventually(SOON, "the end of the snapshot", || async {
        let left = cluster.kubectl(&["get", "vmsnap", "-o", "name"])?;
        ensure!(
            left.trim().ends_with("/b") && !left.contains("/a"),
            "{left}"
        );
        let vm = cluster.vm("vm")?;
        ensure!(vm["status"]["currentSnapshot"].is_null(), "{vm}");
        ensure!(vm["status"]["rootSnapshots"][0]["name"] == "b", "{vm}");
        Ok(())
    })
    .await
}

/// A user who may write everything but protected fields does not write what a machine gets back.
fn forged(cluster: &Cluster) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "everything-of-snapshots" },
        "rules": [{
            "apiGroups": ["vmlet.dev"], "verbs": ["*"],
            "resources": ["virtualmachinesnapshots", "virtualmachinesnapshots/status"],
        }],
    });
    cluster.apply(&role)?;
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "everything-of-snapshots",
        "--clusterrole=everything-of-snapshots",
        "--user=eve",
    ])?;
    let manifest = json!({ "status": { "manifest": { "spec": { "running": true } } } });
    let answer = cluster.kubectl(&[
        "--as=eve",
        "patch",
        "vmsnap",
        "a",
        "--subresource=status",
        "--type=merge",
        "-p",
        &manifest.to_string(),
    ]);
    let refused = answer.err().map(|error| format!("{error:#}"));
    let is_refused = refused.is_some_and(|text| text.contains("statuses of snapshots"));
    ensure!(is_refused, "a user wrote the manifest of a snapshot");
    Ok(())
}

/// The machine has a disk on the node.
pub(crate) async fn disk(cluster: &Cluster) -> Result<()> {
    let placeholder = eventually(SOON, "the placeholder", || async {
        let pods = cluster.get_json(&["pods", "-l", "vmlet.dev/role=provision"])?;
        let name = pods["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned).context("there is none")
    })
    .await?;
    bind(cluster, &placeholder, "n1")?;
    let runs = json!({ "status": {
        "phase": "Running",
        "containerStatuses": [{
            "name": "vm", "image": "registry.example/guest:1", "imageID": "i", "ready": true,
            "restartCount": 0, "state": { "running": { "startedAt": ENDED } },
        }],
    }});
    let patch = ["patch", "pod", &placeholder, "--subresource=status", "-p"];
    cluster.kubectl(&[&patch[..], &[&runs.to_string()]].concat())?;
    success(cluster, "Provision", &json!({})).await?;
    cluster
        .await_vm("vm", "its disk", SOON, |vm| {
            let created = condition(vm, "VirtualMachineCreated");
            ensure!(created["status"] == "True", "{created}");
            Ok(())
        })
        .await
}

fn snapshot(cluster: &Cluster, name: &str) -> Result<()> {
    cluster
        .apply(&json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
            "metadata": { "name": name }, "spec": { "vmName": "vm" },
        }))
        .map(drop)
}

/// The node takes it.
async fn take(cluster: &Cluster, name: &str) -> Result<()> {
    let taken = json!({ "snapshot": {
        "running": false, "virtualBytes": 1 << 30, "usedBytes": 1 << 20, "createdTime": ENDED,
    }});
    success(cluster, "Snapshot", &taken).await?;
    eventually(SOON, "the snapshot", || async {
        let snapshot = cluster.get_json(&["vmsnap", name])?;
        let created = condition(&snapshot, CREATED);
        let is_so = created["status"] == "True" && snapshot["status"]["powerState"] == "PoweredOff";
        ensure!(is_so, "{snapshot}");
        Ok(())
    })
    .await
}

/// The name of the task of that kind that has no state yet.
async fn task(cluster: &Cluster, kind: &str) -> Result<String> {
    eventually(SOON, kind, || async {
        let tasks = cluster.get_json(&["virtualmachinetasks"])?;
        let tasks = tasks["items"].as_array().cloned().unwrap_or_default();
        let is_open = |task: &Value| task["spec"]["kind"] == kind && task["status"].is_null();
        let open = tasks.iter().find(|task| is_open(task));
        let name = open.and_then(|task| task["metadata"]["name"].as_str());
        name.map(str::to_owned).context("there is none")
    })
    .await
}

/// The node has done the task of that kind.
pub(crate) async fn success(cluster: &Cluster, kind: &str, more: &Value) -> Result<()> {
    let task = task(cluster, kind).await?;
    let mut status = json!({ "state": "Success", "completionTime": ENDED });
    if let Some(status) = status.as_object_mut()
        && let Some(more) = more.as_object()
    {
        status.extend(more.clone());
    }
    report(cluster, "default", &task, &status)
}
