//! Nothing that happens to the programs of a node disturbs the pods on it: restarts and crashes,
//! one by one and all together, with machines and containers running.
//!
//! Invariant: the guest's own clock proves that it ran on; kubelet counts no restart; the Services
//! answer all the time, without a single failed request: their packets pass the kernel, QEMU and
//! the containers, which are not restarted.
//! Failure: the program and the way it ended are named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Poller, container_pod, eventually, service, ticks, vm_pod};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// Of the node; the control plane's are not ours to test.
const PROGRAMS: [&str; 6] = [
    "vmlet",
    "vmlet-tapmanager",
    "libvirtd",
    "vmlet-criproxy",
    "containerd",
    "kubelet",
];

#[tokio::test]
#[ignore = "needs root"]
async fn pods_outlive_every_program_of_their_node() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.apply(&container_pod(
        "box",
        "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp",
    ))?;
    let mut machine = vm_pod("machine");
    // On a busy machine an emulated guest may be late for a probe, which would take it out of its
    // Service.
    machine["spec"]["containers"][0]["readinessProbe"]["failureThreshold"] = json!(20);
    cluster.apply(&machine)?;
    for app in ["box", "machine"] {
        cluster.apply(&service(app))?;
        cluster.await_ready(&format!("pod/{app}"), READY)?;
    }
    let before = Before::read(&cluster)?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        for program in PROGRAMS {
            let disturbed = disturb(&cluster, &before, signal, &[program]).await;
            disturbed.with_context(|| format!("{signal} of {program}"))?;
        }
        let disturbed = disturb(&cluster, &before, signal, &PROGRAMS).await;
        disturbed.with_context(|| format!("{signal} of all"))?;
    }
    // What was running all the time can still be ended, and something new begun.
    cluster.apply(&vm_pod("later"))?;
    cluster.await_ready("pod/later", READY)?;
    for pod in ["box", "machine", "later"] {
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// Stops programs and starts them again, while both Services are asked all the time.
async fn disturb(
    cluster: &Cluster,
    before: &Before,
    signal: Signal,
    programs: &[&str],
) -> Result<()> {
    let stack = cluster.stack();
    let polled = before.services.iter().map(|(app, address)| {
        let url = format!("http://{address}/");
        Poller::start(stack, &url, app)
    });
    let polled = polled.collect::<Result<Vec<_>>>()?;
    for program in programs {
        stack.kill(program, signal).await?;
    }
    for program in programs {
        stack.restart(program)?;
    }
    before.still_holds(cluster).await?;
    for poller in polled {
        poller.end()?;
    }
    Ok(())
}

/// What must not change.
struct Before {
    pods: Vec<Value>,
    services: Vec<(&'static str, String)>,
}

impl Before {
    fn read(cluster: &Cluster) -> Result<Self> {
        let mut services = Vec::new();
        for app in ["box", "machine"] {
            let path = "jsonpath={.spec.clusterIP}";
            services.push((app, cluster.kubectl(&["get", "service", app, "-o", path])?));
        }
        Ok(Self {
            pods: identities(cluster)?,
            services,
        })
    }

    async fn still_holds(&self, cluster: &Cluster) -> Result<()> {
        cluster.await_condition("node/node1", "condition=Ready", READY)?;
        let tick = || {
            let log = cluster.kubectl(&["logs", "machine", "--tail=40"])?;
            ticks(&log).pop().context("no tick")
        };
        // A kubelet that has just started does not serve logs at once.
        let last = eventually(READY, "a tick", || async { tick() }).await?;
        let now = eventually(READY, "the next tick", || async {
            let tick = tick()?;
            ensure!(tick.count > last.count, "still at {last:?}");
            Ok(tick)
        })
        .await?;
        // A guest that booted again would count from the beginning.
        ensure!(now.uptime > last.uptime, "{last:?}, then {now:?}");
        for (app, address) in &self.services {
            let url = format!("http://{address}/");
            let page = cluster.stack().fetch(&url, READY).await?;
            ensure!(page.contains(app), "the Service of {app} answers {page:?}");
        }
        for pod in ["pod/box", "pod/machine"] {
            cluster.await_ready(pod, READY)?;
        }
        let pods = identities(cluster)?;
        ensure!(pods == self.pods, "{:#?} became {pods:#?}", self.pods);
        Ok(())
    }
}

/// Who the pods are: another container, address or count of restarts is another life.
fn identities(cluster: &Cluster) -> Result<Vec<Value>> {
    let list = cluster.get_json(&["pods"])?;
    let pods = list["items"].as_array().context("items")?;
    let identity = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        json!({
            "uid": pod["metadata"]["uid"],
            "ip": pod["status"]["podIP"],
            "container": status["containerID"],
            "restarts": status["restartCount"],
        })
    };
    Ok(pods.iter().map(identity).collect())
}
