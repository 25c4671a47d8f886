//! kubelet's resize of a running machine. Part of the test of [`resources`](super::resources).
//!
//! Invariant: what a machine has is read in the guest and from the kernel's files, and compared
//! with the pod's status.
//! Failure: the step is named; pods, events and logs follow.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Guest, eventually, vm_pod};
use serde_json::{Value, json};

use super::probes::startup_probe;
use super::resources::{GONE, MIB, OVERHEAD, READY, cgroup, number, qemu};

/// For what kubelet tries again after a refusal.
const DONE: Duration = Duration::from_secs(300);
/// What the machine with room has at first, in MiB.
const ROOMY: u64 = 192;

pub(crate) async fn a_machine_keeps_its_size_until_it_is_made_anew(
    cluster: &Cluster,
) -> Result<()> {
    let mut pod = vm_pod("resized");
    pod["spec"]["containers"][0]["resources"] = json!({
        "requests": { "cpu": "100m", "memory": "96Mi" },
        "limits": { "cpu": "500m", "memory": "128Mi" },
    });
    // Each look of a probe that fails takes one of the 25 events that kubelet gives a pod, and refusals
    // are awaited as events: that it is up is seen by commands that it takes.
    let mut without_probes = pod.clone();
    if let Some(container) = without_probes["spec"]["containers"][0].as_object_mut() {
        container.remove("readinessProbe");
    }
    cluster.apply(&without_probes)?;
    pod["spec"]["containers"][0]["startupProbe"] = startup_probe();
    pod["metadata"]["name"] = json!("regrown");
    pod["spec"]["containers"][0]["resizePolicy"] = json!([
        { "resourceName": "cpu", "restartPolicy": "RestartContainer" },
        { "resourceName": "memory", "restartPolicy": "RestartContainer" },
    ]);
    cluster.apply(&pod)?;
    let mut roomy = vm_pod("roomy");
    roomy["metadata"]["annotations"]["vmlet.dev/max-vcpus"] = json!("3");
    roomy["metadata"]["annotations"]["vmlet.dev/max-memory"] = json!("512Mi");
    // An emulator that lacks CPU time while its guest looks for PCI devices briefly has more than 100 MiB of
    // memory that it cannot free yet (docs/pods.md): the guest uses less than it has.
    roomy["spec"]["containers"][0]["resources"] = json!({
        "requests": { "cpu": "100m", "memory": "96Mi" },
        "limits": { "cpu": "1", "memory": format!("{ROOMY}Mi") },
    });
    roomy["spec"]["containers"][0]["startupProbe"] = startup_probe();
    cluster.apply(&roomy)?;
    within_room(cluster)
        .await
        .context("resize within the room")?;
    cluster.delete("pod/roomy", GONE)?;
    in_place(cluster).await.context("resize in place")?;
    by_restart(cluster).await.context("resize by a restart")?;
    cluster.delete("pod/resized", GONE)?;
    cluster.delete("pod/regrown", GONE)
}

/// CPU time up to what the virtual CPUs can use can be had at once; more of them, or more memory,
/// cannot.
async fn in_place(cluster: &Cluster) -> Result<()> {
    cluster.await_commands("resized", READY).await?;
    let before = container(cluster, "resized")?;
    let pid = qemu(cluster, "resized")?;
    let cpu = cgroup(pid, "cpu")?;
    let memory = cgroup(pid, "memory")?;
    let limit = memory.join("memory.limit_in_bytes");
    ensure!(quota(&cpu)? == 510, "{} at first", quota(&cpu)?);

    resize(cluster, "resized", &json!({ "cpu": "900m" }))?;
    await_settled(cluster, "resized", "900m", "128Mi").await?;
    ensure!(quota(&cpu)? == 910, "{} after the resize", quota(&cpu)?);

    for (more, words) in [
        (
            json!({ "cpu": "2" }),
            "the machine has 1 virtual CPUs for its life",
        ),
        (
            json!({ "memory": "192Mi" }),
            "the machine has 128 MiB for its life",
        ),
    ] {
        resize(cluster, "resized", &more)?;
        await_refusal(cluster, "resized", words).await?;
        cluster
            .await_event("resized", "ResizeError", words, DONE)
            .await?;
        let status = container(cluster, "resized")?;
        let has = &status["resources"]["limits"];
        ensure!(*has == json!({ "cpu": "900m", "memory": "128Mi" }), "{has}");
        ensure!(quota(&cpu)? == 910, "{} after {more}", quota(&cpu)?);
        let limit = number(&limit)?;
        ensure!(limit == 128 * MIB + OVERHEAD, "{limit} after {more}");
        // What the pod was before is what it is: nothing is left of the attempt.
        resize(
            cluster,
            "resized",
            &json!({ "cpu": "900m", "memory": "128Mi" }),
        )?;
        await_settled(cluster, "resized", "900m", "128Mi").await?;
    }
    let after = container(cluster, "resized")?;
    ensure!(
        before["containerID"] == after["containerID"] && after["restartCount"] == 0,
        "{before}, then {after}"
    );
    cluster.await_ready("pod/resized", READY)
}

