//! Two nodes with CNI plugins and routes between them: `bridge` on both, then `ptp` on the second.
//!
//! Invariant: each way is a page fetched by the guest or container that is named first, by address
//! and by Service.
//! Failure: the way that fails is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Cluster, Endpoint, Guest, Options, Stack, container_pod, eventually, program, service, vm_pod,
};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const WAY: Duration = Duration::from_secs(180);
const SERVE: &str = "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp";
/// Those that are machines.
const VMS: [&str; 3] = ["twin", "early", "machine"];
/// Each pod and its node, with both plugins.
const PODS: [(&str, usize); 4] = [("twin", 1), ("near", 1), ("machine", 2), ("far", 2)];

#[tokio::test]
#[ignore = "needs root"]
async fn machines_reach_each_other_across_nodes_with_different_plugins() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    start(&cluster, "twin", 1)?;
    start(&cluster, "early", 2)?;
    for (from, to) in [("twin", "early"), ("early", "twin")] {
        reach(&cluster, from, to).await?;
    }
    leave_bridge(&cluster).await?;
    use_ptp(cluster.node(2)).await?;
    for (name, node) in PODS.into_iter().filter(|(name, _)| *name != "twin") {
        start(&cluster, name, node)?;
    }
    for (from, to) in [
        ("twin", "machine"),
        ("machine", "twin"),
        ("machine", "near"),
        ("near", "machine"),
        ("machine", "far"),
        ("far", "twin"),
        ("far", "near"),
        ("twin", "far"),
    ] {
        reach(&cluster, from, to).await?;
    }
    let mut show = cluster.node(2).command("ip");
    let bridge = program::output(show.args(["link", "show", "cni0"]))?;
    ensure!(
        !bridge.status.success(),
        "the second node's pods are on a bridge"
    );
    for (name, _) in PODS {
        cluster.delete(&format!("pod/{name}"), GONE)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// A pod with a Service on that node, a VM or a container.
fn start(cluster: &Cluster, name: &str, node: usize) -> Result<()> {
    let mut pod = if VMS.contains(&name) {
        vm_pod(name)
    } else {
        container_pod(name, SERVE)
    };
    pod["spec"]["nodeName"] = json!(format!("node{node}"));
    cluster.apply(&pod)?;
    cluster.apply(&service(name))
}

/// Removes the pod of the second node that is on a bridge, and the bridge, which the plugin leaves.
async fn leave_bridge(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(2);
    cluster.delete("pod/early", GONE)?;
    cluster.delete("service/early", GONE)?;
    eventually(GONE, "a second node without pods", || async {
        let left = node.crictl(&["pods", "-q"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    let mut delete = node.command("ip");
    let deleted = program::output(delete.args(["link", "delete", "cni0"]))?;
    ensure!(
        deleted.status.success(),
        "there was no bridge on the second node: {deleted:?}"
    );
    Ok(())
}

/// Both ways to name a pod lead to it.
async fn reach(cluster: &Cluster, from: &str, to: &str) -> Result<()> {
    for name in [from, to] {
        cluster.await_ready(&format!("pod/{name}"), READY)?;
    }
    let address = "jsonpath={.spec.clusterIP}";
    let address = cluster.kubectl(&["get", "service", to, "-o", address])?;
    for address in [cluster.pod_ip(to)?, address] {
        let url = format!("http://{address}/");
        let what = format!("{from} to {to} by {address}");
        eventually(WAY, &what, || async {
            let page = fetch(cluster, from, &url)?;
            ensure!(page.contains(to), "{page:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A page, fetched by a pod.
fn fetch(cluster: &Cluster, pod: &str, url: &str) -> Result<String> {
    match pod {
        "twin" => Guest::in_pod(cluster.node(1), pod)?.wget(url),
        "early" | "machine" => Guest::in_pod(cluster.node(2), pod)?.wget(url),
        _ => cluster.kubectl(&["exec", pod, "--", "wget", "-q", "-O", "-", url]),
    }
}

/// Gives the node another plugin, with the addresses that it has.
async fn use_ptp(node: &Stack) -> Result<()> {
    let file = node.dir().join("cni/conf/10-vmlet.conflist");
    let mut list: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let plugin = list["plugins"][0].as_object_mut().context("plugin")?;
    for key in ["bridge", "isGateway", "hairpinMode"] {
        plugin.remove(key);
    }
    plugin.insert("type".to_owned(), json!("ptp"));
    std::fs::write(&file, list.to_string())?;
    // Vmlet reads it for each pod, containerd when it is notified of the change.
    eventually(READY, "a containerd that knows its plugin", || async {
        let info = node.crictl_at(Endpoint::Containerd, &["info"])?;
        let info: Value = serde_json::from_str(&info)?;
        let networks = info["cniconfig"]["Networks"].to_string();
        ensure!(networks.contains("\"ptp\""), "{networks}");
        Ok(())
    })
    .await
}
