//! Machines live as their wishes say: each run strategy and power state, with guests that power off, crash
//! or are deleted, and with a node that is drained.
//!
//! Invariant: the disk counts every boot, so that a machine made anew would show; the pod's UID tells one
//! instance from the next.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, machine};
use e2e::{Cluster, Guest, eventually, ticks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(180);
const DOWN: Duration = Duration::from_secs(90);

#[tokio::test]
#[ignore = "needs root"]
async fn every_run_strategy_keeps_its_word() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    always(&cluster).await.context("Always")?;
    rerun_on_failure(&cluster).await.context("RerunOnFailure")?;
    manual(&cluster).await.context("Manual")?;
    once(&cluster).await.context("Once")?;
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn power_states_classes_and_drains_keep_the_disk() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    power(&cluster).await.context("power states")?;
    resize(&cluster).await.context("another class")?;
    drain(&cluster).await.context("drain")?;
    cluster.await_clean().await?;
    cluster.down()
}

/// A guest that powers itself off, and an emulator that dies, are both answered by a new instance.
async fn always(cluster: &Cluster) -> Result<()> {
    let name = "always";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Always" })))?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    await_boots(cluster, name, 1).await?;
    power_off_inside(cluster, name)?;
    let second = await_other_instance(cluster, name, &first).await?;
    await_boots(cluster, name, 2).await?;
    kill_emulator(cluster, name)?;
    await_other_instance(cluster, name, &second).await?;
    await_boots(cluster, name, 3).await?;
    delete(cluster, name).await
}

/// Powered off by its guest it stays down; killed, or deleted by somebody else, it comes back.
async fn rerun_on_failure(cluster: &Cluster) -> Result<()> {
    let name = "rerun";
    cluster.apply(&machine(name, &json!({ "runStrategy": "RerunOnFailure" })))?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    await_boots(cluster, name, 1).await?;
    kill_emulator(cluster, name)?;
    let second = await_other_instance(cluster, name, &first).await?;
    cluster.kubectl(&["delete", "pod", name, "--wait=false"])?;
    await_other_instance(cluster, name, &second).await?;
    await_agent(cluster, name).await?;
    power_off_inside(cluster, name)?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    // It would come back at once if it came back at all: a request for it is what starts it.
    vmletctl(cluster, &["start", name])?;
    cluster.await_word(name, "Running", UP).await?;
    delete(cluster, name).await
}

/// Nothing happens by itself.
async fn manual(cluster: &Cluster) -> Result<()> {
    let name = "manual";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Manual" })))?;
    cluster.await_word(name, "Stopped", UP).await?;
    vmletctl(cluster, &["start", name])?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    await_agent(cluster, name).await?;
    vmletctl(cluster, &["restart", name])?;
    let second = await_other_instance(cluster, name, &first).await?;
    ensure!(first != second, "a restart is another instance");
    await_agent(cluster, name).await?;
    power_off_inside(cluster, name)?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    vmletctl(cluster, &["start", name])?;
    cluster.await_word(name, "Running", UP).await?;
    vmletctl(cluster, &["stop", name])?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    delete(cluster, name).await
}

/// One run, whatever becomes of its pod.
async fn once(cluster: &Cluster) -> Result<()> {
    let name = "once";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Once" })))?;
    cluster.await_word(name, "Running", UP).await?;
    await_agent(cluster, name).await?;
    power_off_inside(cluster, name)?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    let refused = vmletctl(cluster, &["start", name]);
    ensure!(refused.is_err(), "a second run was not refused");
    delete(cluster, name).await
}

