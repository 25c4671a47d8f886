//! Two versions of Vmlet in one cluster, as during an upgrade: controller, agent and proxy of the earlier one, each
//! with the other programs of this one.
//!
//! Invariant: a machine is made, suspended, resumed and deleted, a VM pod and a container run, and a machine that was
//! there before is never started again.
//! Failure: the programs of the earlier version are named.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Guest, Versions, container_pod, ticks, vm_pod};
use nix::unistd::Pid;
use serde_json::json;

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
const PROGRAMS: [&str; 3] = ["vmlet-controller", "vmlet-agent", "vmlet-criproxy"];
/// A machine that runs through all of it.
const STEADY: &str = "steady";

#[tokio::test]
#[ignore = "needs root"]
async fn neighbouring_versions_of_a_cluster_work_together() -> Result<()> {
    let cluster = Cluster::up()?;
    let versions = Versions::new(cluster.stack())?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine(STEADY, &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_word(STEADY, "Running", UP).await?;
    cluster.await_commands(STEADY, UP).await?;
    let steady = Steady::find(&cluster)?;

    for program in PROGRAMS {
        versions.install_earlier(&[program])?;
        versions.restart_earlier(&[program])?;
        let checked = check(&cluster, &steady).await;
        checked.with_context(|| format!("an earlier {program}"))?;
        versions.install_later(&[program])?;
        versions.restart_later(&[program])?;
    }
    versions.install_earlier(&PROGRAMS)?;
    versions.restart_earlier(&PROGRAMS)?;
    let checked = check(&cluster, &steady).await;
    checked.context("all of them earlier")?;
    versions.install_later(&PROGRAMS)?;
    versions.restart_later(&PROGRAMS)?;
    let checked = check(&cluster, &steady).await;
    checked.context("after the upgrade")?;

    cluster.delete(&format!("vm/{STEADY}"), DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}

/// The machine that runs through all of it.
struct Steady {
    pod: String,
    emulator: Pid,
}

impl Steady {
    fn find(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            pod: cluster.pod_uid(STEADY)?,
            emulator: Guest::in_pod(cluster.stack(), STEADY)?.emulator()?,
        })
    }

    /// It goes on by the same process, its log has no gap, and it executes commands.
    async fn check(&self, cluster: &Cluster) -> Result<()> {
        cluster.await_word(STEADY, "Running", UP).await?;
        let now = Self::find(cluster)?;
        ensure!(now.pod == self.pod, "another instance");
        ensure!(now.emulator == self.emulator, "another emulator");
        cluster.await_commands(STEADY, UP).await?;
        cluster.await_boots(STEADY, &[1], UP).await?;
        let ticks = ticks(&cluster.logs(STEADY)?);
        for pair in ticks.windows(2) {
            ensure!(pair[1].count == pair[0].count + 1, "a gap: {pair:?}");
        }
        Ok(())
    }
}

async fn check(cluster: &Cluster, steady: &Steady) -> Result<()> {
    let name = "new";
    cluster.await_condition("node/node1", "condition=Ready", UP)?;
    cluster.apply(&machine(name, &json!({ "powerState": "PoweredOn" })))?;
    cluster.apply(&vm_pod("pod"))?;
    cluster.apply(&container_pod("box", "sleep 10000"))?;
    for pod in ["pod", "box"] {
        cluster.await_ready(&format!("pod/{pod}"), UP)?;
    }
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_boots(name, &[1], UP).await?;
    cluster.await_commands(name, UP).await?;
    cluster.patch_vm(name, &json!({ "powerState": "Suspended" }))?;
    cluster.await_word(name, "Suspended", DOWN).await?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    // The log is that of another pod: a boot would be in it.
    cluster.await_commands(name, UP).await?;
    cluster.await_boots(name, &[], UP).await?;
    cluster.delete(&format!("vm/{name}"), DOWN)?;
    for pod in ["pod", "box"] {
        cluster.delete(&format!("pod/{pod}"), DOWN)?;
    }
    steady.check(cluster).await
}
