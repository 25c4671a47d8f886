//! An image that follows a file of a web server by a file of checksums, as publishers of cloud images have it:
//! new machines boot the newest file, and a former one is of use where the node has it.
//!
//! Invariant: the files of checksums are those of `sha512sum` and `sha256sum`. Both appear at once, by renames:
//! first the image, then what lists it.
//! Failure: the object as it was last seen; pods, events and logs follow.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, condition};
use e2e::{Cluster, eventually, program};
use serde_json::json;

use super::golden_images::{
    IMAGE, await_condition, await_versions, check, image, is_made_of, patch, start,
};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const FILE: &str = "golden.qcow2";
const LIST: &str = "CHECKSUMS";
/// Of a file whose end is no part of its disk.
const CLUSTER: u64 = 65_536;

#[tokio::test]
#[ignore = "needs root"]
async fn new_machines_boot_the_file_that_the_checksums_have_and_no_node_gets_a_former_one()
-> Result<()> {
    let cluster = Cluster::up()?;
    cluster.apply(&class("tiny", "128Mi"))?;
    let first = publish(&cluster, 0, &["sha512sum"])?;
    ensure!(first.starts_with("sha512:"), "{first}");
    a_file_is_used_by_its_checksum(&cluster, &first)
        .await
        .context("the first file")?;
    let second = publish(&cluster, CLUSTER, &["sha256sum", "--tag"])?;
    a_new_file_counts_for_new_machines_alone(&cluster, (&first, &second))
        .await
        .context("the second file")?;
    a_former_file_serves_as_long_as_the_node_has_it(&cluster, (&first, &second))
        .await
        .context("a pinned file")?;
    checksums_without_the_file_change_nothing(&cluster, &second)
        .await
        .context("checksums of another file")?;
    for name in ["first", "second", "third"] {
        cluster.delete(&format!("vm/{name}"), GONE)?;
    }
    cluster.delete(&format!("vmimage/{IMAGE}"), GONE)?;
    cluster.await_clean().await?;
    cluster.down()
}

async fn a_file_is_used_by_its_checksum(cluster: &Cluster, first: &str) -> Result<()> {
    let served = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    let (server, _) = served.rsplit_once('/').context("a URL has a path")?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": IMAGE },
        "spec": {
            "source": { "http": { "url": format!("{server}/{FILE}") } },
            "update": {
                "checksumURL": format!("{server}/{LIST}"), "schedule": "@daily", "retain": 2,
            },
        },
    }))?;
    start(cluster, "first").await?;
    is_made_of(cluster, "first", first)?;
    await_versions(cluster, &[first], first).await
}

async fn a_new_file_counts_for_new_machines_alone(
    cluster: &Cluster,
    (first, second): (&str, &str),
) -> Result<()> {
    // kubelet reports the images of its node with the node's status.
    await_node(cluster).await?;
    check(cluster, "moved")?;
    await_versions(cluster, &[second, first], second).await?;
    let image = image(cluster)?;
    let newest = &image["status"]["versions"][0];
    ensure!(newest["readyNodes"] == 1, "no node had it before: {newest}");
    start(cluster, "second").await?;
    is_made_of(cluster, "second", second)?;
    is_made_of(cluster, "first", first)
}

async fn a_former_file_serves_as_long_as_the_node_has_it(
    cluster: &Cluster,
    (first, second): (&str, &str),
) -> Result<()> {
    patch(cluster, &json!({ "digest": first }))?;
    start(cluster, "third").await?;
    is_made_of(cluster, "third", first)?;
    await_condition(cluster, "False", "Pinned", second).await?;
    await_node(cluster).await?;
    // Its file stays below the disks that are linked to it, under no name.
    let used = image(cluster)?["status"]["providerItemID"].clone();
    let used = used.as_str().context("the image has no name")?;
    cluster.stack().crictl(&["rmi", used])?;
    eventually(READY, "the loss of a version", || async {
        let ready = condition(&image(cluster)?, "Ready");
        ensure!(ready["reason"] == "VersionGone", "{ready}");
        Ok(())
    })
    .await?;
    let pulled = cluster.stack().crictl(&["images", "--output", "json"])?;
    ensure!(!pulled.contains(first), "{pulled}");
    patch(cluster, &json!({ "digest": null }))?;
    await_versions(cluster, &[second, first], second).await
}

async fn checksums_without_the_file_change_nothing(cluster: &Cluster, second: &str) -> Result<()> {
    let list = served(cluster).join(LIST);
    let before = fs::read_to_string(&list)?;
    fs::write(&list, before.replace(FILE, "other.qcow2"))?;
    check(cluster, "without")?;
    let words = format!("it has no line with a SHA-256 or SHA-512 for {FILE}");
    await_condition(cluster, "False", "CheckFailed", &words).await?;
    let image = image(cluster)?;
    ensure!(
        image["status"]["update"]["current"] == json!(second),
        "{image}"
    );
    ensure!(condition(&image, "Ready")["status"] == "True", "{image}");
    fs::write(&list, before)?;
    check(cluster, "back")?;
    await_condition(cluster, "True", "UpToDate", "").await
}

/// Waits until the only node is known to have the version of new machines.
async fn await_node(cluster: &Cluster) -> Result<()> {
    eventually(READY, "the node that has the version", || async {
        let image = image(cluster)?;
        ensure!(image["status"]["nodeNames"] == json!(["node1"]), "{image}");
        Ok(())
    })
    .await
}

/// The folder of the stack's web server.
fn served(cluster: &Cluster) -> PathBuf {
    cluster.stack().dir().join("served")
}

/// Publishes the guest with so many bytes behind its last cluster, and what this program says of the file: its
/// checksum.
fn publish(cluster: &Cluster, more: u64, sums: &[&str]) -> Result<String> {
    let folder = served(cluster);
    fs::create_dir_all(&folder)?;
    let new = folder.join("new");
    let url = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    let mut curl = cluster.stack().command("curl");
    let fetched = program::output(curl.args(["-fsS", "-o"]).arg(&new).arg(url))?;
    ensure!(fetched.status.success(), "curl: {fetched:?}");
    let disk = OpenOptions::new().write(true).open(&new)?;
    let length = disk.metadata()?.len().next_multiple_of(CLUSTER);
    disk.set_len(length + more)?;
    fs::rename(&new, folder.join(FILE))?;
    let (name, arguments) = sums.split_first().context("no program")?;
    let mut hasher = Command::new(name);
    hasher.args(arguments).arg(FILE).current_dir(&folder);
    let output = program::output(&mut hasher)?;
    ensure!(output.status.success(), "{name}: {output:?}");
    let list = String::from_utf8(output.stdout)?;
    fs::write(&new, &list)?;
    fs::rename(&new, folder.join(LIST))?;
    let algorithm = name.trim_end_matches("sum");
    let mut words = list.split_whitespace();
    let digits = words.find(|word| word.len() >= 64 && !word.contains('.'));
    Ok(format!("{algorithm}:{}", digits.context(list.clone())?))
}