/// Off and on again; asleep and awake again.
async fn power(cluster: &Cluster) -> Result<()> {
    let name = "power";
    cluster.apply(&machine(name, &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_word(name, "Running", UP).await?;
    cluster
        .await_vm(name, "an address", UP, |vm| {
            let address = &vm["status"]["network"]["primaryIP4"];
            ensure!(address.is_string(), "{address}");
            Ok(())
        })
        .await?;
    await_boots(cluster, name, 1).await?;
    await_agent(cluster, name).await?;
    Guest::of(cluster.stack(), name)?.run(&["sh", "-c", "echo kept >/boot/note && sync"])?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    await_boots(cluster, name, 2).await?;
    await_agent(cluster, name).await?;
    let note = Guest::of(cluster.stack(), name)?.run(&["cat", "/boot/note"])?;
    ensure!(note == "kept", "the disk says {note:?}");

    Guest::of(cluster.stack(), name)?.run(&["sh", "-c", "echo 7 >/run/memory"])?;
    let before = last_tick(cluster, name).await?;
    cluster.patch_vm(name, &json!({ "powerState": "Suspended" }))?;
    cluster.await_word(name, "Suspended", DOWN).await?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    let after = eventually(UP, "a tick after the sleep", || async {
        let log = cluster.kubectl(&["logs", name])?;
        ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
        ticks(&log).pop().context("no tick")
    })
    .await?;
    ensure!(after.count > before.count, "{before:?}, then {after:?}");
    await_agent(cluster, name).await?;
    let memory = Guest::of(cluster.stack(), name)?.run(&["cat", "/run/memory"])?;
    ensure!(memory == "7", "its memory says {memory:?}");
    delete(cluster, name).await
}

/// While it runs another class waits; it comes with the next start.
async fn resize(cluster: &Cluster) -> Result<()> {
    let name = "resize";
    cluster.apply(&class("big", "160Mi"))?;
    cluster.apply(&machine(name, &json!({ "running": true })))?;
    cluster.await_word(name, "Running", UP).await?;
    let uid = cluster.pod_uid(name)?;
    let memory = memory_inside(cluster, name).await?;
    cluster.patch_vm(name, &json!({ "className": "big" }))?;
    cluster
        .await_vm(name, "the change waits", DOWN, |vm| {
            let reason = condition(vm, "VirtualMachineClassConfigurationSynced")?["reason"].clone();
            ensure!(reason == "ClassNameChanged", "{reason}");
            Ok(())
        })
        .await?;
    ensure!(cluster.pod_uid(name)? == uid, "it was restarted");
    cluster.patch_vm(name, &json!({ "running": false }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.patch_vm(name, &json!({ "running": true }))?;
    cluster.await_word(name, "Running", UP).await?;
    await_boots(cluster, name, 2).await?;
    let larger = memory_inside(cluster, name).await?;
    ensure!(larger > memory, "{memory} kB, then {larger} kB");
    delete(cluster, name).await
}

/// An evicted machine comes back as soon as its node takes pods again.
async fn drain(cluster: &Cluster) -> Result<()> {
    let name = "drained";
    cluster.apply(&machine(name, &json!({ "runStrategy": "RerunOnFailure" })))?;
    cluster.await_word(name, "Running", UP).await?;
    let first = cluster.pod_uid(name)?;
    await_boots(cluster, name, 1).await?;
    cluster.kubectl(&[
        "drain",
        "node1",
        "--pod-selector",
        &format!("app={name}"),
        "--force",
        "--timeout=90s",
    ])?;
    cluster.await_word(name, "ErrorUnschedulable", DOWN).await?;
    cluster.kubectl(&["uncordon", "node1"])?;
    await_other_instance(cluster, name, &first).await?;
    await_boots(cluster, name, 2).await?;
    delete(cluster, name).await
}

async fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.delete(&format!("vm/{name}"), DOWN)?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    let disks = cluster.stack().dir().join("state/disks");
    let left: Vec<_> = std::fs::read_dir(&disks)
        .with_context(|| disks.display().to_string())?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    ensure!(left.is_empty(), "disks that nobody owns: {left:?}");
    Ok(())
}

/// Waits until a pod with another UID is the running machine.
async fn await_other_instance(cluster: &Cluster, name: &str, old: &str) -> Result<String> {
    let uid = cluster
        .await_vm(name, "another instance", UP, |vm| {
            let uid = vm["status"]["instance"]["uid"].as_str().unwrap_or_default();
            ensure!(!uid.is_empty() && uid != old, "still {uid:?}");
            ensure!(vm["status"]["printableStatus"] == "Running", "not running");
            Ok(uid.to_owned())
        })
        .await?;
    Ok(uid)
}

/// Waits until the disk has counted so many boots, and no more.
async fn await_boots(cluster: &Cluster, name: &str, boots: u64) -> Result<()> {
    eventually(UP, &format!("boot {boots} of {name}"), || async {
        let log = cluster.kubectl(&["logs", name])?;
        let counted: Vec<&str> = log
            .lines()
            .filter_map(|line| line.split_once("VMLET-BOOTS "))
            .map(|(_, count)| count.trim())
            .collect();
        ensure!(counted == [boots.to_string()], "counted {counted:?}");
        Ok(())
    })
    .await
}

/// Waits until commands run in the guest.
async fn await_agent(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(UP, &format!("the agent in {name}"), || async {
        Guest::of(cluster.stack(), name)?.run(&["true"]).map(drop)
    })
    .await
}

async fn last_tick(cluster: &Cluster, name: &str) -> Result<e2e::Tick> {
    eventually(UP, "a tick", || async {
        let log = cluster.kubectl(&["logs", name])?;
        ticks(&log).pop().context("no tick")
    })
    .await
}

async fn memory_inside(cluster: &Cluster, name: &str) -> Result<u64> {
    await_agent(cluster, name).await?;
    let line = Guest::of(cluster.stack(), name)?.run(&["grep", "MemTotal", "/proc/meminfo"])?;
    let number = line.split_whitespace().nth(1).context("MemTotal")?;
    Ok(number.parse()?)
}

fn power_off_inside(cluster: &Cluster, name: &str) -> Result<()> {
    let script = "sh -c 'sleep 0.2; busybox poweroff -f' >/dev/null 2>&1 &";
    Guest::of(cluster.stack(), name)?
        .run(&["sh", "-c", script])
        .map(drop)
}

/// The emulator's process dies, as by an accident.
fn kill_emulator(cluster: &Cluster, name: &str) -> Result<()> {
    let container = Guest::of(cluster.stack(), name)?.container().to_owned();
    let text = cluster.stack().crictl(&["inspect", &container])?;
    let inspected: Value = serde_json::from_str(&text)?;
    let pid = inspected["info"]["pid"].as_i64().context("pid")?;
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?)
}

fn vmletctl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let output = cluster
        .stack()
        .command("vmletctl")
        .args(arguments)
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    ensure!(
        output.status.success(),
        "vmletctl {arguments:?}: {}",
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

fn condition<'a>(vm: &'a Value, kind: &str) -> Result<&'a Value> {
    vm["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["type"] == kind))
        .with_context(|| format!("no condition {kind}"))
}
