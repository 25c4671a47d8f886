//! Tasks that are created by hand, run by the real agent and the real daemon on real guests.
//!
//! Invariant: the controller is stopped, so that nobody but this test creates tasks and pods.
//! Failure: the task or pod that did not become what is awaited is shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::guest_facts::{GuestFacts, Power};
use crds::node_facts::NodeFacts;
use e2e::{Cluster, eventually, vm_pod};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// Guests boot under software emulation.
const BOOT: Duration = Duration::from_secs(180);

fn vm_uid(number: u8) -> String {
    format!("0f0f0f0f-0000-4000-8000-0000000000{number:02x}")
}

/// A cluster whose controller does not interfere.
async fn quiet_cluster() -> Result<Cluster> {
    let cluster = Cluster::up()?;
    cluster
        .stack()
        .kill("vmlet-controller", Signal::SIGKILL)
        .await?;
    Ok(cluster)
}

fn create(cluster: &Cluster, name: &str, vm: &str, kind: &str) -> Result<()> {
    let mut spec = json!({ "nodeName": "node1", "vmName": "vm", "vmUID": vm, "kind": kind });
    if kind == "Provision" {
        spec["image"] = json!(cluster.stack().image()?);
        spec["linked"] = json!(true);
    }
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
        "metadata": { "name": name }, "spec": spec,
    }))
}

async fn await_success(cluster: &Cluster, name: &str, within: Duration) -> Result<Value> {
    eventually(within, &format!("success of {name}"), || async {
        let task = cluster.get_json(&["virtualmachinetask", name])?;
        let status = &task["status"];
        ensure!(status["state"] == "Success", "{status}");
        ensure!(status["completionTime"].is_string(), "{status}");
        Ok(task)
    })
    .await
}

/// Creates a task and waits for its success.
async fn run(cluster: &Cluster, name: &str, vm: &str, kind: &str) -> Result<()> {
    create(cluster, name, vm, kind)?;
    await_success(cluster, name, BOOT).await.map(drop)
}

/// A pod that runs on the disk of a machine.
fn pod_on(name: &str, vm: &str, more: Value) -> Value {
    let mut pod = vm_pod(name);
    pod["spec"]["restartPolicy"] = json!("Never");
    let mut annotations = json!({ "vmlet.dev/vm-disk": vm });
    if let (Some(all), Value::Object(more)) = (annotations.as_object_mut(), more) {
        all.extend(more);
    }
    pod["metadata"]["annotations"] = annotations;
    pod
}

async fn await_facts(cluster: &Cluster, pod: &str, power: Power) -> Result<GuestFacts> {
    eventually(BOOT, &format!("{pod} is {power:?}"), || async {
        let pod = cluster.get_json(&["pod", pod])?;
        let text = pod["metadata"]["annotations"]["vmlet.dev/guest-facts"].as_str();
        let facts = GuestFacts::from_json(text.context("no facts yet")?)?;
        ensure!(facts.power == power, "{facts:?}");
        Ok(facts)
    })
    .await
}

async fn await_phase(cluster: &Cluster, pod: &str, phase: &str) -> Result<Value> {
    eventually(BOOT, &format!("{pod} {phase}"), || async {
        let pod = cluster.get_json(&["pod", pod])?;
        ensure!(pod["status"]["phase"] == phase, "{}", pod["status"]);
        Ok(pod)
    })
    .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_is_provisioned_rebooted_saved_resumed_shut_down_and_removed_by_tasks()
-> Result<()> {
    let cluster = quiet_cluster().await?;
    let vm = vm_uid(1);
    run(&cluster, "make", &vm, "Provision").await?;
    cluster.apply(&pod_on("vm", &vm, json!({})))?;
    cluster.await_ready("pod/vm", BOOT)?;
    let facts = await_facts(&cluster, "vm", Power::On).await?;
    ensure!(facts.domain_uuid == vm, "{facts:?}");

    run(&cluster, "pause", &vm, "Pause").await?;
    let facts = await_facts(&cluster, "vm", Power::Paused).await?;
    ensure!(facts.pause_reason == "PausedByUser", "{facts:?}");
    run(&cluster, "unpause", &vm, "Unpause").await?;
    await_facts(&cluster, "vm", Power::On).await?;

    run(&cluster, "reboot", &vm, "GuestReboot").await?;
    eventually(BOOT, "the second boot", || async {
        let log = cluster.kubectl(&["logs", "vm"])?;
        ensure!(log.contains("VMLET-BOOTS 2"), "not yet");
        Ok(())
    })
    .await?;
    cluster.await_ready("pod/vm", BOOT)?;

    run(&cluster, "save", &vm, "Save").await?;
    let ended = await_phase(&cluster, "vm", "Succeeded").await?;
    let container = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(container["reason"] == "Saved", "{container}");
    cluster.delete("pod/vm", SOON)?;
    let restore = json!({ "vmlet.dev/restore": "true" });
    cluster.apply(&pod_on("vm", &vm, restore))?;
    cluster.await_ready("pod/vm", BOOT)?;
    let log = cluster.kubectl(&["logs", "vm"])?;
    ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");

    run(&cluster, "stop", &vm, "GuestShutdown").await?;
    await_phase(&cluster, "vm", "Succeeded").await?;
    cluster.delete("pod/vm", SOON)?;
    run(&cluster, "remove", &vm, "DeleteDisk").await?;

    let lease = cluster.get_json(&["-n", "vmlet-system", "lease", "vmlet-node-node1"])?;
    let facts = NodeFacts::of_lease(&serde_json::from_value(lease)?).context("no facts")?;
    let proxy = facts.proxy.clone().context("no proxy")?;
    ensure!(proxy.reachable && proxy.runtime_ready, "{facts:?}");
    ensure!(proxy.version == facts.agent_version, "{facts:?}");
    ensure!(facts.daemon.version == facts.agent_version, "{facts:?}");
    cluster.await_clean().await?;
    cluster.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn tasks_end_well_when_the_agent_is_killed_at_each_step() -> Result<()> {
    let cluster = quiet_cluster().await?;
    let stack = cluster.stack();
    let points = [
        "agent.task.run",
        "agent.task.ran",
        "agent.task.record",
        "agent.task.recorded",
        "agent.task.forget",
        "agent.task.forgot",
    ];
    for (number, point) in (2..).zip(points) {
        let vm = vm_uid(number);
        for kind in ["Provision", "DeleteDisk"] {
            let name = format!("{}-{}", point.replace('.', "-"), kind.to_lowercase());
            stack.arm(point)?;
            create(&cluster, &name, &vm, kind)?;
            eventually(SOON, &format!("the agent dies at {point}"), || async {
                ensure!(
                    !stack.is_armed(point) && !stack.is_alive("vmlet-agent"),
                    "it lives"
                );
                Ok(())
            })
            .await?;
            stack.restart("vmlet-agent")?;
            await_success(&cluster, &name, SOON).await?;
        }
    }
    // Also a daemon that is killed under a task.
    let vm = vm_uid(1);
    stack.kill("vmlet", Signal::SIGKILL).await?;
    create(&cluster, "meanwhile", &vm, "Provision")?;
    stack.restart("vmlet")?;
    await_success(&cluster, "meanwhile", SOON).await?;
    run(&cluster, "remove", &vm, "DeleteDisk").await?;
    cluster.await_clean().await?;
    cluster.down()
}
