//! Every kind of workload that makes pods makes VM pods too, chosen by RuntimeClass or by
//! annotation, beside ordinary pods on the same node.
//!
//! Invariant: a workload counts as running only when its guest has answered on the pod's address.
//! Failure: the step is named, with what kubectl describes; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Endpoint, Guest, container_pod, eventually, vm_pod};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);

pub(super) async fn workloads_of_every_kind_run_as_virtual_machines(
    cluster: &Cluster,
) -> Result<()> {
    cluster.apply(&container_pod("beside", "exec httpd -f -p 80 -h /etc"))?;
    cluster.await_ready("pod/beside", READY)?;
    by_annotation(cluster).context("by annotation")?;
    deployment(cluster).await.context("Deployment")?;
    stateful_set(cluster).await.context("StatefulSet")?;
    daemon_set(cluster).context("DaemonSet")?;
    job(cluster).await.context("Job")?;
    let pod = cluster.get_json(&["pod", "beside"])?;
    let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "the ordinary pod was restarted: {restarts}");
    cluster.delete("pod/beside", GONE)
}

/// Virtlet's way: no RuntimeClass, but an annotation on the pod.
fn by_annotation(cluster: &Cluster) -> Result<()> {
    for (name, target) in [("ours", "vmlet"), ("theirs", "virtlet.cloud")] {
        let mut pod = vm_pod(name);
        let spec = pod["spec"].as_object_mut().context("spec")?;
        spec.remove("runtimeClassName");
        // No RuntimeClass adds QEMU's own needs: the node does, or a guest that boots would be
        // killed.
        pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "128Mi" } });
        pod["metadata"]["annotations"] = json!({ "kubernetes.io/target-runtime": target });
        cluster.apply(&pod)?;
    }
    for name in ["ours", "theirs"] {
        cluster.await_ready(&format!("pod/{name}"), READY)?;
    }
    let containers = Endpoint::Containerd;
    for name in ["ours", "theirs"] {
        let wanted = ["pods", "-q", "--name", name];
        let vms = cluster.stack().crictl(&wanted)?;
        ensure!(vms.lines().count() == 1, "{name} is not one VM: {vms}");
        let others = cluster.stack().crictl_at(containers, &wanted)?;
        ensure!(others.is_empty(), "containerd has {name}: {others}");
    }
    for name in ["ours", "theirs"] {
        cluster.delete(&format!("pod/{name}"), GONE)?;
    }
    Ok(())
}

/// Two replicas; one that is deleted is replaced, and scaling down removes the machine.
async fn deployment(cluster: &Cluster) -> Result<()> {
    let template = template("web");
    cluster.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": template },
    }))?;
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"])?;
    let pods = names(cluster, "app=web")?;
    ensure!(pods.len() == 2, "{pods:?}");
    cluster.delete(&format!("pod/{}", pods[0]), GONE)?;
    // Until its controller has noticed, the status shows both.
    let after = eventually(READY, "another replica", || async {
        let after = names(cluster, "app=web")?;
        ensure!(
            after.len() == 2 && after.contains(&pods[1]) && !after.contains(&pods[0]),
            "{pods:?}, then {after:?}"
        );
        Ok(after)
    })
    .await?;
    for pod in after {
        cluster.await_ready(&format!("pod/{pod}"), READY)?;
    }
    cluster.delete("deployment/web", GONE)?;
    await_none(cluster, "app=web")
}

/// A machine that is deleted returns under its own name.
async fn stateful_set(cluster: &Cluster) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": "db" },
        "spec": {
            "replicas": 1, "serviceName": "db",
            "selector": { "matchLabels": { "app": "db" } }, "template": template("db"),
        },
    }))?;
    cluster.kubectl(&["rollout", "status", "statefulset/db", "--timeout=300s"])?;
    let uid = ["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"];
    let before = cluster.kubectl(&uid)?;
    cluster.delete("pod/db-0", GONE)?;
    // Until its controller has noticed, there is none and the status still shows it.
    eventually(READY, "the next db-0", || async {
        let after = cluster.kubectl(&uid)?;
        ensure!(after != before, "the old pod is still there");
        Ok(())
    })
    .await?;
    cluster.await_ready("pod/db-0", READY)?;
    cluster.delete("statefulset/db", GONE)?;
    await_none(cluster, "app=db")
}

fn daemon_set(cluster: &Cluster) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "each" },
        "spec": { "selector": { "matchLabels": { "app": "each" } }, "template": template("each") },
    }))?;
    cluster.kubectl(&["rollout", "status", "daemonset/each", "--timeout=300s"])?;
    ensure!(names(cluster, "app=each")?.len() == 1);
    cluster.delete("daemonset/each", GONE)?;
    await_none(cluster, "app=each")
}

/// A guest that powers itself off has done its work.
async fn job(cluster: &Cluster) -> Result<()> {
    let mut template = template("task");
    template["spec"]["restartPolicy"] = json!("Never");
    cluster.apply(&json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": "task" },
        "spec": { "backoffLimit": 0, "template": template },
    }))?;
    let running = eventually(READY, "the Job's guest", || async {
        let pods = names(cluster, "app=task")?;
        let pod = pods.first().context("no pod yet")?;
        cluster.kubectl(&[
            "wait",
            "--for=condition=Ready",
            "--timeout=1s",
            &format!("pod/{pod}"),
        ])?;
        Ok(pod.clone())
    })
    .await?;
    Guest::in_pod(cluster.stack(), &running)?.power_off()?;
    cluster.await_ready("job/task", READY)?;
    let pod = cluster.get_json(&["pod", &running])?;
    ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        ended["exitCode"] == 0 && ended["reason"] == "Completed",
        "{ended}"
    );
    cluster.delete("job/task", GONE)?;
    await_none(cluster, "app=task")
}

/// A pod template of a VM pod.
fn template(app: &str) -> Value {
    let mut pod = vm_pod(app);
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": pod["spec"].take(),
    })
}

/// The pods of a workload, less those that are going.
fn names(cluster: &Cluster, selector: &str) -> Result<Vec<String>> {
    let pods = cluster.get_json(&["pods", "--selector", selector])?;
    let pods = pods["items"].as_array().context("items")?;
    let staying = pods.iter().map(|pod| &pod["metadata"]);
    let staying = staying.filter(|metadata| metadata["deletionTimestamp"].is_null());
    let names = staying.filter_map(|metadata| metadata["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn await_none(cluster: &Cluster, selector: &str) -> Result<()> {
    let arguments = [
        "wait",
        "--for=delete",
        "pod",
        "--selector",
        selector,
        "--timeout=180s",
    ];
    cluster.kubectl(&arguments).map(drop)
}
