//! Disks are made and removed by the real agent and the real daemon, while the agent is killed at
//! each of its steps.
//!
//! Invariant: the crash points are those of the agent's sources; each is reached.
//! Failure: names the kind of task and the crash point; the task that did not become what is
//! awaited is shown.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::by_hand::TestEnvironment;
use e2e::{Cluster, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

const SOON: Duration = Duration::from_secs(180);
const AGENT: &str = "vmlet-agent";

#[tokio::test]
#[ignore = "needs root"]
async fn disks_are_made_and_removed_by_an_agent_that_is_killed_at_each_step() -> Result<()> {
    let env = TestEnvironment::up().await?;
    let cluster = env.cluster();
    let stack = env.cluster().stack();
    let mut points = crash_points()?;
    ensure!(
        points.len() > 7,
        "the sources have crash points: {points:?}"
    );
    // A task that takes no time has no progress, and cannot be cancelled; deletions come below.
    for other in ["progress", "cancel", "delete"] {
        let point = format!("agent.task.{other}");
        ensure!(points.remove(&point), "there is no {point}");
    }
    for (number, point) in (2..).zip(&points) {
        let vm = env.machine(number);
        vm.crash("Provision", json!({}), point).await?;
        ensure!(disks(cluster)? == [vm.uid()], "{:?}", disks(cluster)?);
        vm.crash("DeleteDisk", json!({}), point).await?;
        ensure!(disks(cluster)?.is_empty(), "{:?}", disks(cluster)?);
    }
    // Also a daemon that is killed under a task.
    let vm = env.machine(1);
    stack.kill("vmlet", Signal::SIGKILL).await?;
    let made = vm.create("Provision", json!({}), "meanwhile")?;
    stack.restart("vmlet")?;
    env.await_state(&made, "Success").await?;
    let removed = vm.create("DeleteDisk", json!({}), "meanwhile")?;
    env.await_state(&removed, "Success").await?;

    // Old tasks go, also when the agent ends over the first.
    let config = stack.dir().join("agent.toml");
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(
        &config,
        format!("{text}\n[limits]\ncompleted_tasks = \"1s\"\n"),
    )?;
    stack.arm("agent.task.delete")?;
    // What answers here may die before it has answered.
    let _ = stack.restart(AGENT);
    env.revive("agent.task.delete").await?;
    eventually(SOON, "the tasks go", || async {
        let left = cluster.kubectl(&["get", "virtualmachinetasks", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    cluster.await_clean().await?;
    env.down()
}

/// UIDs of the machines that have disks on the node.
fn disks(cluster: &Cluster) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(cluster.stack().dir().join("state/disks"))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .map(|name| name.to_string_lossy().into_owned())
        .collect())
}

/// The crash points of tasks in the agent's sources.
fn crash_points() -> Result<BTreeSet<String>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agent/src/tasks/effects.rs");
    let text = std::fs::read_to_string(file)?;
    let calls = text.split("faultpoint::point(\"").skip(1);
    let names = calls.filter_map(|call| Some(call.split_once('"')?.0.to_owned()));
    Ok(names.collect())
}
