//! Guest data from ConfigMaps and Secrets: mounted by kubelet, or read by the agent where that is
//! permitted.
//!
//! Invariant: the agent's optional right is not there at first. The kernel of the test guest has no
//! driver for SATA, so that answer files are looked for in the image of their CD-ROM.
//! Failure: what the guest found, or the events of the pod.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, Guest, eventually, vm_pod};
use serde_json::{Value, json};

use super::resources::{GONE, READY};
use super::unsupported::notes;

const KEY: &str = "ssh-ed25519 AAAAsource guest-data";

pub(super) async fn comes_from_mounts_and_by_permission_from_the_agent(
    cluster: &Cluster,
) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "unmounted" },
        "stringData": { "authorized_keys": KEY },
    });
    cluster.apply(&secret)?;
    let mut unmounted = vm_pod("unmounted");
    unmounted["metadata"]["annotations"] = json!({ "VirtletSSHKeySource": "secret/unmounted" });
    cluster.apply(&e2e::example("cloud-init.yaml")?)?;
    cluster.apply(&unmounted)?;

    eventually(READY, "the refusal of the agent", || async {
        let reported = notes(cluster, "unmounted", "Failed")?;
        let words = "guest data from secret default/unmounted: vmlet-agent may not read it: mount it into the \
                     pod at /run/vmlet/sources/secret/unmounted, or give vmlet-agent the right";
        let is_refused = reported.iter().any(|note| note.contains(words));
        ensure!(is_refused, "{reported:?}");
        Ok(())
    })
    .await?;
    let manifest = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/agent/sources.yaml"
    );
    cluster.kubectl(&["apply", "-f", manifest])?;

    for (pod, user_data) in [
        ("cloud-init", "# of a secret"),
        ("unmounted", "#cloud-config"),
    ] {
        cluster.await_ready(&format!("pod/{pod}"), READY)?;
        cluster.await_commands(pod, READY).await?;
        let guest = Guest::in_pod(cluster.stack(), pod)?;
        let found = guest.run(&["cat", "/run/seed/user-data"])?;
        ensure!(found.contains(user_data), "{pod}: {found}");
        let meta_data = guest.run(&["cat", "/run/seed/meta-data"])?;
        let meta_data: Value = serde_json::from_str(&meta_data).context("meta-data")?;
        ensure!(
            meta_data["public-keys"] == json!([KEY]),
            "{pod}: {meta_data}"
        );
        let lost = notes(cluster, pod, "Unsupported")?;
        ensure!(lost.is_empty(), "{pod}: {lost:?}");
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    cluster.kubectl(&["delete", "-f", manifest]).map(drop)
}

/// A machine of Windows gets its answer files, which a Secret holds.
pub(super) async fn answers_reach_the_cd_rom(cluster: &Cluster) -> Result<()> {
    const ANSWERS: &str = "<unattend xmlns=\"urn:schemas-microsoft-com:unattend\"/>";
    cluster.machine_basics()?;
    let sysprep = json!({ "sysprep": { "secretName": "answers" } });
    let spec = json!({ "powerState": "PoweredOn", "bootstrap": sysprep });
    cluster.apply(&machine("windows", &spec))?;
    eventually(READY, "the machine waits for its Secret", || async {
        let ready = condition(&cluster.vm("windows")?, "VirtualMachineBootstrapReady");
        ensure!(ready["status"] == "False", "{ready}");
        Ok(())
    })
    .await?;
    cluster.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "answers" },
        "stringData": { "unattend.xml": ANSWERS },
    }))?;
    cluster.await_word("windows", "Running", READY).await?;
    let is_on = |bytes: &[u8]| {
        let mut parts = bytes.windows(ANSWERS.len());
        parts.any(|part| part == ANSWERS.as_bytes())
    };
    let vm = cluster.vm("windows")?;
    let uid = vm["metadata"]["uid"].as_str().context("no UID")?;
    let disk = cluster.stack().dir().join("state/disks").join(uid);
    let disk = fs::read(disk.join("seed.iso")).context("the disk with the answer file")?;
    ensure!(is_on(&disk), "the answer file is not on the disk");
    cluster.delete("vm/windows", GONE)?;
    cluster.await_gone("pod/windows", GONE)
}
