//! Probes, hooks, restarts and their policies, as kubelet applies them to virtual machines.
//!
//! Invariant: what a probe sees is inside the guest; a restart boots the same root disk.
//! Failure: the step is named, with what kubectl describes; pods, events and logs follow.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use e2e::{Cluster, Guest, eventually, vm_pod};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::hooks;

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// Seconds for a command in a guest that is paused periodically: a probe that is late is a probe
/// that failed.
const PATIENT: u32 = 20;
/// Longer than a guest that behaves needs to go down on the slowest machine.
const GRACE: u64 = 120;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn probes_hooks_restarts_and_grace_periods_are_those_of_containers() -> Result<()> {
    let cluster = Arc::new(Cluster::up()?);
    // Side by side, since each mostly waits.
    let shared = Arc::clone(&cluster);
    let restarts = tokio::spawn(async move {
        restart_policies_and_crash_loops_are_those_of_containers(&shared).await
    });
    let shared = Arc::clone(&cluster);
    let hooks = tokio::spawn(async move { hooks::hooks_run_in_the_guest(&shared).await });
    let probes = probes_look_into_the_guest_and_a_sick_one_boots_the_same_disk_again(&cluster);
    let probes = probes.await;
    let hooks = hooks.await?.context("hooks");
    restarts.await?.and(probes).and(hooks)?;
    let cluster = Arc::into_inner(cluster).context("the cluster is still in use")?;
    cluster.await_clean().await?;
    cluster.down()
}

async fn probes_look_into_the_guest_and_a_sick_one_boots_the_same_disk_again(
    cluster: &Cluster,
) -> Result<()> {
    readiness_by_exec(cluster)
        .await
        .context("readiness by exec")?;
    liveness(cluster).await.context("liveness")?;
    slow_probe(cluster)
        .await
        .context("a probe that takes too long")
}

async fn restart_policies_and_crash_loops_are_those_of_containers(cluster: &Cluster) -> Result<()> {
    never(cluster).await.context("Never")?;
    on_failure(cluster).await.context("OnFailure")?;
    always_and_crash_loop(cluster).await.context("Always")?;
    grace(cluster).await.context("grace period")
}

/// TCP shows that the guest is up; the file inside it shows whether it is ready.
async fn readiness_by_exec(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("ready");
    let container = &mut pod["spec"]["containers"][0];
    container["startupProbe"] = startup_probe();
    container["readinessProbe"] = exec_probe(&["test", "-e", "/tmp/ready"], PATIENT);
    cluster.apply(&pod)?;
    cluster.await_condition(
        "pod/ready",
        "jsonpath={.status.containerStatuses[0].started}=true",
        READY,
    )?;
    cluster
        .await_event("ready", "Unhealthy", "Readiness probe failed", READY)
        .await?;
    let guest = Guest::in_pod(cluster.stack(), "ready")?;
    guest.run(&["touch", "/tmp/ready"])?;
    cluster.await_ready("pod/ready", READY)?;
    guest.run(&["rm", "/tmp/ready"])?;
    cluster.await_condition("pod/ready", "condition=Ready=false", READY)?;
    cluster.delete("pod/ready", GONE)
}

async fn liveness(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("alive");
    pod["spec"]["containers"][0]["livenessProbe"] =
        exec_probe(&["test", "!", "-e", "/tmp/sick"], PATIENT);
    pod["spec"]["containers"][0]["startupProbe"] = startup_probe();
    // On a slow machine its failures would use up the events.
    if let Some(container) = pod["spec"]["containers"][0].as_object_mut() {
        container.remove("readinessProbe");
    }
    cluster.apply(&pod)?;
    cluster.await_ready("pod/alive", READY)?;
    let first = container_id(cluster, "alive")?;
    let address = cluster.pod_ip("alive")?;
    fall_sick(cluster, "alive").await?;
    await_restarts(cluster, "alive", 1).await?;
    cluster
        .await_event("alive", "Killing", "failed liveness probe", READY)
        .await?;
    cluster.await_ready("pod/alive", READY)?;
    ensure!(
        container_id(cluster, "alive")? != first,
        "the container is the same"
    );
    ensure!(
        cluster.pod_ip("alive")? == address,
        "the address has changed"
    );
    // For a moment the pod may have the condition of the container before: the log is waited for.
    let boots = cluster.await_boots("alive", &[2], READY).await;
    boots.context("the second boot of the same disk")?;
    cluster.delete("pod/alive", GONE)
}

/// The process of a probe that runs too long is killed in the guest.
async fn slow_probe(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("slow");
    let mut probe = exec_probe(&["sleep", "4711"], 1);
    // Time to look between the end of one and the start of the next.
    probe["periodSeconds"] = json!(15);
    pod["spec"]["containers"][0]["readinessProbe"] = probe;
    cluster.apply(&pod)?;
    cluster
        .await_event("slow", "Unhealthy", "timed out", READY)
        .await?;
    let guest = Guest::in_pod(cluster.stack(), "slow")?;
    eventually(READY, "an instant without the probe's process", || async {
        let processes = guest.run(&["ps"])?;
        let count = processes
            .lines()
            .filter(|line| line.contains("sleep 4711"))
            .count();
        ensure!(count == 0, "{count} are left:\n{processes}");
        Ok(())
    })
    .await?;
    cluster.delete("pod/slow", GONE)
}

async fn never(cluster: &Cluster) -> Result<()> {
    start(cluster, "never", "Never")?;
    kill(
        Guest::in_pod(cluster.stack(), "never")?.emulator()?,
        Signal::SIGKILL,
    )?;
    cluster.await_condition("pod/never", "jsonpath={.status.phase}=Failed", READY)?;
    let ended = state(cluster, "never")?["terminated"].take();
    ensure!(ended["exitCode"] == 137, "{ended}");
    cluster.delete("pod/never", GONE)
}

