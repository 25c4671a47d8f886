//! What a VM pod takes is the pod's: cgroup, limits, overhead, resize, eviction; static pods and
//! drains know it.
//!
//! Invariant: what is claimed of a cgroup is read from the kernel's files, for QEMU's own process.
//! Failure: the step is named, with what kubectl describes; pods, events and logs follow.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Guest, eventually, vm_pod};
use serde_json::{Value, json};

use super::{guest_data, resize, unsupported};

pub(super) const READY: Duration = Duration::from_secs(300);
pub(super) const GONE: Duration = Duration::from_secs(180);
pub(super) const MIB: u64 = 1 << 20;
/// What the cluster's RuntimeClass adds.
pub(super) const OVERHEAD: u64 = 160 * MIB;
const LIMIT: u64 = 128 * MIB;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "needs root"]
async fn a_machine_obeys_the_limits_of_its_pod_and_ends_with_its_node() -> Result<()> {
    let cluster = Arc::new(Cluster::up()?);
    // Side by side, since each mostly waits.
    let shared = Arc::clone(&cluster);
    let resize = tokio::spawn(async move {
        resize::a_machine_keeps_its_size_until_it_is_made_anew(&shared).await
    });
    let shared = Arc::clone(&cluster);
    let unsupported = tokio::spawn(async move {
        unsupported::what_a_guest_does_not_get_is_refused_or_an_event(&shared).await
    });
    let shared = Arc::clone(&cluster);
    let guest_data = tokio::spawn(async move {
        guest_data::comes_from_mounts_and_by_permission_from_the_agent(&shared).await?;
        guest_data::answers_reach_the_cd_rom(&shared).await
    });
    let limits = a_machine_lives_and_dies_by_the_limits_of_its_pod(&cluster).await;
    let unsupported = unsupported.await?.context("unsupported");
    let guest_data = guest_data.await?.context("guest data");
    resize
        .await?
        .context("resize")
        .and(unsupported)
        .and(guest_data)
        .and(limits)?;
    let cluster = Arc::into_inner(cluster).context("the cluster is still in use")?;
    static_pods_drains_and_evictions_treat_machines_as_pods(&cluster).await?;
    cluster.await_clean().await?;
    cluster.down()
}

async fn a_machine_lives_and_dies_by_the_limits_of_its_pod(cluster: &Cluster) -> Result<()> {
    cgroups(cluster).context("cgroups")?;
    out_of_memory(cluster).await.context("out of memory")
}

/// After everything else: all pods leave the node.
async fn static_pods_drains_and_evictions_treat_machines_as_pods(cluster: &Cluster) -> Result<()> {
    static_pod(cluster).await.context("static pod")?;
    drain(cluster).context("drain")?;
    eviction(cluster).await.context("eviction")
}

fn cgroups(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("limited");
    pod["spec"]["containers"][0]["resources"] = json!({
        "requests": { "cpu": "100m", "memory": "128Mi" },
        "limits": { "cpu": "500m", "memory": "128Mi" },
    });
    cluster.apply(&pod)?;
    cluster.await_ready("pod/limited", READY)?;
    let pod = cluster.get_json(&["pod", "limited"])?;
    ensure!(
        pod["spec"]["overhead"]["memory"] == "160Mi",
        "{}",
        pod["spec"]["overhead"]
    );
    let uid = pod["metadata"]["uid"].as_str().context("uid")?;

    let qemu = qemu(cluster, "limited")?;
    let memory = cgroup(qemu, "memory")?;
    ensure!(
        memory.to_string_lossy().contains(uid),
        "QEMU's memory is in {memory:?}"
    );
    let limit = number(&memory.join("memory.limit_in_bytes"))?;
    ensure!(limit == LIMIT + OVERHEAD, "the limit is {limit} bytes");
    let used = number(&memory.join("memory.usage_in_bytes"))?;
    ensure!(
        used > 32 * MIB,
        "a running guest is said to use {used} bytes"
    );

    let cpu = cgroup(qemu, "cpu")?;
    ensure!(
        cpu.to_string_lossy().contains(uid),
        "QEMU's CPU time is in {cpu:?}"
    );
    let quota = number(&cpu.join("cpu.cfs_quota_us"))?;
    let period = number(&cpu.join("cpu.cfs_period_us"))?;
    // The overhead has a CPU part too.
    ensure!(
        quota * 1000 / period == 510,
        "a quota of {quota} us in {period} us"
    );
    cluster.delete("pod/limited", GONE)
}

