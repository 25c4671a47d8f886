//! The image cache of an image with the real controller, against a real API server: the node and its agent are
//! the test.
//!
//! Invariant: the agent's lease is written once, and no other agent renews: no agent counts as lost then.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, Control, eventually};
use serde_json::{Value, json};

use crate::played::{SYSTEM, bind, installed, node, report};

const SOON: Duration = Duration::from_secs(240);
const CACHED: &str = "VirtualMachineConditionImageCacheReady";

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_shows_the_progress_of_its_node_until_the_files_are_there() -> Result<()> {
    let control = Control::up().await?;
    let cluster = installed(&control).await?;
    node(cluster, "n1", &["PullImage"])?;
    let controller = control
        .controller("controller", &["--lease-enabled", "false"])
        .await?;
    story(cluster).await.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

async fn story(cluster: &Cluster) -> Result<()> {
    cluster.apply(&machine("vm", &json!({ "powerState": "PoweredOn" })))?;
    let placeholder = eventually(SOON, "the placeholder", || async {
        let pods = cluster.get_json(&["pods", "-l", "vmlet.dev/role=provision"])?;
        let name = pods["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned).context("there is none")
    })
    .await?;
    bind(cluster, &placeholder, "n1")?;
    let task = eventually(SOON, "the task of the node", || async {
        let tasks = cluster.get_json(&["-n", SYSTEM, "virtualmachinetasks"])?;
        let tasks = tasks["items"].as_array().cloned().unwrap_or_default();
        let mut pulls = tasks
            .into_iter()
            .filter(|t| t["spec"]["kind"] == "PullImage");
        pulls.next().context("there is none")
    })
    .await?;
    ensure!(task["spec"]["nodeName"] == "n1", "{task}");
    let cache = cache(cluster)?.context("a task without its cache")?;
    let owner = &task["metadata"]["ownerReferences"][0];
    ensure!(owner["uid"] == cache["metadata"]["uid"], "{task}");
    let task = task["metadata"]["name"].as_str().unwrap_or_default();

    report(
        cluster,
        SYSTEM,
        task,
        &json!({ "state": "Running", "progressPercent": 47 }),
    )?;
    await_machine(cluster, "node n1 pulls the image: 40 %").await?;
    let failed = json!({
        "state": "Error", "message": "answered 404", "completionTime": "2026-01-01T00:00:00Z",
    });
    report(cluster, SYSTEM, task, &failed)?;
    await_machine(cluster, "node n1: answered 404").await?;
    report(
        cluster,
        SYSTEM,
        task,
        &json!({ "state": "Success", "message": "" }),
    )?;
    eventually(SOON, "the files", || async {
        let cache = self::cache(cluster)?.context("there is no cache")?;
        let ready = condition(&cache, "VirtualMachineImageCacheFilesReady");
        let location = &cache["status"]["locations"][0]["conditions"][0];
        let is_so = ready["status"] == "True" && location["reason"] == "Pulled";
        ensure!(is_so, "{cache}");
        Ok(())
    })
    .await?;
    eventually(SOON, "the end of the task", || async {
        let left = cluster.kubectl(&["-n", SYSTEM, "get", "vmtask", "-o", "name"])?;
        ensure!(!left.contains(task), "{left}");
        Ok(())
    })
    .await?;
    cluster.kubectl(&["delete", "vmimage", "guest"])?;
    eventually(SOON, "the end of the cache", || async {
        let left = self::cache(cluster)?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await
}

async fn await_machine(cluster: &Cluster, words: &str) -> Result<()> {
    cluster
        .await_vm("vm", words, SOON, |vm| {
            let cached = condition(vm, CACHED);
            let message = cached["message"].as_str().unwrap_or_default();
            let is_so = cached["reason"] == "NotReady" && message.contains(words);
            ensure!(is_so, "{cached}");
            Ok(())
        })
        .await
}

/// The only cache.
fn cache(cluster: &Cluster) -> Result<Option<Value>> {
    let all = cluster.get_json(&["-n", SYSTEM, "virtualmachineimagecaches"])?;
    let all = all["items"].as_array().cloned().unwrap_or_default();
    Ok(all.into_iter().next())
}
