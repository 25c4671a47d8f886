//! The cluster fixture itself: both kinds of pods run, reach each other, and nothing stays behind.
//!
//! Invariant: a guest's page is fetched by an ordinary pod, so that every part between them works.
//! Failure: pods, events and the ends of logs are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Endpoint, Guest, Options, container_pod, eventually, service, vm_pod};
use serde_json::json;

const READY: Duration = Duration::from_secs(600);
const SERVE: &str = "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp";

#[tokio::test]
#[ignore = "needs root"]
async fn a_container_fetches_a_page_from_a_vm_directly_and_through_a_service() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.apply(&container_pod("box", SERVE))?;
    cluster.apply(&vm_pod("machine"))?;
    cluster.apply(&service("machine"))?;
    cluster.await_ready("pod/box", READY)?;
    cluster.await_ready("pod/machine", READY)?;
    ensure!(cluster.kubectl(&["exec", "box", "--", "hostname"])? == "box");

    // What kubelet had to make again has stopped.
    let ready = ["pods", "-q", "--state", "ready"];
    let vms = cluster.stack().crictl(&ready)?;
    ensure!(vms.lines().count() == 1, "VM pods: {vms}");
    let containers = cluster.stack().crictl_at(Endpoint::Containerd, &ready)?;
    ensure!(containers.lines().count() == 1, "containers: {containers}");
    let both = cluster.stack().crictl_at(Endpoint::Proxy, &ready)?;
    ensure!(both.lines().count() == 2, "through the proxy: {both}");

    let direct = wget(&cluster, "box", &cluster.pod_ip("machine")?).await?;
    ensure!(direct.contains("machine"), "{direct}");
    let service = cluster.get_json(&["service", "machine"])?;
    let address = service["spec"]["clusterIP"].as_str().context("clusterIP")?;
    let through = wget(&cluster, "box", address).await?;
    ensure!(through.contains("machine"), "{through}");

    cluster.delete("pod/machine", READY)?;
    cluster.delete("pod/box", READY)?;
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn every_program_can_be_restarted_under_running_pods() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.apply(&container_pod("before", SERVE))?;
    cluster.await_ready("pod/before", READY)?;
    for program in [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "containerd",
        "libvirtd",
        "vmlet-tapmanager",
        "vmlet",
        "vmlet-criproxy",
        "kubelet",
    ] {
        let before = cluster.stack().pid(program)?;
        cluster.stack().restart(program)?;
        ensure!(cluster.stack().pid(program)? != before, "{program}");
    }
    cluster.apply(&container_pod("after", SERVE))?;
    cluster.await_ready("pod/after", READY)?;
    wget(&cluster, "after", &cluster.pod_ip("before")?).await?;
    let pod = cluster.get_json(&["pod", "before"])?;
    let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "restarted {restarts} times");
    cluster.delete("pod/before", READY)?;
    cluster.delete("pod/after", READY)?;
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn pods_reach_each_other_across_two_nodes() -> Result<()> {
    let cluster = Cluster::with(Options {
        nodes: 2,
        ..Options::default()
    })?;
    let mut pods = [
        container_pod("near", SERVE),
        container_pod("far", SERVE),
        vm_pod("machine"),
        vm_pod("twin"),
    ];
    for (pod, node) in pods.iter_mut().zip(["node1", "node2", "node2", "node1"]) {
        pod["spec"]["nodeName"] = json!(node);
        cluster.apply(pod)?;
    }
    for name in ["near", "far", "machine", "twin"] {
        cluster.await_ready(&format!("pod/{name}"), READY)?;
    }
    let page = wget(&cluster, "near", &cluster.pod_ip("machine")?).await?;
    ensure!(page.contains("machine"), "{page}");
    let page = wget(&cluster, "far", &cluster.pod_ip("near")?).await?;
    ensure!(page.contains("near"), "{page}");
    for (number, from, to) in [
        (1, "twin", "machine"),
        (2, "machine", "twin"),
        (1, "twin", "far"),
    ] {
        let url = format!("http://{}/", cluster.pod_ip(to)?);
        // Its own network may still be coming up.
        let page = eventually(READY, &format!("{url} from {from}"), || async {
            Guest::of(cluster.node(number), from)?.wget(&url)
        })
        .await?;
        ensure!(page.contains(to), "{from} has from {to}: {page}");
    }
    for number in [1, 2] {
        let ready = ["pods", "-q", "--state", "ready"];
        let vms = cluster.node(number).crictl(&ready)?;
        ensure!(vms.lines().count() == 1, "VM pods of node {number}: {vms}");
    }
    for name in ["near", "far", "machine", "twin"] {
        cluster.delete(&format!("pod/{name}"), READY)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_node_without_vmlet_runs_ordinary_pods_and_down_removes_what_was_left_running()
-> Result<()> {
    let cluster = Cluster::with(Options {
        no_vmlet: true,
        ..Options::default()
    })?;
    cluster.apply(&container_pod("left", SERVE))?;
    cluster.await_ready("pod/left", READY)?;
    ensure!(!cluster.stack().is_alive("vmlet") && !cluster.stack().is_alive("libvirtd"));
    cluster.down()
}

/// A page, fetched by a container.
async fn wget(cluster: &Cluster, from: &str, address: &str) -> Result<String> {
    let url = format!("http://{address}/");
    eventually(READY, &format!("{url} from {from}"), || async {
        cluster.kubectl(&[
            "exec", from, "--", "timeout", "3", "wget", "-q", "-O", "-", &url,
        ])
    })
    .await
}
