//! The API server is stopped for a minute, in which guests change their state and no change can be
//! written.
//!
//! Invariant: machines keep running meanwhile; afterwards each matches its object, by one instance
//! on one disk.
//! Failure: the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Stack, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

const UP: Duration = Duration::from_secs(600);
const DOWN: Duration = Duration::from_secs(300);
/// How long it is away.
const AWAY: Duration = Duration::from_secs(60);
/// Everything that is awaited beside it ends earlier.
const FOR_GOOD: Duration = Duration::from_secs(24 * 3600);
const CONTROLLER: &str = "vmlet-controller";

#[tokio::test]
#[ignore = "needs root"]
async fn guests_change_their_state_while_the_api_server_is_away() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    let stack = cluster.stack();
    for (name, strategy) in [
        ("ends", "RerunOnFailure"),
        ("dies", "Always"),
        ("stays", "Always"),
    ] {
        cluster.apply(&machine(name, &json!({ "runStrategy": strategy })))?;
    }
    for name in ["ends", "dies", "stays"] {
        cluster.await_word(name, "Running", UP).await?;
        cluster.await_agent(name, UP).await?;
    }
    let stays = cluster.pod_uid("stays")?;
    stack.kill("kube-apiserver", Signal::SIGKILL).await?;
    let away = tokio::time::Instant::now();
    cluster.power_off_inside("ends")?;
    cluster.kill_emulator("dies")?;
    // It cannot renew its lease. Its supervisor starts it again, also without an API server.
    let controller = stack.pid(CONTROLLER)?;
    eventually(DOWN, "the end of the controller", || async {
        ensure!(stack.pid(CONTROLLER).ok() != Some(controller), "it lives");
        Ok(())
    })
    .await?;
    stack.restart(CONTROLLER)?;
    tokio::time::sleep_until(away + AWAY).await;
    cluster.await_commands("stays", DOWN).await?;
    stack.restart("kube-apiserver")?;
    let all_as_desired = async {
        cluster.await_word("ends", "Stopped", UP).await?;
        cluster.await_boots("dies", &[2], UP).await?;
        cluster.await_word("dies", "Running", UP).await?;
        cluster.await_word("stays", "Running", UP).await
    };
    tokio::select! {
        done = all_as_desired => done?,
        never = keep_scheduler(stack) => never?,
    }
    ensure!(
        cluster.pod_uid("stays")? == stays,
        "a machine that ran was restarted"
    );
    cluster.await_boots("stays", &[1], UP).await?;
    for name in ["ends", "dies", "stays"] {
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// What kubelet does in other clusters: a scheduler that finds after the outage that a pod of a
/// name that it knows is another one by now takes its memory for corrupted, and ends.
async fn keep_scheduler(stack: &Stack) -> Result<()> {
    loop {
        eventually(FOR_GOOD, "the end of the scheduler", || async {
            ensure!(!stack.is_alive("kube-scheduler"), "it runs");
            Ok(())
        })
        .await?;
        stack.restart("kube-scheduler")?;
    }
}
