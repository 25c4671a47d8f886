//! kubelet's image garbage collection with a low threshold: images in use stay, unused ones are
//! removed.
//!
//! Invariant: kubelet itself removes the unused image; the test only pulls it.
//! Failure: the images that are there, beside those that should be; pods, events and logs follow.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Endpoint, Guest, container_pod, eventually, program, vm_pod};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// kubelet evicts no such pod.
const CRITICAL: &str = "system-node-critical";
/// kubelet looks at its disk every ten seconds.
const COLLECTED: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn kubelet_collects_the_images_that_no_machine_uses() -> Result<()> {
    let cluster = Cluster::up()?;
    let stack = cluster.stack();
    serve_another_image(&cluster)?;
    let mut user = vm_pod("user");
    user["spec"]["priorityClassName"] = json!(CRITICAL);
    cluster.apply(&user)?;
    for pod in ["pod/server", "pod/user"] {
        cluster.await_ready(pod, READY)?;
    }
    let used = images(&cluster, Endpoint::Vmlet)?;
    ensure!(used.len() == 1, "{used:?}");
    let unused = format!("{}/other.qcow2", cluster.pod_ip("server")?);
    stack.crictl(&["pull", &unused])?;
    let all = images(&cluster, Endpoint::Proxy)?;
    ensure!(images(&cluster, Endpoint::Vmlet)?.len() == 2, "{all:?}");

    // Its collector runs when kubelet starts, too early to know any image's age, then every five
    // minutes, and at once when the disk seems to be full. What no collection helps against would
    // cost pods, but for those that are critical.
    cluster.configure_kubelet(|settings| {
        settings["imageGCHighThresholdPercent"] = json!(2);
        settings["imageGCLowThresholdPercent"] = json!(1);
        settings["evictionHard"]["nodefs.available"] = json!("99%");
        settings["evictionPressureTransitionPeriod"] = json!("1s");
    })?;
    eventually(COLLECTED, "the end of the unused image", || async {
        let left = images(&cluster, Endpoint::Vmlet)?;
        ensure!(left == used, "{left:?} are left, {used:?} are used");
        Ok(())
    })
    .await?;
    let left = images(&cluster, Endpoint::Proxy)?;
    // The pause image is pinned, the tool image is the server's.
    ensure!(left.len() == all.len() - 1, "{left:?} of {all:?}");

    let restarts = "jsonpath={.items[*].status.containerStatuses[0].restartCount}";
    let restarts = cluster.kubectl(&["get", "pods", "-o", restarts])?;
    ensure!(restarts == "0 0", "restarts: {restarts}");
    Guest::in_pod(stack, "user")?.run(&["sh", "-c", "md5sum /boot/vmlinuz"])?;
    // Another machine finds the image where it was.
    cluster.configure_kubelet(|settings| {
        settings["evictionHard"]["nodefs.available"] = json!("0%");
    })?;
    let mut later = vm_pod("later");
    later["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    cluster.apply(&later)?;
    cluster.await_ready("pod/later", READY)?;
    for pod in ["server", "user", "later"] {
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// A container that serves a disk of its own to the node.
fn serve_another_image(cluster: &Cluster) -> Result<()> {
    let disk = cluster.stack().dir().join("other.qcow2");
    let disk = disk.to_str().context("path")?;
    let mut create = Command::new("qemu-img");
    let made = program::output(create.args(["create", "-q", "-f", "qcow2", disk, "1M"]))?;
    ensure!(made.status.success(), "qemu-img: {made:?}");
    cluster.kubectl(&["create", "configmap", "images", "--from-file", disk])?;
    std::fs::remove_file(disk)?;
    let mut server = container_pod("server", "exec httpd -f -p 80 -h /images");
    let spec = &mut server["spec"];
    spec["priorityClassName"] = json!(CRITICAL);
    spec["volumes"] = json!([{ "name": "images", "configMap": { "name": "images" } }]);
    spec["containers"][0]["volumeMounts"] = json!([{ "name": "images", "mountPath": "/images" }]);
    cluster.apply(&server)
}

/// Ids of the images that a runtime lists.
fn images(cluster: &Cluster, endpoint: Endpoint) -> Result<Vec<String>> {
    let text = cluster
        .stack()
        .crictl_at(endpoint, &["images", "-o", "json"])?;
    let list: Value = serde_json::from_str(&text)?;
    let images = list["images"].as_array().context("images")?;
    let mut ids: Vec<String> = images
        .iter()
        .filter_map(|image| image["id"].as_str().map(ToOwned::to_owned))
        .collect();
    ids.sort();
    Ok(ids)
}
