//! Machines during failures of controllers and agent.
//!
//! Invariant: a machine keeps running without controller and agent; afterwards it matches its
//! object, by one instance on one disk.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::namespaces::a_namespace_goes_with_its_machines;

const UP: Duration = Duration::from_secs(600);
const DOWN: Duration = Duration::from_secs(300);
/// What a controller that lost its lease ends with.
const LOST: i32 = 75;
const CONTROLLER: &str = "vmlet-controller";

#[tokio::test]
#[ignore = "needs root"]
async fn machines_outlive_their_controller_and_agent() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    leader_change(&cluster)
        .await
        .context("the leader ends in the middle of a start")?;
    agent_dies(&cluster).await.context("the agent dies")?;
    a_namespace_goes_with_its_machines(&cluster)
        .await
        .context("their namespace is deleted")?;
    cluster.await_clean().await?;
    cluster.down()
}

/// A leader ends while a disk is made, the next one sleeps while a guest starts: each time the
/// other continues, and nothing that the sleeper writes is taken once it wakes.
async fn leader_change(cluster: &Cluster) -> Result<()> {
    let stack = cluster.stack();
    let mut second = second_controller(cluster)?;
    let name = "orphaned";
    cluster.apply(&machine(name, &json!({ "runStrategy": "Always" })))?;
    first_task(cluster, name).await?;
    stack.kill(CONTROLLER, Signal::SIGKILL).await?;
    await_leader(cluster, "second").await?;
    one_start(cluster, name).await?;
    cluster.delete(&format!("vm/{name}"), DOWN)?;

    stack.restart(CONTROLLER)?;
    let name = "handed-over";
    let sleeper = Pid::from_raw(i32::try_from(second.id())?);
    cluster.apply(&machine(name, &json!({ "runStrategy": "Always" })))?;
    first_of(cluster, &format!("pod/{name}")).await?;
    kill(sleeper, Signal::SIGSTOP)?;
    await_other_leader(cluster, "second").await?;
    one_start(cluster, name).await?;
    let written = writes_of_second(cluster)?;
    ensure!(!written.is_empty(), "the sleeper had never written");
    kill(sleeper, Signal::SIGCONT)?;
    let status = eventually(DOWN, "the end of the sleeper", || async {
        // It is no zombie before `try_wait` has seen it.
        let state = std::fs::read_to_string(format!("/proc/{sleeper}/stat"))?;
        ensure!(state.contains(") Z "), "it lives: {state}");
        Ok(())
    })
    .await
    .and_then(|()| Ok(second.wait()?))?;
    ensure!(status.code() == Some(LOST), "the sleeper: {status}");
    // No process can close the gap between its last look at the lease and the socket: a request in
    // it applies to a version that the new leader has replaced, and is refused for that.
    let after = writes_of_second(cluster)?.split_off(written.len());
    let is_stale = after.iter().all(|write| write.code() == 409);
    ensure!(is_stale && after.len() <= 1, "the sleeper wrote {after:?}");
    cluster.delete(&format!("vm/{name}"), DOWN)
}

/// Waits until the disk of a machine is being made.
async fn first_task(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(UP, &format!("the first task of {name}"), || async {
        let list = cluster.get_json(&["virtualmachinetasks"])?;
        let mut tasks = list["items"].as_array().context("items")?.iter();
        let is_there = tasks.any(|task| task["spec"]["vmName"] == name);
        ensure!(is_there, "none yet");
        Ok(())
    })
    .await
}

/// Waits until such an object is there.
async fn first_of(cluster: &Cluster, what: &str) -> Result<()> {
    eventually(UP, &format!("the first of {what}"), || async {
        let found = cluster.kubectl(&["get", "--ignore-not-found", what, "-o", "name"])?;
        ensure!(!found.is_empty(), "none yet");
        Ok(())
    })
    .await
}

/// The machine runs, has booted once, and was provisioned once.
async fn one_start(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_boots(name, &[1], UP).await?;
    let list = cluster.get_json(&["virtualmachinetasks"])?;
    let tasks = list["items"].as_array().context("items")?;
    let made = tasks
        .iter()
        .filter(|task| task["spec"]["vmName"] == name && task["spec"]["kind"] == "Provision");
    ensure!(made.count() == 1, "{list}");
    ensure!(disks(cluster)?.len() == 1, "{:?}", disks(cluster)?);
    Ok(())
}

