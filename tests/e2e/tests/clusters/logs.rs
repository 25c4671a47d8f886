//! What people see of a machine: logs in every form, states, figures, and sentences where something
//! is missing.
//!
//! Invariant: the guest's counter shows whether a log is whole and in order.
//! Failure: the step is named, with what kubectl printed; pods, events and logs follow.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{Cluster, Guest, Tick, always, eventually, in_time, program, ticks, vm_pod};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// A log of so many bytes is not rotated within the next half minute.
const NEARLY_FULL: u64 = 60 * 1024;

pub(super) async fn people_see_of_a_machine_what_they_see_of_a_container(
    cluster: &Cluster,
) -> Result<()> {
    cluster.apply(&vm_pod("writer"))?;
    cluster.await_ready("pod/writer", READY)?;
    tail_and_since(cluster)
        .await
        .context("--tail and --since")?;
    follow(cluster).await.context("-f")?;
    rotation(cluster).await.context("rotation")?;
    figures(cluster).await.context("figures")?;
    top(cluster).await.context("top")?;
    previous(cluster).await.context("--previous")?;
    debug(cluster).await.context("kubectl debug")?;
    cluster.delete("pod/writer", GONE)
}

async fn tail_and_since(cluster: &Cluster) -> Result<()> {
    eventually(READY, "eight ticks", || async {
        let seen = ticks(&cluster.kubectl(&["logs", "writer"])?).len();
        ensure!(seen >= 8, "{seen} ticks");
        Ok(())
    })
    .await?;
    let tail = cluster.kubectl(&["logs", "writer", "--tail=3"])?;
    ensure!(tail.lines().count() == 3, "{tail}");
    let shown = vmletctl(cluster, &["logs", "writer", "--tail=3"])?;
    ensure!(ticks(&shown).len() == 3, "{shown}");
    // What is followed may have grown, but its beginning is the same.
    let all = ticks(&vmletctl(cluster, &["logs", "writer"])?);
    let before = ticks(&cluster.kubectl(&["logs", "writer"])?);
    ensure!(
        !all.is_empty() && before.starts_with(&all),
        "{all:?}\n{before:?}"
    );
    // A guest that was paused for a moment has printed nothing in the last seconds.
    eventually(READY, "the last seconds alone", || async {
        let all = ticks(&cluster.kubectl(&["logs", "writer"])?);
        let since = ticks(&cluster.kubectl(&["logs", "writer", "--since=3s"])?);
        ensure!(
            !since.is_empty() && since.len() < all.len(),
            "{} of {}",
            since.len(),
            all.len()
        );
        Ok(())
    })
    .await
}

