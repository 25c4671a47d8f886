//! Two nodes with different CNI plugins: `bridge` on the first, `ptp` on the second, routes between them.
//!
//! Invariant: each way is a page fetched by the guest or container that is named first, by address and by Service.
//! Failure: the way that fails is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Endpoint, Guest, Options, Stack, container_pod, eventually, service, vm_pod};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const WAY: Duration = Duration::from_secs(180);
const SERVE: &str = "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp";
/// Each pod and its node.
const PODS: [(&str, usize); 4] = [("twin", 1), ("near", 1), ("machine", 2), ("far", 2)];

#[tokio::test]
#[ignore = "needs root"]
async fn machines_reach_each_other_across_nodes_with_different_plugins() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    use_ptp(cluster.node(2)).await?;
    for (name, node) in PODS {
        let mut pod = match name {
            "twin" | "machine" => vm_pod(name),
            _ => container_pod(name, SERVE),
        };
        pod["spec"]["nodeName"] = json!(format!("node{node}"));
        cluster.apply(&pod)?;
        cluster.apply(&service(name))?;
    }
    for (name, _) in PODS {
        cluster.await_ready(&format!("pod/{name}"), READY)?;
    }
    let bridge = cluster
        .node(2)
        .command("ip")
        .args(["link", "show", "cni0"])
        .output()?;
    ensure!(
        !bridge.status.success(),
        "the second node's pods are on a bridge"
    );

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
        let way = format!("{from} to {to}");
        let address = "jsonpath={.spec.clusterIP}";
        let address = cluster.kubectl(&["get", "service", to, "-o", address])?;
        for address in [cluster.pod_ip(to)?, address] {
            let url = format!("http://{address}/");
            eventually(WAY, &format!("{way} by {address}"), || async {
                let page = fetch(&cluster, from, &url)?;
                ensure!(page.contains(to), "{page:?}");
                Ok(())
            })
            .await?;
        }
    }
    for (name, _) in PODS {
        cluster.delete(&format!("pod/{name}"), GONE)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// A page, fetched by a pod.
fn fetch(cluster: &Cluster, pod: &str, url: &str) -> Result<String> {
    match PODS.iter().find(|(name, _)| *name == pod) {
        Some((name @ ("twin" | "machine"), node)) => {
            Guest::of(cluster.node(*node), name)?.wget(url)
        }
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
    // Vmlet reads it for each pod, containerd when it hears of the change.
    eventually(READY, "a containerd that knows its plugin", || async {
        let info = node.crictl_at(Endpoint::Containerd, &["info"])?;
        let info: Value = serde_json::from_str(&info)?;
        let networks = info["cniconfig"]["Networks"].to_string();
        ensure!(networks.contains("\"ptp\""), "{networks}");
        Ok(())
    })
    .await
}
