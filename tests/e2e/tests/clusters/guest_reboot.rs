//! A guest is rebooted at the time that its owner set, in the same pod.
//!
//! Invariant: the disk counts every boot; the pod's UID and its restarts show that the machine
//! stayed.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Guest, eventually};
use jiff::Timestamp;
use serde_json::{Value, json};

const NAME: &str = "web";
const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
/// Seconds that a guest has for a reboot, so that nothing but another request ends it here.
const PATIENT: i64 = 3600;
/// Seconds until a restart that is requested in advance; the request takes less, even on a busy
/// machine.
const AHEAD: i64 = 10;

pub(super) async fn a_guest_reboots_in_its_pod_or_is_reset_without_delaying_other_changes(
    cluster: &Cluster,
) -> Result<()> {
    let spec = json!({ "powerState": "PoweredOn", "powerOffTimeout": "300s" });
    cluster.apply(&machine(NAME, &spec))?;
    cluster.await_word(NAME, "Running", UP).await?;
    let pod = cluster.pod_uid(NAME)?;

    // It may still boot, and gets requests until it responds, but not before the time that its
    // owner set.
    let at = restart(cluster, json!({ "restartMode": "Soft" }), AHEAD)?;
    await_restarted(cluster, &at).await?;
    cluster.await_boots(NAME, &[1, 2], UP).await?;
    await_end(cluster, "GuestReboot", "Success").await?;
    let tasks = ends(cluster)?;
    ensure!(tasks.len() == 1, "{tasks:?}");
    let made = begun(cluster)?;
    ensure!(made >= at.parse()?, "asked for at {at}, begun at {made}");

    // One that does not listen is reset, where that is allowed.
    cluster.await_commands(NAME, UP).await?;
    Guest::in_pod(cluster.stack(), NAME)?.become_unresponsive()?;
    let mode = json!({ "restartMode": "TrySoft", "powerOffTimeout": "3s" });
    let at = restart(cluster, mode, 0)?;
    await_restarted(cluster, &at).await?;
    cluster.await_boots(NAME, &[1, 2, 3], UP).await?;
    await_end(cluster, "Reset", "Success").await?;
    ensure!(cluster.pod_uid(NAME)? == pod, "another pod");
    let status = cluster.get_json(&["pod", NAME])?;
    let restarts = &status["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "restarted {restarts} times");

    // A user forces the reboot of a guest that was requested to reboot.
    cluster.await_commands(NAME, UP).await?;
    Guest::in_pod(cluster.stack(), NAME)?.become_unresponsive()?;
    let mode = json!({ "restartMode": "Soft", "powerOffTimeout": format!("{PATIENT}s") });
    restart(cluster, mode, 0)?;
    await_end(cluster, "GuestReboot", "Running").await?;
    let off = json!({ "powerState": "PoweredOff", "powerOffMode": "Hard" });
    cluster.patch_vm(NAME, &off)?;
    cluster.await_word(NAME, "Stopped", DOWN).await?;
    await_patient_end(cluster).await?;

    cluster.delete(&format!("vm/{NAME}"), DOWN)?;
    cluster.await_gone(&format!("pod/{NAME}"), DOWN)?;
    Ok(())
}

/// Requests a restart so many seconds from now, and returns when that is.
fn restart(cluster: &Cluster, mut how: Value, ahead: i64) -> Result<String> {
    let at = Timestamp::from_second(Timestamp::now().as_second() + ahead)?.to_string();
    how["nextRestartTime"] = json!(at);
    cluster.patch_vm(NAME, &how)?;
    Ok(at)
}

/// When the only task that made the guest boot again was made.
fn begun(cluster: &Cluster) -> Result<Timestamp> {
    let tasks = cluster.get_json(&["virtualmachinetasks"])?;
    let mut tasks = tasks["items"].as_array().context("no list")?.iter();
    let task = tasks.find(|task| task["spec"]["kind"] == "GuestReboot");
    let made = &task.context("no GuestReboot")?["metadata"]["creationTimestamp"];
    Ok(made.as_str().context("no time")?.parse()?)
}

async fn await_restarted(cluster: &Cluster, at: &str) -> Result<()> {
    let what = format!("the restart of {at}");
    cluster
        .await_vm(NAME, &what, UP, |vm| {
            let last = &vm["status"]["lastRestartTime"];
            ensure!(last == at, "{last}");
            Ok(())
        })
        .await
}

/// Kinds and states of the tasks that made the guest boot again.
fn ends(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let tasks = cluster.get_json(&["virtualmachinetasks"])?;
    let tasks = tasks["items"].as_array().context("no list")?;
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = tasks
        .iter()
        .map(|task| (word(&task["spec"]["kind"]), word(&task["status"]["state"])));
    let others = ["Provision", "InspectImage"];
    Ok(all
        .filter(|(kind, _)| !others.contains(&kind.as_str()))
        .collect())
}

/// Waits until the request with the longest time ends: it is cancelled, or finds no guest when the
/// node carries out the power-off before it learns of the cancellation.
async fn await_patient_end(cluster: &Cluster) -> Result<()> {
    eventually(UP, "the end of the patient request", || async {
        let tasks = cluster.get_json(&["virtualmachinetasks"])?;
        let mut tasks = tasks["items"].as_array().context("no list")?.iter();
        let task = tasks.find(|task| task["spec"]["timeoutSeconds"] == PATIENT);
        let task = task.context("no patient request")?;
        let status = &task["status"];
        let message = status["message"].as_str().unwrap_or_default();
        let without_guest = status["state"] == "Error" && message.contains("does not run");
        ensure!(task["spec"]["cancel"] == true, "not cancelled: {task}");
        ensure!(status["state"] == "Cancelled" || without_guest, "{status}");
        Ok(())
    })
    .await
}

/// Waits until one of the tasks is in that state.
async fn await_end(cluster: &Cluster, kind: &str, state: &str) -> Result<()> {
    eventually(UP, &format!("a {kind} that is {state}"), || async {
        let ends = ends(cluster)?;
        let wanted = (kind.to_owned(), state.to_owned());
        ensure!(ends.contains(&wanted), "{ends:?}");
        Ok(())
    })
    .await
}