/// A machine with room gets more CPUs and memory while it runs, and gives them back.
async fn within_room(cluster: &Cluster) -> Result<()> {
    cluster.await_ready("pod/roomy", READY)?;
    // Under software emulation the guest boots with all CPUs, and the agent takes two off line.
    let small = eventually(DONE, "a guest with one CPU", || async {
        let (cpus, small) = size(cluster, "roomy")?;
        ensure!(
            cpus == 1 && small < ROOMY * MIB,
            "{cpus} CPUs, {small} bytes"
        );
        Ok(small)
    })
    .await?;
    let pid = qemu(cluster, "roomy")?;
    let limit = cgroup(pid, "memory")?.join("memory.limit_in_bytes");
    // kubelet refuses limits below what the emulator has in memory, its own share included.
    for (cpu, memory, cpus, mib) in [("2500m", "384Mi", 3, 384), ("500m", "320Mi", 1, 320)] {
        resize(cluster, "roomy", &json!({ "cpu": cpu, "memory": memory }))?;
        await_settled(cluster, "roomy", cpu, memory).await?;
        let bytes = small + (mib - ROOMY) * MIB;
        eventually(DONE, "a guest of another size", || async {
            let (has, total) = size(cluster, "roomy")?;
            let is_near = (bytes - 12 * MIB..=bytes + MIB).contains(&total);
            ensure!(has == cpus && is_near, "{has} CPUs, {total} bytes");
            Ok(())
        })
        .await?;
        let now = number(&limit)?;
        ensure!(now == mib * MIB + OVERHEAD, "the limit is {now}");
    }
    resize(cluster, "roomy", &json!({ "memory": "513Mi" }))?;
    await_refusal(cluster, "roomy", "vmlet.dev/max-memory").await?;
    resize(cluster, "roomy", &json!({ "memory": "320Mi" }))?;
    await_settled(cluster, "roomy", "500m", "320Mi").await?;
    let status = container(cluster, "roomy")?;
    ensure!(status["restartCount"] == 0, "{status}");
    Ok(())
}

/// A pod whose policy is to restart gets a machine of the new size, on the same disk.
async fn by_restart(cluster: &Cluster) -> Result<()> {
    cluster.await_ready("pod/regrown", READY)?;
    let (cpus, small) = size(cluster, "regrown")?;
    ensure!(cpus == 1 && small < 128 * MIB, "{cpus} CPUs, {small} bytes");
    resize(
        cluster,
        "regrown",
        &json!({ "cpu": "2", "memory": "192Mi" }),
    )?;
    await_settled(cluster, "regrown", "2", "192Mi").await?;
    cluster.await_ready("pod/regrown", READY)?;
    let status = container(cluster, "regrown")?;
    ensure!(status["restartCount"] == 1, "{status}");
    let (cpus, large) = size(cluster, "regrown")?;
    ensure!(
        cpus == 2 && large > small + 48 * MIB,
        "{cpus} CPUs, {large} bytes"
    );
    cluster.await_boots("regrown", &[2], READY).await?;
    let pid = qemu(cluster, "regrown")?;
    let limit = number(&cgroup(pid, "memory")?.join("memory.limit_in_bytes"))?;
    ensure!(limit == 192 * MIB + OVERHEAD, "the limit is {limit}");
    let quota = quota(&cgroup(pid, "cpu")?)?;
    ensure!(quota == 2010, "the quota is {quota}");
    Ok(())
}

fn resize(cluster: &Cluster, pod: &str, limits: &Value) -> Result<()> {
    let container = json!({ "name": "vm", "resources": { "limits": limits } });
    let patch = json!({ "spec": { "containers": [container] } }).to_string();
    let words = [
        "patch",
        "pod",
        pod,
        "--subresource=resize",
        "--patch",
        &patch,
    ];
    cluster.kubectl(&words).map(drop)
}

/// Waits until the limits are those in the status, and no resize is in progress.
async fn await_settled(cluster: &Cluster, pod: &str, cpu: &str, memory: &str) -> Result<()> {
    eventually(DONE, &format!("{cpu} and {memory} of {pod}"), || async {
        let status = cluster.get_json(&["pod", pod])?["status"].take();
        let container = &status["containerStatuses"][0];
        let has = &container["resources"]["limits"];
        let wanted = json!({ "cpu": cpu, "memory": memory });
        ensure!(*has == wanted && container["ready"] == true, "{container}");
        let resize = condition(&status, "PodResizeInProgress");
        ensure!(resize.is_none(), "{resize:?}");
        let pending = condition(&status, "PodResizePending");
        ensure!(pending.is_none(), "{pending:?}");
        Ok(())
    })
    .await
}

async fn await_refusal(cluster: &Cluster, pod: &str, words: &str) -> Result<()> {
    eventually(DONE, &format!("{words:?} of {pod}"), || async {
        let status = cluster.get_json(&["pod", pod])?["status"].take();
        let resize = condition(&status, "PodResizeInProgress").context("no condition")?;
        let reported = resize["message"].as_str().unwrap_or_default();
        let is_error = resize["status"] == "True" && resize["reason"] == "Error";
        ensure!(is_error && reported.contains(words), "{resize}");
        Ok(())
    })
    .await
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == kind)
}

fn container(cluster: &Cluster, pod: &str) -> Result<Value> {
    Ok(cluster.get_json(&["pod", pod])?["status"]["containerStatuses"][0].take())
}

/// Thousandths of a CPU that a cgroup may use.
fn quota(cpu: &Path) -> Result<u64> {
    let quota = number(&cpu.join("cpu.cfs_quota_us"))?;
    Ok(quota * 1000 / number(&cpu.join("cpu.cfs_period_us"))?)
}

/// Virtual CPUs and bytes of memory, as the guest counts them.
pub(crate) fn size(cluster: &Cluster, pod: &str) -> Result<(usize, u64)> {
    let guest = Guest::in_pod(cluster.stack(), pod)?;
    let cpus = guest.run(&["cat", "/proc/cpuinfo"])?;
    let cpus = cpus.lines().filter(|line| line.starts_with("processor"));
    let memory = guest.run(&["cat", "/proc/meminfo"])?;
    let total = memory.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kib: u64 = total
        .and_then(|l| l.trim().strip_suffix(" kB"))
        .context("MemTotal")?
        .parse()?;
    Ok((cpus.count(), kib * 1024))
}
