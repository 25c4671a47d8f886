//! A machine is deleted while its node has no agent: its owner lets it go and leaves the disk.
//!
//! Invariant: the disk is there until an agent, which an administrator allowed it, removes it.
//! Failure: the step is named; the machine and its events follow.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

const AGENT: &str = "vmlet-agent";
const SOON: Duration = Duration::from_secs(180);

pub(super) async fn a_machine_goes_without_its_disk_where_no_agent_deletes_it(
    cluster: &Cluster,
) -> Result<()> {
    let name = "left";
    let stack = cluster.stack();
    cluster.apply(&machine(name, &json!({ "powerState": "PoweredOff" })))?;
    cluster.await_word(name, "Stopped", SOON).await?;
    let disk = eventually(SOON, "its disk", || async { only_disk(cluster) }).await?;
    // Without it no agent would know that the disk is of this cluster, and remove it.
    let manifest = disk.join("manifest");
    eventually(SOON, "its manifest", || async {
        ensure!(manifest.exists(), "{} is missing", manifest.display());
        Ok(())
    })
    .await?;

    stack.kill(AGENT, Signal::SIGTERM).await?;
    cluster.kubectl(&["delete", "vm", name, "--wait=false"])?;
    let advice = format!("kubectl -n default annotate vm {name} vmlet.dev/leave-disk=");
    cluster
        .await_vm(name, "advice for its owner", SOON, |vm| {
            let conditions = vm["status"]["conditions"].as_array();
            let mut conditions = conditions.context("no conditions")?.iter();
            let failure = conditions.find(|one| one["type"] == "Failure");
            let message = failure.context("no failure")?["message"].as_str();
            ensure!(message.is_some_and(|text| text.contains(&advice)), "{vm}");
            Ok(())
        })
        .await?;
    cluster.kubectl(&["annotate", "vm", name, "vmlet.dev/leave-disk="])?;
    cluster.await_gone(&format!("vm/{name}"), SOON)?;
    cluster.await_event(name, "DiskLeft", "node1", SOON).await?;
    ensure!(only_disk(cluster)? == disk, "the disk is not as it was");

    let config = stack.dir().join("agent.toml");
    let text = std::fs::read_to_string(&config)?;
    let limits = "[limits]\norphan_interval = \"1s\"\norphan_confirm = \"2s\"\norphan_remove_after = \"3s\"\n";
    std::fs::write(&config, format!("{text}\n{limits}"))?;
    stack.restart(AGENT)?;
    eventually(SOON, "the end of the disk", || async {
        ensure!(!disk.exists(), "{} is there", disk.display());
        Ok(())
    })
    .await
}

/// The only disk of the node.
fn only_disk(cluster: &Cluster) -> Result<PathBuf> {
    let folder = cluster.stack().dir().join("state/disks");
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let entries: Vec<_> = entries.collect::<std::io::Result<_>>()?;
    ensure!(entries.len() == 1, "{entries:?}");
    Ok(entries[0].path())
}
