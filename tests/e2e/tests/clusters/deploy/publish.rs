//! A machine that runs is exported and published through the pod of its node, and another one boots from its image.
//!
//! Invariant: both go by a snapshot; the registry is a real one, and takes uploads.
//! Failure: what the command line said is shown.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, eventually, machines, program};
use serde_json::json;

use super::{READY, on_node, run};

/// Where the registry listens.
const REGISTRY: &str = "127.0.0.1:5010";

/// Ends with the test.
struct Registry(Child);

impl Registry {
    fn start(cluster: &Cluster) -> Result<Self> {
        let dir = cluster.stack().dir().join("published");
        fs::create_dir_all(&dir)?;
        let configuration = dir.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {REGISTRY}\n",
            dir.join("storage").display()
        );
        fs::write(&configuration, text)?;
        let mut command = cluster.stack().command("docker-registry");
        command.arg("serve").arg(configuration);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self(command.spawn().context("docker-registry")?))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // One that has ended already has failed, which the test shows.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) async fn a_running_machine_is_exported_and_published(cluster: &Cluster) -> Result<()> {
    let vmletctl = |arguments: &[&str]| {
        let mut command = cluster.stack().command("vmletctl");
        command.args(arguments);
        command
    };
    let before = pod_of(cluster, "on")?;
    run(&mut vmletctl(&[
        "snapshot", "on", "--name", "moment", "--wait",
    ]))?;
    let file = cluster.stack().dir().join("moment.qcow2");
    let name = file.to_str().context("a path in UTF-8")?;
    for (snapshot, words) in [
        ("moment", "one of machine on"),
        ("other", "no snapshot other"),
    ] {
        let refused = program::output(&mut vmletctl(&[
            "export",
            "off",
            "--snapshot",
            snapshot,
            "-o",
            name,
        ]))?;
        let text = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            !refused.status.success() && text.contains(words),
            "{refused:?}"
        );
    }
    run(&mut vmletctl(&[
        "export",
        "on",
        "--snapshot",
        "moment",
        "-o",
        name,
    ]))?;
    run(Command::new("qemu-img")
        .args(["check", "-f", "qcow2"])
        .arg(&file))?;

    let image = format!("{REGISTRY}/machines/on:1");
    let publish = || {
        vmletctl(&[
            "publish",
            "on",
            "--snapshot",
            "moment",
            "--to",
            &image,
            "--insecure",
        ])
    };
    let away = program::output(&mut publish())?;
    let text = String::from_utf8_lossy(&away.stderr);
    ensure!(
        !away.status.success() && text.contains("cannot be reached"),
        "{away:?}"
    );
    let registry = Registry::start(cluster)?;
    cluster
        .stack()
        .fetch(&format!("http://{REGISTRY}/v2/"), READY)
        .await?;
    let first = run(&mut publish())?;
    let digest = first.trim().split_once('@').context("a digest")?.1;
    ensure!(digest.starts_with("sha256:"), "{first}");
    let storage = cluster.stack().dir().join("published/storage");
    let uploaded = layers(&storage)?;
    let second = run(&mut publish())?;
    ensure!(second == first, "another image: {second}");
    let again = layers(&storage)?;
    ensure!(again == uploaded, "{again:?} in place of {uploaded:?}");
    eventually(READY, "the removal of the node's copies", || async {
        let left = on_node(cluster, "find /var/lib/vmlet/exports -type f")?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    ensure!(
        pod_of(cluster, "on")? == before,
        "the machine has another pod"
    );

    boots_from(cluster, &image).await?;
    drop(registry);
    cluster.delete("vmsnap/moment", READY)?;
    fs::remove_file(&file)?;
    fs::remove_dir_all(file.with_file_name("published")).context("the registry's files")
}

/// The files of blobs.
fn layers(storage: &Path) -> Result<Vec<String>> {
    let found = run(Command::new("find")
        .arg(storage)
        .args(["-name", "data", "-size", "+1M"]))?;
    let mut found: Vec<_> = found.lines().map(str::to_owned).collect();
    found.sort();
    ensure!(found.len() == 1, "{found:?}");
    Ok(found)
}

fn pod_of(cluster: &Cluster, name: &str) -> Result<serde_json::Value> {
    let pod = cluster.get_json(&["pod", name])?;
    Ok(pod["metadata"]["uid"].clone())
}

/// A machine from the image counts its boots on from those that the snapshot has.
async fn boots_from(cluster: &Cluster, image: &str) -> Result<()> {
    let hosts = format!("/etc/vmlet/certs.d/{REGISTRY}");
    on_node(
        cluster,
        &format!("mkdir -p {hosts} && echo 'server = \"http://{REGISTRY}\"' >{hosts}/hosts.toml"),
    )?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": "published" }, "spec": { "source": { "oci": { "reference": image } } },
    }))?;
    cluster.apply(&machines::machine(
        "published",
        &json!({ "imageName": "published", "powerState": "PoweredOn" }),
    ))?;
    cluster.await_word("published", "Running", READY).await?;
    cluster.await_boots("published", &[2], READY).await?;
    cluster.delete("vm/published", READY)?;
    cluster.delete("vmimage/published", READY)?;
    on_node(cluster, &format!("rm -r '{hosts}'")).map(drop)
}