fn disks(cluster: &Cluster) -> Result<Vec<std::path::PathBuf>> {
    let entries = std::fs::read_dir(cluster.stack().dir().join("state/disks"))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn leader(cluster: &Cluster) -> Result<String> {
    let holder = "jsonpath={.spec.holderIdentity}";
    let namespace = ["-n", "vmlet-system"];
    cluster.kubectl(&[&namespace[..], &["get", "lease", CONTROLLER, "-o", holder]].concat())
}

async fn await_leader(cluster: &Cluster, begins: &str) -> Result<()> {
    eventually(DOWN, &format!("{begins} leads"), || async {
        let holder = leader(cluster)?;
        ensure!(holder.starts_with(begins), "{holder:?} leads");
        Ok(())
    })
    .await
}

async fn await_other_leader(cluster: &Cluster, than: &str) -> Result<()> {
    eventually(DOWN, &format!("another than {than} leads"), || async {
        let holder = leader(cluster)?;
        ensure!(
            !holder.is_empty() && !holder.starts_with(than),
            "{holder:?} leads"
        );
        Ok(())
    })
    .await
}

/// Another controller with the same rights; the audit log distinguishes its writes from the first
/// one's, because it is the administrator who acts as the same account.
fn second_controller(cluster: &Cluster) -> Result<Child> {
    let stack = cluster.stack();
    let parse = |path: &std::path::Path| -> Result<Value> {
        let text = std::fs::read_to_string(path)?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    };
    let mut file = parse(&stack.dir().join("pki/vmlet-controller.kubeconfig"))?;
    let admin = parse(std::path::Path::new(stack.var("KUBECONFIG")?))?;
    let mut user = admin["users"][0]["user"].clone();
    user["as"] = json!("system:serviceaccount:vmlet-system:vmlet-controller");
    user["as-groups"] = json!(["system:serviceaccounts", "system:authenticated"]);
    file["users"][0]["user"] = user;
    let kubeconfig = stack.dir().join("second.kubeconfig");
    std::fs::write(&kubeconfig, file.to_string())?;
    let program = stack.dir().join("bin/vmlet-controller");
    let log = std::fs::File::create(stack.dir().join("log/second.log"))?;
    let mut command = stack.command_inside(&program.to_string_lossy())?;
    command
        .args(["--lease-identity", "second"])
        .args(["--listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0"])
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command.spawn().context("start a second controller")
}

fn writes_of_second(cluster: &Cluster) -> Result<Vec<e2e::Write>> {
    let mut writes = cluster.stack().writes()?;
    writes.retain(|write| write.acts_as().is_some());
    Ok(writes)
}

/// The disk keeps its content over agent restarts, and the agent finishes what it had begun.
async fn agent_dies(cluster: &Cluster) -> Result<()> {
    let name = "kept";
    let stack = cluster.stack();
    cluster.apply(&machine(name, &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_agent(name, UP).await?;
    let write = "echo kept >/boot/note && sync && echo 7 >/run/memory";
    cluster.run_inside(name, &["sh", "-c", write], UP).await?;
    cluster.patch_vm(name, &json!({ "powerState": "Suspended" }))?;
    stack.kill("vmlet-agent", Signal::SIGKILL).await?;
    stack.restart("vmlet-agent")?;
    cluster.await_word(name, "Suspended", DOWN).await?;
    stack.kill("vmlet-agent", Signal::SIGKILL).await?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    stack.restart("vmlet-agent")?;
    cluster.await_word(name, "Running", UP).await?;
    cluster.await_agent(name, UP).await?;
    let read = async |file| cluster.run_inside(name, &["cat", file], UP).await;
    let note = read("/boot/note").await?;
    ensure!(note == "kept", "the disk says {note:?}");
    let memory = read("/run/memory").await?;
    ensure!(memory == "7", "its memory says {memory:?}");
    cluster.delete(&format!("vm/{name}"), DOWN)
}