/// Without any overhead there is no room for QEMU itself, which under software emulation shows as
/// soon as the guest boots.
async fn out_of_memory(cluster: &Cluster) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": { "name": "tight" },
        "handler": "vmlet",
    }))?;
    let mut pod = vm_pod("greedy");
    pod["spec"]["runtimeClassName"] = json!("tight");
    pod["spec"]["restartPolicy"] = json!("Never");
    cluster.apply(&pod)?;
    cluster.await_condition("pod/greedy", "jsonpath={.status.phase}=Failed", READY)?;
    let pod = cluster.get_json(&["pod", "greedy"])?;
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        ended["reason"] == "OOMKilled" && ended["exitCode"] == 137,
        "{ended}"
    );
    cluster.delete("pod/greedy", GONE)
}

async fn static_pod(cluster: &Cluster) -> Result<()> {
    let folder = cluster.stack().dir().join("manifests");
    fs::create_dir_all(&folder)?;
    let file = folder.join("fixed.json");
    let mut pod = vm_pod("fixed");
    // No admission adds the RuntimeClass's overhead to what kubelet reads from a file.
    pod["spec"]["overhead"] = json!({ "cpu": "10m", "memory": "160Mi" });
    fs::write(&file, pod.to_string())?;
    cluster.await_condition("pod/fixed-node1", "create", READY)?;
    cluster.await_ready("pod/fixed-node1", READY)?;
    fs::remove_file(&file)?;
    cluster.await_gone("pod/fixed-node1", GONE)
}

fn drain(cluster: &Cluster) -> Result<()> {
    cluster.apply(&vm_pod("drained"))?;
    cluster.await_ready("pod/drained", READY)?;
    let arguments = [
        "drain",
        "node1",
        "--force",
        "--ignore-daemonsets",
        "--timeout=180s",
    ];
    let words = cluster.kubectl(&arguments)?;
    ensure!(words.contains("node/node1 drained"), "{words}");
    let left = cluster.kubectl(&["get", "pods", "-o", "name"])?;
    ensure!(left.is_empty(), "a drained node still has {left}");
    cluster.kubectl(&["uncordon", "node1"]).map(drop)
}

/// A node that says it has no memory left takes machines down as it does containers.
async fn eviction(cluster: &Cluster) -> Result<()> {
    cluster.apply(&vm_pod("evicted"))?;
    cluster.await_ready("pod/evicted", READY)?;
    let path = cluster.stack().dir().join("kubelet.json");
    let before = fs::read_to_string(&path)?;
    let mut settings: Value = serde_json::from_str(&before)?;
    // A soft threshold takes nothing from what the node has to give, so that the pod stays admitted
    // until then.
    settings["evictionSoft"] = json!({ "memory.available": "99%" });
    settings["evictionSoftGracePeriod"] = json!({ "memory.available": "1s" });
    settings["evictionMaxPodGracePeriod"] = json!(20);
    settings["evictionPressureTransitionPeriod"] = json!("1s");
    fs::write(&path, settings.to_string())?;
    cluster.stack().restart("kubelet")?;
    // A guest that powers off in time has succeeded, as a container would have: the condition
    // contains the cause.
    cluster.await_condition("pod/evicted", "condition=DisruptionTarget", READY)?;
    let pod = cluster.get_json(&["pod", "evicted"])?;
    let conditions = pod["status"]["conditions"]
        .as_array()
        .context("conditions")?;
    let disruption = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget");
    ensure!(
        disruption.is_some_and(|why| why["reason"] == "TerminationByKubelet"),
        "{conditions:?}"
    );
    eventually(READY, "the machine to be gone", || async {
        let running = cluster.stack().crictl(&["ps", "-q"])?;
        ensure!(running.is_empty(), "{running} runs on");
        Ok(())
    })
    .await?;
    fs::write(&path, before)?;
    cluster.stack().restart("kubelet")?;
    cluster.delete("pod/evicted", GONE)
}

pub(super) fn qemu(cluster: &Cluster, pod: &str) -> Result<i64> {
    let guest = Guest::in_pod(cluster.stack(), pod)?;
    let text = cluster.stack().crictl(&["inspect", guest.container()])?;
    let status: Value = serde_json::from_str(&text)?;
    status["info"]["pid"]
        .as_i64()
        .context("no pid in the verbose status")
}

/// The folder of a process's cgroup in one hierarchy of version 1.
pub(super) fn cgroup(pid: i64, controller: &str) -> Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    });
    let path = path.with_context(|| format!("no {controller} in {text}"))?;
    Ok(Path::new("/sys/fs/cgroup")
        .join(controller)
        .join(path.trim_start_matches('/')))
}

pub(super) fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.trim()
        .parse()
        .with_context(|| format!("{}: {text}", path.display()))
}
