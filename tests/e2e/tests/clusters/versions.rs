//! Two versions of Vmlet in one cluster, as during an upgrade: controller, agent and proxy of the earlier one, each
//! with the other programs of this one.
//!
//! Invariant: a machine is made, suspended, resumed and deleted, a VM pod and a container run, and a machine that was
//! there before is never started again.
//! Failure: the programs of the earlier version are named.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Versions, container_pod, vm_pod};
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
    let pod = cluster.pod_uid(STEADY)?;

    for program in PROGRAMS {
        replace(
            &cluster,
            || versions.install_earlier(&[program]),
            &[program],
        )?;
        let checked = check(&cluster, &pod).await;
        checked.with_context(|| format!("an earlier {program}"))?;
        replace(&cluster, || versions.install_later(&[program]), &[program])?;
    }
    replace(&cluster, || versions.install_earlier(&PROGRAMS), &PROGRAMS)?;
    check(&cluster, &pod).await.context("all of them earlier")?;
    replace(&cluster, || versions.install_later(&PROGRAMS), &PROGRAMS)?;
    check(&cluster, &pod).await.context("after the upgrade")?;

    cluster.delete(&format!("vm/{STEADY}"), DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}

fn replace(cluster: &Cluster, files: impl Fn() -> Result<()>, programs: &[&str]) -> Result<()> {
    files()?;
    let mut programs = programs.iter();
    programs.try_for_each(|program| cluster.stack().restart(program))
}

async fn check(cluster: &Cluster, steady: &str) -> Result<()> {
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
    cluster.await_word(STEADY, "Running", UP).await?;
    ensure!(cluster.pod_uid(STEADY)? == steady, "another instance");
    cluster.await_boots(STEADY, &[1], UP).await
}
