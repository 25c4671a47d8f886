//! A kubelet that follows events instead of listing each second.
//!
//! Invariant: with events kubelet lists every five minutes only; what it learns sooner comes from
//! the proxy's stream, which the node's programs do not interrupt when they end.
//! Failure: the step is named; pods, events and the ends of logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Guest, container_pod, eventually, vm_pod};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(200);
const RESTARTED: &str = "jsonpath={.status.containerStatuses[0].restartCount}";
const GONE: Duration = Duration::from_secs(180);

pub(super) async fn a_kubelet_follows_pods_by_their_events(cluster: &Cluster) -> Result<()> {
    follow_events(cluster).await?;
    cluster.apply(&vm_pod("vm"))?;
    cluster.apply(&container_pod("box", "sleep 20; exit 3"))?;
    cluster.await_ready("pod/vm", READY)?;
    cluster.await_condition("pod/box", &format!("{RESTARTED}=1"), READY)?;
    ensure!(metric(cluster, "connection_error_count")? == 0);

    // The end of a guest comes from the daemon.
    Guest::in_pod(cluster.stack(), "vm")?.power_off()?;
    cluster.await_condition("pod/vm", &format!("{RESTARTED}=1"), READY)?;
    cluster.await_ready("pod/vm", READY)?;

    // An end that happens while the daemon is away comes from the comparison of lists after it.
    let stack = cluster.stack();
    let emulator = Guest::in_pod(stack, "vm")?.emulator()?;
    stack.kill("vmlet", Signal::SIGKILL).await?;
    kill(emulator, Signal::SIGKILL)?;
    stack.restart("vmlet")?;
    cluster.await_condition("pod/vm", &format!("{RESTARTED}=2"), READY)?;
    cluster.await_ready("pod/vm", READY)?;
    ensure!(metric(cluster, "connection_error_count")? == 0);

    // The proxy's own end is an error; kubelet connects again.
    stack.kill("vmlet-criproxy", Signal::SIGKILL).await?;
    stack.restart("vmlet-criproxy")?;
    cluster.apply(&vm_pod("later"))?;
    cluster.await_ready("pod/later", READY)?;
    ensure!(metric(cluster, "connection_error_count")? > 0);
    for pod in ["vm", "box", "later"] {
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    cluster.configure_kubelet(|kubelet| kubelet["featureGates"]["EventedPLEG"] = json!(false))
}

/// Restarts kubelet with the feature gate, and waits until it is connected.
async fn follow_events(cluster: &Cluster) -> Result<()> {
    let stack = cluster.stack();
    let file = stack.dir().join("kubelet.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    config["featureGates"]["EventedPLEG"] = json!(true);
    std::fs::write(&file, config.to_string())?;
    stack.kill("kubelet", Signal::SIGTERM).await?;
    stack.restart("kubelet")?;
    eventually(READY, "kubelet's stream of events", || async {
        ensure!(metric(cluster, "connection_success_count")? == 1);
        Ok(())
    })
    .await?;
    cluster.await_condition("node/node1", "condition=Ready", READY)
}

/// A figure of kubelet's about its stream of events.
fn metric(cluster: &Cluster, name: &str) -> Result<u64> {
    let all = cluster.kubectl(&["get", "--raw", "/api/v1/nodes/node1/proxy/metrics"])?;
    let name = format!("kubelet_evented_pleg_{name} ");
    let line = all.lines().find_map(|line| line.strip_prefix(&name));
    line.with_context(|| name.clone())?.parse().context(name)
}