/// What vmletctl prints, which asks the API server as kubectl does.
fn vmletctl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let stack = cluster.stack();
    let mut command = Command::new("vmletctl");
    command
        .env("PATH", stack.var("PATH")?)
        .env("KUBECONFIG", stack.var("KUBECONFIG")?)
        .args(arguments);
    let output = program::output(&mut command)?;
    ensure!(
        output.status.success(),
        "vmletctl {arguments:?}: {output:?}"
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// New lines come as the guest prints them.
async fn follow(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl_command(&["logs", "writer", "-f", "--tail=1"])?;
    let mut child = tokio::process::Command::from(kubectl)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    // Other lines may come between those of the guest's counter.
    let four = async {
        let mut text = String::new();
        while ticks(&text).len() < 4 {
            let line = lines.next_line().await?;
            text += &line.with_context(|| format!("kubectl ended after {text}"))?;
            text += "\n";
        }
        Ok(ticks(&text))
    };
    let seen = in_time(READY, "four ticks that are followed", four).await?;
    child.kill().await?;
    in_order(&seen)
}

/// The guest writes more than a log file may hold; what is left is whole.
async fn rotation(cluster: &Cluster) -> Result<()> {
    let guest = Guest::in_pod(cluster.stack(), "writer")?;
    let flood = "i=0; while [ $i -lt 1500 ]; do \
                 echo \"flood $i 0123456789012345678901234567890123456789012345678901234567890123\"; \
                 i=$((i+1)); done >/dev/console";
    guest.run(&["sh", "-c", flood])?;
    let folder = cluster.stack().dir().join("logs");
    eventually(READY, "a rotated log", || async {
        let names = files(cluster)?;
        ensure!(
            names.iter().any(|name| name.starts_with("0.log.")),
            "{names:?} in {folder:?}"
        );
        Ok(())
    })
    .await?;
    let before = ticks(&cluster.kubectl(&["logs", "writer"])?).pop();
    eventually(READY, "ticks after the rotation", || async {
        let seen = ticks(&cluster.kubectl(&["logs", "writer"])?);
        let last = seen.last().context("none yet")?;
        ensure!(
            before.is_none_or(|before| last.count > before.count),
            "{last:?}"
        );
        in_order(&seen)
    })
    .await
}

/// The names of the machine's log files, as kubelet keeps them.
fn files(cluster: &Cluster) -> Result<Vec<String>> {
    let log = log_file(cluster)?;
    let folder = log.parent().context("folder")?;
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// The log that grows.
fn log_file(cluster: &Cluster) -> Result<PathBuf> {
    let guest = Guest::in_pod(cluster.stack(), "writer")?;
    let status: Value =
        serde_json::from_str(&cluster.stack().crictl(&["inspect", guest.container()])?)?;
    let path = status["status"]["logPath"].as_str().context("logPath")?;
    // kubelet's folders are in the cluster's own mount namespace.
    let pid = cluster.stack().pid("kubelet")?;
    Ok(PathBuf::from(format!("/proc/{pid}/root{path}")))
}

/// kubelet's summary: what `kubectl top` and the scheduler's helpers read.
async fn figures(cluster: &Cluster) -> Result<()> {
    let path = "/api/v1/nodes/node1/proxy/stats/summary";
    eventually(READY, "figures of the machine", || async {
        let summary: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", path])?)?;
        let pods = summary["pods"].as_array().context("pods")?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "writer");
        let pod = pod.context("the machine is not in the summary")?;
        for (what, of) in [("pod", pod), ("container", &pod["containers"][0])] {
            let cpu = of["cpu"]["usageCoreNanoSeconds"].as_u64();
            ensure!(
                cpu > Some(100_000_000),
                "CPU time of the {what}: {}",
                of["cpu"]
            );
            let memory = of["memory"]["workingSetBytes"].as_u64();
            ensure!(
                memory > Some(16 << 20),
                "memory of the {what}: {}",
                of["memory"]
            );
        }
        Ok(())
    })
    .await
}

/// What metrics-server reads for `kubectl top`; it passes over a container without a start time.
async fn top(cluster: &Cluster) -> Result<()> {
    let path = "/api/v1/nodes/node1/proxy/metrics/resource";
    eventually(READY, "figures for metrics-server", || async {
        let text = cluster.kubectl(&["get", "--raw", path])?;
        let value = |name: &str, whose: &str| {
            let is = |line: &&str| line.starts_with(name) && line.contains(whose);
            let line = text.lines().find(is).unwrap_or_default();
            // Some have the time of the measurement behind the value.
            let value = line.rsplit_once("} ").map_or(line, |(_, rest)| rest);
            let value = value.trim_start_matches(name).split_whitespace().next();
            value.and_then(|value| value.parse::<f64>().ok())
        };
        for (name, whose, least) in [
            ("node_cpu_usage_seconds_total", "", 1.0),
            ("node_memory_working_set_bytes", "", 1e8),
            ("pod_cpu_usage_seconds_total", "pod=\"writer\"", 0.1),
            ("pod_memory_working_set_bytes", "pod=\"writer\"", 16e6),
            ("container_cpu_usage_seconds_total", "pod=\"writer\"", 0.1),
            ("container_memory_working_set_bytes", "pod=\"writer\"", 16e6),
            ("container_start_time_seconds", "pod=\"writer\"", 1e9),
        ] {
            let found = value(name, whose);
            ensure!(found > Some(least), "{name} of {whose:?}: {found:?}");
        }
        Ok(())
    })
    .await
}

/// A second container is refused before its image is looked for.
async fn debug(cluster: &Cluster) -> Result<()> {
    let image = "--image=nowhere.example/tool";
    cluster.kubectl(&["debug", "pod/writer", image, "--attach=false"])?;
    eventually(READY, "the refusal", || async {
        let pod = cluster.get_json(&["pod", "writer"])?;
        let state = &pod["status"]["ephemeralContainerStatuses"][0]["state"];
        let text = state["waiting"]["message"].as_str().unwrap_or_default();
        ensure!(text.contains("no place for another container"), "{state}");
        Ok(())
    })
    .await
}

async fn previous(cluster: &Cluster) -> Result<()> {
    // Of the last run kubelet shows the last file: the guest must not end right after a rotation.
    eventually(READY, "a log that is not about to be rotated", || async {
        let size = fs::metadata(log_file(cluster)?)?.len();
        let seen = ticks(&cluster.kubectl(&["logs", "writer"])?).len();
        ensure!(size < NEARLY_FULL && seen > 0, "{size} bytes, {seen} ticks");
        Ok(())
    })
    .await?;
    Guest::in_pod(cluster.stack(), "writer")?.power_off()?;
    eventually(READY, "the restart", || async {
        let log = cluster.kubectl(&["logs", "writer"])?;
        ensure!(log.contains("VMLET-BOOTS 2"), "{log}");
        Ok(())
    })
    .await?;
    let log = cluster.kubectl(&["logs", "writer", "--previous"])?;
    ensure!(
        !log.contains("VMLET-BOOTS 2") && !ticks(&log).is_empty(),
        "{log}"
    );
    // kubelet writes to the API server after it knows itself.
    eventually(READY, "the status and the events", || async {
        let pod = cluster.get_json(&["pod", "writer"])?;
        let status = &pod["status"]["containerStatuses"][0];
        let last = &status["lastState"]["terminated"];
        let restarts = status["restartCount"].as_u64();
        always(restarts <= Some(1), || format!("restarted again: {status}"))?;
        ensure!(restarts == Some(1), "{status}");
        ensure!(
            last["exitCode"] == 0 && last["reason"] == "Completed",
            "{last}"
        );
        let words = cluster.kubectl(&["describe", "pod", "writer"])?;
        for event in ["Scheduled", "Pulled", "Created", "Started"] {
            ensure!(words.contains(event), "no event {event}:\n{words}");
        }
        Ok(())
    })
    .await
}

fn in_order(seen: &[Tick]) -> Result<()> {
    let gap = seen
        .windows(2)
        .find(|pair| pair[1].count != pair[0].count + 1);
    match gap {
        None => Ok(()),
        Some(pair) => bail!("after {:?} comes {:?}", pair[0], pair[1]),
    }
}
