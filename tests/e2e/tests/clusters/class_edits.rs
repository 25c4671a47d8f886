//! Edits of a class that a running machine adopts. Part of the test of [`machines`](super::machines).
//!
//! Invariant: CPUs and memory are counted by the guest; one instance, which never restarts.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::{class, condition, machine};
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

use super::resize::size;

const UP: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
const SYNCED: &str = "VirtualMachineClassConfigurationSynced";
const NAME: &str = "edited";

/// With the annotation and room in its pod, a running machine gets more of both and gives them
/// back; what exceeds the room waits for the next start, as every edit does without the annotation.
pub(crate) async fn adopted(cluster: &Cluster) -> Result<()> {
    edit(cluster, 1, 128)?;
    let mut vm = machine(NAME, &json!({ "running": true, "className": "edited" }));
    vm["metadata"]["annotations"] = json!({
        "vmlet.dev/same-vm-class-resize": "",
        "vmlet.dev/max-vcpus": "2",
        "vmlet.dev/max-memory": "384Mi",
    });
    cluster.apply(&vm)?;
    cluster.await_word(NAME, "Running", UP).await?;
    cluster.await_agent(NAME, UP).await?;
    let uid = cluster.pod_uid(NAME)?;
    let small = eventually(UP, "a guest with one CPU", || async {
        let (cpus, small) = size(cluster, NAME)?;
        ensure!(cpus == 1 && small < 128 * MIB, "{cpus} CPUs, {small} bytes");
        Ok(small)
    })
    .await?;
    for (cpus, mib) in [(2, 320), (1, 256)] {
        edit(cluster, cpus, mib)?;
        let bytes = small + (mib - 128) * MIB;
        eventually(UP, "a guest of the size of the class", || async {
            let (has, total) = size(cluster, NAME)?;
            let is_near = (bytes - 12 * MIB..=bytes + MIB).contains(&total);
            ensure!(has == cpus && is_near, "{has} CPUs, {total} bytes");
            Ok(())
        })
        .await?;
        await_synced(cluster, "the class is adopted", |synced, vm| {
            ensure!(synced["status"] == "True", "{synced}");
            let has = &vm["status"]["hardware"];
            let memory = format!("{mib}Mi");
            ensure!(has["cpus"] == cpus && has["memory"] == memory, "{has}");
            Ok(())
        })
        .await?;
    }

    edit(cluster, 3, 256)?;
    await_synced(cluster, "an edit beyond the room waits", |synced, _| {
        ensure!(synced["reason"] == "SameClassResize", "{synced}");
        Ok(())
    })
    .await?;
    let remove = ["annotate", "vm", NAME, "vmlet.dev/same-vm-class-resize-"];
    cluster.kubectl(&remove)?;
    edit(cluster, 2, 256)?;
    await_synced(cluster, "an edit waits for the annotation", |synced, _| {
        ensure!(synced["reason"] == "ClassUpdated", "{synced}");
        Ok(())
    })
    .await?;
    let (cpus, _) = size(cluster, NAME)?;
    ensure!(cpus == 1, "{cpus} CPUs");
    ensure!(cluster.pod_uid(NAME)? == uid, "it was restarted");
    let pod = cluster.get_json(&["pod", NAME])?;
    let status = &pod["status"]["containerStatuses"][0];
    ensure!(status["restartCount"] == 0, "{status}");
    cluster.delete(&format!("vm/{NAME}"), UP)?;
    cluster.delete("virtualmachineclass/edited", UP)
}

fn edit(cluster: &Cluster, cpus: usize, mib: u64) -> Result<()> {
    let mut class = class("edited", &format!("{mib}Mi"));
    class["spec"]["hardware"]["cpus"] = json!(cpus);
    cluster.apply(&class)
}

async fn await_synced(
    cluster: &Cluster,
    what: &str,
    check: impl Fn(&Value, &Value) -> Result<()>,
) -> Result<()> {
    let of = |vm: &Value| check(&condition(vm, SYNCED), vm);
    cluster.await_vm(NAME, what, UP, of).await
}
