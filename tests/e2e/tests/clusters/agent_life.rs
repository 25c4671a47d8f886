//! The life cycle of a machine by tasks, with an agent that is killed during each of them.
//!
//! Invariant: the disk counts its boots, so that what is done twice shows.
//! Failure: names the kind of task and the crash point; the task or pod that did not become what is
//! awaited is shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::guest_facts::Power;
use crds::node_facts::NodeFacts;
use e2e::by_hand::{Machine, TestEnvironment};
use e2e::{Cluster, Guest, eventually};
use serde_json::json;

const SOON: Duration = Duration::from_secs(180);
/// Guests boot under software emulation, maybe on a busy machine.
const BOOT: Duration = Duration::from_secs(600);

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_survives_a_killed_agent_during_each_task() -> Result<()> {
    let env = TestEnvironment::up().await?;
    let cluster = env.cluster();
    let vm = env.machine(1);
    let stack = cluster.stack();
    let plain = || json!({});
    vm.crash("Provision", plain(), "agent.task.run").await?;
    stack.arm("agent.facts.write")?;
    vm.run_pod(plain())?;
    env.revive("agent.facts.write").await?;
    cluster.await_ready("pod/vm", BOOT)?;
    let facts = env.await_facts("vm", Power::On).await?;
    ensure!(facts.domain_uuid == vm.uid(), "{facts:?}");
    cluster.await_boots("vm", &[1], BOOT).await?;
    // A boot that is cut short may not be counted.
    cluster.await_commands("vm", BOOT).await?;

    vm.crash("Pause", plain(), "agent.task.ran").await?;
    let facts = env.await_facts("vm", Power::Paused).await?;
    ensure!(facts.pause_reason == "PausedByUser", "{facts:?}");
    vm.crash("Unpause", plain(), "agent.task.record").await?;
    env.await_facts("vm", Power::On).await?;

    // Each of them once, whichever process was killed.
    for (kind, point, boots) in [
        ("GuestReboot", "agent.task.ran", &[1, 2][..]),
        ("Reset", "agent.task.run", &[1, 2, 3]),
        ("GuestReboot", "agent.task.recorded", &[1, 2, 3, 4]),
        ("Reset", "agent.task.forget", &[1, 2, 3, 4, 5]),
    ] {
        vm.crash(kind, plain(), point).await?;
        cluster.await_boots("vm", boots, BOOT).await?;
        cluster.await_commands("vm", BOOT).await?;
    }

    inside(cluster, "echo 7 >/run/memory").await?;
    vm.crash("Save", plain(), "agent.task.ran").await?;
    let ended = env.await_phase("vm", "Succeeded").await?;
    let container = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(container["reason"] == "Saved", "{container}");
    cluster.delete("pod/vm", SOON)?;
    vm.crash("Restore", plain(), "agent.task.recorded").await?;
    vm.run_pod(json!({ "vmlet.dev/restore": "true" }))?;
    cluster.await_ready("pod/vm", BOOT)?;
    cluster.await_commands("vm", BOOT).await?;
    let kept = inside(cluster, "cat /run/memory").await?;
    ensure!(kept == "7", "its memory is lost: {kept:?}");
    cluster.await_boots("vm", &[], BOOT).await?;

    vm.crash("Save", plain(), "agent.task.record").await?;
    env.await_phase("vm", "Succeeded").await?;
    cluster.delete("pod/vm", SOON)?;
    let discard = json!({ "discard": true });
    vm.crash("Restore", discard, "agent.task.ran").await?;
    vm.run_pod(plain())?;
    cluster.await_boots("vm", &[6], BOOT).await?;
    cluster.await_commands("vm", BOOT).await?;

    eventually(BOOT, "a guest that does not listen", || async {
        Guest::in_pod(cluster.stack(), "vm")?.become_unresponsive()
    })
    .await?;
    not_shut_down(&env, &vm).await?;
    shut_down(&env, &vm).await?;
    cluster.delete("pod/vm", SOON)?;
    vm.crash("DeleteDisk", plain(), "agent.task.forgot").await?;
    twice_each(&env)?;
    await_node_facts(cluster).await?;
    cluster.await_clean().await?;
    env.down()
}

/// A guest that does not listen is given up when the task is cancelled, and runs on.
async fn not_shut_down(env: &TestEnvironment, vm: &Machine<'_>) -> Result<()> {
    let cluster = env.cluster();
    let point = "agent.task.cancel";
    let name = vm.create("GuestShutdown", json!({ "timeoutSeconds": 3600 }), point)?;
    env.await_state(&name, "Running").await?;
    cluster.stack().arm(point)?;
    let cancel = r#"{"spec":{"cancel":true}}"#;
    cluster.kubectl(&[
        "patch",
        "virtualmachinetask",
        &name,
        "--type=merge",
        "-p",
        cancel,
    ])?;
    env.revive(point).await?;
    env.await_state(&name, "Cancelled").await?;
    cluster.await_commands("vm", BOOT).await?;
    cluster.await_boots("vm", &[6], BOOT).await
}

/// It listens only after the agent has ended: the task is in progress when it does.
async fn shut_down(env: &TestEnvironment, vm: &Machine<'_>) -> Result<()> {
    let cluster = env.cluster();
    let point = "agent.task.progress";
    cluster.stack().arm(point)?;
    let name = vm.create("GuestShutdown", json!({ "timeoutSeconds": 3600 }), point)?;
    env.revive(point).await?;
    env.await_state(&name, "Running").await?;
    eventually(BOOT, "a guest that listens", || async {
        let task = cluster.get_json(&["virtualmachinetask", &name])?;
        // It may be off before it has answered.
        if task["status"]["state"] == "Success" {
            return Ok(());
        }
        Guest::in_pod(cluster.stack(), "vm")?.become_responsive()
    })
    .await?;
    env.await_state(&name, "Success").await?;
    env.await_phase("vm", "Succeeded").await.map(drop)
}

async fn inside(cluster: &Cluster, script: &str) -> Result<String> {
    cluster.run_inside("vm", &["sh", "-c", script], BOOT).await
}

/// The agent reports its node every few seconds, and each agent only what it has observed itself.
async fn await_node_facts(cluster: &Cluster) -> Result<()> {
    eventually(SOON, "the node's facts", || async {
        let lease = cluster.get_json(&["-n", "vmlet-system", "lease", "vmlet-node-node1"])?;
        let facts = NodeFacts::of_lease(&serde_json::from_value(lease)?).context("no facts")?;
        let proxy = facts.proxy.clone().context("no proxy")?;
        ensure!(proxy.reachable && proxy.runtime_ready, "{facts:?}");
        ensure!(proxy.version == facts.agent_version, "{facts:?}");
        ensure!(facts.daemon.version == facts.agent_version, "{facts:?}");
        Ok(())
    })
    .await
}

/// Every kind that touches guests was interrupted at two points at least.
fn twice_each(env: &TestEnvironment) -> Result<()> {
    for kind in ["GuestShutdown", "GuestReboot", "Reset", "Save", "Restore"] {
        let points = env.interrupted(kind);
        ensure!(points >= 2, "{kind} was interrupted {points} times");
    }
    Ok(())
}