async fn on_failure(cluster: &Cluster) -> Result<()> {
    start(cluster, "failing", "OnFailure")?;
    kill(
        Guest::in_pod(cluster.stack(), "failing")?.emulator()?,
        Signal::SIGKILL,
    )?;
    await_restarts(cluster, "failing", 1).await?;
    cluster.await_ready("pod/failing", READY)?;
    Guest::in_pod(cluster.stack(), "failing")?.power_off()?;
    cluster.await_condition("pod/failing", "jsonpath={.status.phase}=Succeeded", READY)?;
    let ended = state(cluster, "failing")?["terminated"].take();
    ensure!(
        ended["exitCode"] == 0 && ended["reason"] == "Completed",
        "{ended}"
    );
    cluster.delete("pod/failing", GONE)
}

async fn always_and_crash_loop(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("looping");
    // As in `startup_probe`: that it is up is seen by commands that it takes.
    if let Some(container) = pod["spec"]["containers"][0].as_object_mut() {
        container.remove("readinessProbe");
    }
    cluster.apply(&pod)?;
    cluster.await_commands("looping", READY).await?;
    Guest::in_pod(cluster.stack(), "looping")?.power_off()?;
    await_restarts(cluster, "looping", 1).await?;
    cluster.await_commands("looping", READY).await?;
    // Lasts ten seconds: it must not begin and end before anything looks.
    thread::scope(|scope| {
        let crash_loop =
            "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff";
        let seen = scope.spawn(|| cluster.await_condition("pod/looping", crash_loop, READY));
        Guest::in_pod(cluster.stack(), "looping")?.power_off()?;
        seen.join()
            .map_err(|_| anyhow!("the thread that waits panicked"))?
    })?;
    let words = "Back-off restarting failed container";
    cluster
        .await_event("looping", "BackOff", words, READY)
        .await?;
    await_restarts(cluster, "looping", 2).await?;
    cluster.await_boots("looping", &[3], READY).await?;
    cluster.delete("pod/looping", GONE)
}

/// A guest that goes down when asked is not waited for longer; one that does not is killed in time.
async fn grace(cluster: &Cluster) -> Result<()> {
    start(cluster, "good", "Always")?;
    let since = Instant::now();
    cluster.delete("pod/good", GONE)?;
    let took = since.elapsed().as_secs();
    ensure!(took < GRACE, "a guest that goes down took {took} s");

    start(cluster, "deaf", "Always")?;
    let guest = Guest::in_pod(cluster.stack(), "deaf")?;
    // Neither the agent nor the power button can bring this one down.
    guest.run(&[
        "sh",
        "-c",
        "mount --bind /bin/true /sbin/shutdown; kill -STOP $(pidof acpid)",
    ])?;
    let since = Instant::now();
    cluster.kubectl(&[
        "delete",
        "pod",
        "deaf",
        "--grace-period=8",
        "--timeout=180s",
    ])?;
    let took = since.elapsed().as_secs();
    ensure!(
        (8..GRACE).contains(&took),
        "a deaf guest took {took} s of a grace period of 8 s"
    );
    Ok(())
}

fn start(cluster: &Cluster, name: &str, policy: &str) -> Result<()> {
    let mut pod = vm_pod(name);
    pod["spec"]["restartPolicy"] = json!(policy);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(GRACE);
    cluster.apply(&pod)?;
    cluster.await_ready(&format!("pod/{name}"), READY)
}

/// Each look that fails is an event, and kubelet gives a pod 25 of them, then one in five minutes:
/// a guest that boots slowly must not use up those that are awaited.
pub(super) fn startup_probe() -> Value {
    json!({ "tcpSocket": { "port": 80 }, "periodSeconds": 5, "failureThreshold": 600 })
}

fn exec_probe(command: &[&str], timeout: u32) -> Value {
    json!({
        "exec": { "command": command },
        "periodSeconds": 1,
        "timeoutSeconds": timeout,
        "failureThreshold": 2,
    })
}

/// From now on the liveness probe of a pod's guest fails. kubelet may end the guest before it has
/// answered on a busy machine: then what comes of it counts.
pub(super) async fn fall_sick(cluster: &Cluster, pod: &str) -> Result<()> {
    let guest = Guest::in_pod(cluster.stack(), pod)?;
    let before = restarts(cluster, pod)?;
    eventually(READY, &format!("{pod} is sick"), || async {
        let touched = guest.run(&["touch", "/tmp/sick"]);
        match touched {
            Err(error) if restarts(cluster, pod)? == before => Err(error),
            _ => Ok(()),
        }
    })
    .await
}

/// How often the machine of a pod was restarted.
pub(super) fn restarts(cluster: &Cluster, pod: &str) -> Result<u64> {
    let status = cluster.get_json(&["pod", pod])?["status"].take();
    let restarts = status["containerStatuses"][0]["restartCount"].as_u64();
    restarts.with_context(|| format!("{pod} has no restarts: {status}"))
}

async fn await_restarts(cluster: &Cluster, pod: &str, count: u64) -> Result<()> {
    eventually(READY, &format!("restart {count} of {pod}"), || async {
        let restarts = restarts(cluster, pod)?;
        ensure!(restarts >= count, "{restarts} restarts");
        Ok(())
    })
    .await
}

fn container_id(cluster: &Cluster, pod: &str) -> Result<String> {
    let path = "jsonpath={.status.containerStatuses[0].containerID}";
    cluster.kubectl(&["get", "pod", pod, "-o", path])
}

fn state(cluster: &Cluster, pod: &str) -> Result<Value> {
    Ok(cluster.get_json(&["pod", pod])?["status"]["containerStatuses"][0]["state"].take())
}
