//! Machines and the failures of those who look after them: API server, controllers and agent.
//!
//! Invariant: while nobody looks after it a machine runs on; afterwards it is as its object says, by one
//! instance on one disk.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Guest, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(180);
const DOWN: Duration = Duration::from_secs(90);

#[tokio::test]
#[ignore = "needs root"]
async fn machines_outlive_those_who_look_after_them() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    leader_change(&cluster)
        .await
        .context("the leader dies in the middle of a start")?;
    api_away(&cluster).await.context("the API server is away")?;
    agent_dies(&cluster).await.context("the agent dies")?;
    cluster.await_clean().await?;
    cluster.down()
}

/// A second controller takes over while the first one's machine is being made.
async fn leader_change(cluster: &Cluster) -> Result<()> {
    let mut second = second_controller(cluster)?;
    let name = "started";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Always" })))?;
    eventually(UP, "the first controller's first step", || async {
        let tasks = cluster.kubectl(&["get", "virtualmachinetasks", "-o", "name"])?;
        ensure!(!tasks.is_empty(), "no task yet");
        Ok(())
    })
    .await?;
    cluster
        .stack()
        .kill("vmlet-controller", Signal::SIGKILL)
        .await?;
    cluster.await_word(name, "Running", UP).await?;
    boots(cluster, name, 1).await?;
    cluster.stack().restart("vmlet-controller")?;
    cluster.kubectl(&["get", "pods", "-o", "name"])?;
    kill(Pid::from_raw(i32::try_from(second.id())?), Signal::SIGTERM)?;
    let status = second.wait()?;
    ensure!(status.success(), "the second controller: {status}");
    cluster.delete(&format!("vm/{name}"), DOWN)
}

/// Guests change their state while nobody can write it down.
async fn api_away(cluster: &Cluster) -> Result<()> {
    for (name, strategy) in [
        ("ends", "RerunOnFailure"),
        ("dies", "Always"),
        ("stays", "Always"),
    ] {
        cluster.apply(&machine(name, &json!({ "runStrategy": strategy })))?;
    }
    for name in ["ends", "dies", "stays"] {
        cluster.await_word(name, "Running", UP).await?;
        agent(cluster, name).await?;
    }
    let stays = cluster.pod_uid("stays")?;
    let emulator = emulator(cluster, "dies")?;
    let guest = Guest::of(cluster.stack(), "ends")?;
    cluster
        .stack()
        .kill("kube-apiserver", Signal::SIGKILL)
        .await?;
    let away = tokio::time::Instant::now();
    guest.run(&[
        "sh",
        "-c",
        "sh -c 'sleep 0.2; busybox poweroff -f' >/dev/null 2>&1 &",
    ])?;
    kill(emulator, Signal::SIGKILL)?;
    tokio::time::sleep_until(away + Duration::from_secs(60)).await;
    cluster.stack().restart("kube-apiserver")?;
    eventually(UP, "the API server", || async {
        cluster.kubectl(&["get", "vm"]).map(drop)
    })
    .await?;
    cluster.await_word("ends", "Stopped", UP).await?;
    boots(cluster, "dies", 2).await?;
    cluster.await_word("dies", "Running", UP).await?;
    cluster.await_word("stays", "Running", UP).await?;
    ensure!(
        cluster.pod_uid("stays")? == stays,
        "a machine that ran was restarted"
    );
    for name in ["ends", "dies", "stays"] {
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    Ok(())
}

/// The disk keeps its content over agent restarts, and the agent finishes what it had begun.
async fn agent_dies(cluster: &Cluster) -> Result<()> {
    let name = "kept";
    cluster.apply(&machine(name, &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_word(name, "Running", UP).await?;
    agent(cluster, name).await?;
    Guest::of(cluster.stack(), name)?.run(&["sh", "-c", "echo kept >/boot/note && sync"])?;
    cluster.patch_vm(name, &json!({ "powerState": "Suspended" }))?;
    cluster.stack().kill("vmlet-agent", Signal::SIGKILL).await?;
    cluster.stack().restart("vmlet-agent")?;
    cluster.await_word(name, "Suspended", DOWN).await?;
    cluster.stack().kill("vmlet-agent", Signal::SIGKILL).await?;
    cluster.stack().restart("vmlet-agent")?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    agent(cluster, name).await?;
    let note = Guest::of(cluster.stack(), name)?.run(&["cat", "/boot/note"])?;
    ensure!(note == "kept", "the disk says {note:?}");
    cluster.delete(&format!("vm/{name}"), DOWN)
}

/// Another process like the cluster's own controller: the same command line and environment.
fn second_controller(cluster: &Cluster) -> Result<Child> {
    let pid = cluster.stack().pid("vmlet-controller")?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    let words: Vec<String> = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let (program, arguments) = words
        .split_first()
        .context("the controller's command line")?;
    let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
    let mut command = cluster.stack().command_inside(program)?;
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for pair in environment.split(|byte| *byte == 0) {
        if let Some((name, value)) = String::from_utf8_lossy(pair).split_once('=') {
            command.env(name, value);
        }
    }
    // Its own ports and its own name as a candidate.
    command.env("VMLET_CONTROLLER_LISTEN", "127.0.0.1:0");
    command.env("VMLET_CONTROLLER_IDENTITY", "second");
    command.spawn().context("start a second controller")
}

async fn boots(cluster: &Cluster, name: &str, count: u64) -> Result<()> {
    eventually(UP, &format!("boot {count} of {name}"), || async {
        let log = cluster.kubectl(&["logs", name])?;
        let line = format!("VMLET-BOOTS {count}");
        ensure!(
            log.lines().any(|found| found.trim_end().ends_with(&line)),
            "{log}"
        );
        Ok(())
    })
    .await
}

async fn agent(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(UP, &format!("the agent in {name}"), || async {
        Guest::of(cluster.stack(), name)?.run(&["true"]).map(drop)
    })
    .await
}

fn emulator(cluster: &Cluster, name: &str) -> Result<Pid> {
    let container = Guest::of(cluster.stack(), name)?.container().to_owned();
    let text = cluster.stack().crictl(&["inspect", &container])?;
    let inspected: Value = serde_json::from_str(&text)?;
    let pid = inspected["info"]["pid"].as_i64().context("pid")?;
    Ok(Pid::from_raw(i32::try_from(pid)?))
}
