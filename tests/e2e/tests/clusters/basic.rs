//! The cluster fixture itself, without Vmlet: ordinary pods outlive every program, and `down`
//! removes what is left.
//!
//! Invariant: a page is fetched by one pod from another, so that every part between them works.
//! Failure: pods, events and the ends of logs are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Options, container_pod, eventually};

const READY: Duration = Duration::from_secs(600);
const SERVE: &str = "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp";
/// All of such a cluster, in the order in which they need each other.
const PROGRAMS: [&str; 8] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "containerd",
    "vmlet-criproxy",
    "kubelet",
];

#[tokio::test]
#[ignore = "needs root"]
async fn a_node_without_vmlet_runs_ordinary_pods_and_down_removes_what_was_left_running()
-> Result<()> {
    let cluster = Cluster::with(Options {
        no_vmlet: true,
        ..Options::default()
    })?;
    cluster.apply(&container_pod("before", SERVE))?;
    cluster.await_ready("pod/before", READY)?;
    ensure!(!cluster.stack().is_alive("vmlet") && !cluster.stack().is_alive("libvirtd"));
    every_program_can_be_restarted(&cluster).context("restart")?;
    cluster.apply(&container_pod("after", SERVE))?;
    cluster.await_ready("pod/after", READY)?;
    let page = wget(&cluster, "after", &cluster.pod_ip("before")?).await?;
    ensure!(page.contains("before"), "{page}");
    let pod = cluster.get_json(&["pod", "before"])?;
    let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "restarted {restarts} times");
    // Both pods run on.
    cluster.down()
}

fn every_program_can_be_restarted(cluster: &Cluster) -> Result<()> {
    let stack = cluster.stack();
    for program in PROGRAMS {
        let before = stack.pid(program)?;
        stack.restart(program).context(program)?;
        ensure!(stack.pid(program)? != before, "{program}");
    }
    Ok(())
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
