//! Container disks from a real registry, as pods and machines of a cluster name them.
//!
//! Invariant: the pull secret of a pod, which kubelet shows to the runtime through the proxy, is
//! enough for a registry with TLS and login; the event of a pod without it says `401 Unauthorized`.
//! Failure: the step is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, condition, machine};
use e2e::{Cluster, REGISTRY, REGISTRY_WITH_LOGIN, eventually, vm_pod};
use serde_json::json;

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);

pub(super) async fn container_disks_run_with_the_pull_secrets_of_their_pods(
    cluster: &Cluster,
) -> Result<()> {
    let example = e2e::example("registry.yaml")?;
    let example = example.replace("registry.example", REGISTRY_WITH_LOGIN);
    cluster.apply(&example.replace("change-me", "hush"))?;
    let image = format!("{REGISTRY_WITH_LOGIN}/disks/hello:1");
    let mut pod = vm_pod("without");
    pod["spec"]["containers"][0]["image"] = json!(image);
    cluster.apply(&pod)?;
    cluster
        .await_event("without", "Failed", "401 Unauthorized", READY)
        .await?;
    cluster.delete("pod/without", GONE)?;

    cluster
        .kubectl(&["rollout", "status", "deployment/registry", "--timeout=300s"])
        .context("Deployment")?;
    cluster.delete("deployment/registry", GONE)?;
    cluster.kubectl(&[
        "wait",
        "--for=delete",
        "pod",
        "-l",
        "app=registry",
        "--timeout=180s",
    ])?;

    machine_of(cluster, &image, true).await.context("login")?;
    let artifact = format!("{REGISTRY}/disks/artifact:1");
    machine_of(cluster, &artifact, false)
        .await
        .context("artifact")?;
    Ok(())
}

/// A machine from an image in a registry.
async fn machine_of(cluster: &Cluster, reference: &str, is_secret: bool) -> Result<()> {
    let mut oci = json!({ "reference": reference });
    if is_secret {
        oci["pullSecret"] = json!("registry");
    }
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": "guest" }, "spec": { "source": { "oci": oci } },
    }))?;
    cluster.apply(&class("tiny", "128Mi"))?;
    cluster.apply(&machine("vm", &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_boots("vm", &[1], READY).await?;
    let vm = cluster.vm("vm")?;
    let unsupported = condition(&vm, "UnsupportedFeatures");
    ensure!(unsupported.is_null(), "{unsupported}");
    eventually(READY, "the image's status", || async {
        let image = cluster.get_json(&["virtualmachineimage", "guest"])?;
        let ready = condition(&image, "Ready");
        let kind = &image["status"]["type"];
        ensure!(ready["status"] == "True", "{image}");
        // kubelet alone pulls one with a secret: no node reads what it is, and nodes report it.
        if is_secret {
            ensure!(ready["reason"] == "OnNodes" && kind.is_null(), "{image}");
            ensure!(image["status"]["nodeCount"] == 1, "{image}");
        } else {
            ensure!(kind == "qcow2", "{image}");
        }
        Ok(())
    })
    .await?;
    cluster.delete("vm/vm", GONE)?;
    cluster.delete("virtualmachineimage/guest", GONE)
}
