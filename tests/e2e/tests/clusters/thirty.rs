//! Many machines on one node: kubelet keeps seeing all of them, and in the long form what that
//! takes is printed.
//!
//! The short form has twelve machines. `VMLET_TEST_LONG=1` makes them thirty, and measures the node
//! for a while without a machine and with all of them; nothing else differs, and no figure is
//! asserted.
//!
//! Invariant: the node is Ready from the first pod to the last, kubelet's relists continue, and
//! kubelet never finds them too late. A guest is paused as soon as it is up: two processors emulate
//! no thirty running ones, and to our programs a paused one is a running machine.
//! Failure: the wave is named; pods, events and logs follow.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Endpoint, Load, Quiet, eventually, vm_pod};
use serde_json::{Value, json};

/// Requests the long form.
const LONG: &str = "VMLET_TEST_LONG";
const WAVES: usize = 4;
const WAVES_IN_LONG: usize = 10;
/// More at once only wait for each other.
const WAVE: usize = 3;
const UP: Duration = Duration::from_secs(300);
const WINDOW: Duration = Duration::from_secs(20);
/// Of the node.
const PROGRAMS: [&str; 6] = [
    "vmlet",
    "vmlet-tapmanager",
    "vmlet-criproxy",
    "libvirtd",
    "containerd",
    "kubelet",
];
/// Enough of them to say that they continue.
const RELISTS: f64 = 5.0;

#[tokio::test]
#[ignore = "needs root"]
async fn many_machines_on_a_node_keep_kubelet_in_time() -> Result<()> {
    let is_long = std::env::var(LONG).is_ok_and(|value| value == "1");
    let waves = if is_long { WAVES_IN_LONG } else { WAVES };
    let cluster = Cluster::up()?;
    let ready = ready_since(&cluster)?;
    if is_long {
        print("no pod", &quiet(&cluster).await?)?;
    }
    for wave in 0..waves {
        begin(&cluster, wave)
            .await
            .with_context(|| format!("wave {wave}"))?;
    }
    let count = waves * WAVE;
    if is_long {
        print(&format!("{count} machines"), &quiet(&cluster).await?)?;
    }
    let pods = cluster.get_json(&["pods", "--selector", "app=thirty"])?;
    let running = pods["items"].as_array().context("items")?;
    let running = running
        .iter()
        .filter(|pod| pod["status"]["phase"] == "Running");
    ensure!(running.count() == count, "{pods:#}");
    let listed = cluster
        .stack()
        .crictl_at(Endpoint::Proxy, &["ps", "-q", "--state", "running"])?;
    ensure!(listed.lines().count() == count, "{listed}");
    let before = Load::read(&cluster, &PROGRAMS)?;
    eventually(UP, "relists of all machines", || async {
        let relists = Load::read(&cluster, &PROGRAMS)?.since(&before)?.relists;
        ensure!(relists >= RELISTS, "{relists}");
        Ok(())
    })
    .await?;

    cluster.kubectl(&[
        "delete",
        "pods",
        "--selector",
        "app=thirty",
        "--timeout=300s",
    ])?;
    cluster.await_clean().await?;
    let now = ready_since(&cluster)?;
    ensure!(
        now == ready,
        "not Ready all the time: since {ready}, then {now}"
    );
    let log = cluster.stack().log("kubelet");
    // At its start it reports that it has not checked yet.
    let late = log
        .lines()
        .find(|line| line.contains("pleg was last seen active"));
    ensure!(late.is_none(), "kubelet was late: {late:?}");
    cluster.down()
}

/// Starts a wave, and pauses its guests once they have booted.
async fn begin(cluster: &Cluster, wave: usize) -> Result<()> {
    let pods: Vec<Value> = (0..WAVE)
        .map(|number| {
            let mut pod = vm_pod(&format!("vm-{wave}-{number}"));
            pod["metadata"]["labels"] = json!({ "app": "thirty" });
            pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
            let container = &mut pod["spec"]["containers"][0];
            // A paused guest does not respond.
            container["readinessProbe"].take();
            pod
        })
        .collect();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }))?;
    let stack = cluster.stack();
    let logs = stack.dir().join("logs/pods");
    eventually(UP, "the guests of the wave", || async {
        let up = booted(&logs, &format!("default_vm-{wave}-"))?;
        ensure!(up == WAVE, "{up} are up");
        Ok(())
    })
    .await?;
    for domain in stack.virsh(&["list", "--name"])?.split_whitespace() {
        stack.virsh(&["suspend", domain])?;
    }
    Ok(())
}

/// How many pods with such a name have a guest that says it is ready.
fn booted(logs: &Path, prefix: &str) -> Result<usize> {
    let mut up = 0;
    for pod in std::fs::read_dir(logs)?.flatten() {
        if pod.file_name().to_string_lossy().starts_with(prefix) {
            let log = std::fs::read(pod.path().join("vm/0.log")).unwrap_or_default();
            up += usize::from(String::from_utf8_lossy(&log).contains("VMLET-GUEST-READY"));
        }
    }
    Ok(up)
}

async fn quiet(cluster: &Cluster) -> Result<Quiet> {
    let before = Load::read(cluster, &PROGRAMS)?;
    tokio::time::sleep(WINDOW).await;
    Load::read(cluster, &PROGRAMS)?.since(&before)
}

/// Prints the numbers of `docs/performance.md`, past the capture of a test that passes.
fn print(what: &str, load: &Quiet) -> Result<()> {
    let mut out = std::io::stderr();
    let count = load.relists;
    let mean = load.relist;
    let p99 = load.relist_p99;
    writeln!(
        out,
        "{what}: {count} relists of {mean:?} (p99 within {p99:?})"
    )?;
    for (program, share) in &load.shares {
        writeln!(out, "  {program:18} {:5.2} % of a processor", share * 100.0)?;
    }
    Ok(())
}

/// Since when the node is Ready.
fn ready_since(cluster: &Cluster) -> Result<String> {
    let node = cluster.get_json(&["node", "node1"])?;
    let conditions = node["status"]["conditions"]
        .as_array()
        .context("conditions")?;
    let ready = conditions.iter().find(|c| c["type"] == "Ready");
    let ready = ready.context("no condition Ready")?;
    ensure!(ready["status"] == "True", "{ready}");
    Ok(ready["lastTransitionTime"].to_string())
}
