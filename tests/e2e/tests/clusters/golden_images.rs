//! An image that follows a tag of a real registry: new machines boot the version that the tag means,
//! those that exist keep theirs, and one field pins a former one.
//!
//! Invariant: a tag is a file in the storage of the registry, which the test writes: it moves at once,
//! and both versions stay there. The guest counts the boots of its disk, so that a disk that was made
//! again shows.
//! Failure: the object as it was last seen; pods, events and logs follow.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, condition, machine};
use e2e::{Cluster, Options, REGISTRY, eventually};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
pub(super) const IMAGE: &str = "golden";

#[tokio::test]
#[ignore = "needs root"]
async fn new_machines_boot_the_version_of_the_tag_and_old_ones_keep_theirs() -> Result<()> {
    let cluster = Cluster::with(Options {
        registries: true,
        ..Options::default()
    })?;
    cluster.apply(&class("tiny", "128Mi"))?;
    let first = tag(&cluster, "1")?;
    let second = tag(&cluster, "2")?;
    ensure!(first != second, "one version has two tags");
    a_version_is_used_by_its_digest(&cluster, &first)
        .await
        .context("the first version")?;
    a_moved_tag_counts_for_new_machines_alone(&cluster, (&first, &second))
        .await
        .context("the second version")?;
    one_field_pins_a_version(&cluster, (&first, &second))
        .await
        .context("a pinned version")?;
    a_tag_that_vanished_changes_nothing(&cluster, &second)
        .await
        .context("a tag that vanished")?;
    for name in ["first", "second", "third"] {
        cluster.delete(&format!("vm/{name}"), GONE)?;
    }
    cluster.delete(&format!("vmimage/{IMAGE}"), GONE)?;
    cluster.await_clean().await?;
    cluster.down()
}

async fn a_version_is_used_by_its_digest(cluster: &Cluster, first: &str) -> Result<()> {
    let reference = format!("{REGISTRY}/disks/golden:stable");
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": IMAGE },
        "spec": {
            "source": { "oci": { "reference": reference } },
            "update": { "schedule": "@daily", "retain": 2 },
        },
    }))?;
    start(cluster, "first").await?;
    is_made_of(cluster, "first", first)?;
    await_versions(cluster, &[first], first).await
}

async fn a_moved_tag_counts_for_new_machines_alone(
    cluster: &Cluster,
    (first, second): (&str, &str),
) -> Result<()> {
    // kubelet reports the images of its node with the node's status, and the cache has the node.
    eventually(READY, "the node that has the first version", || async {
        let image = image(cluster)?;
        ensure!(image["status"]["nodeNames"] == json!(["node1"]), "{image}");
        Ok(())
    })
    .await?;
    move_tag(cluster, second)?;
    check(cluster, "moved")?;
    await_versions(cluster, &[second, first], second).await?;
    let image = image(cluster)?;
    let newest = &image["status"]["versions"][0];
    ensure!(newest["readyNodes"] == 1, "no node had it before: {newest}");
    let on_node = cluster
        .stack()
        .crictl(&["images", "--digests", "--no-trunc"])?;
    ensure!(on_node.contains(second), "{on_node}");
    start(cluster, "second").await?;
    is_made_of(cluster, "second", second)?;

    cluster.patch_vm("first", &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word("first", "Stopped", READY).await?;
    cluster.await_gone("pod/first", GONE)?;
    cluster.patch_vm("first", &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_boots("first", &[2], READY).await?;
    is_made_of(cluster, "first", first)
}

async fn one_field_pins_a_version(cluster: &Cluster, (first, second): (&str, &str)) -> Result<()> {
    patch(cluster, &json!({ "digest": first }))?;
    start(cluster, "third").await?;
    is_made_of(cluster, "third", first)?;
    await_condition(cluster, "False", "Pinned", second).await?;
    patch(cluster, &json!({ "digest": null }))?;
    await_versions(cluster, &[second, first], second).await
}

async fn a_tag_that_vanished_changes_nothing(cluster: &Cluster, second: &str) -> Result<()> {
    let link = link(cluster, "stable");
    fs::remove_file(&link).with_context(|| format!("remove {}", link.display()))?;
    check(cluster, "vanished")?;
    await_condition(cluster, "False", "CheckFailed", "404").await?;
    let image = image(cluster)?;
    ensure!(
        image["status"]["update"]["current"] == json!(second),
        "{image}"
    );
    ensure!(condition(&image, "Ready")["status"] == "True", "{image}");
    move_tag(cluster, second)?;
    check(cluster, "back")?;
    await_condition(cluster, "True", "UpToDate", "").await
}

pub(super) async fn start(cluster: &Cluster, name: &str) -> Result<()> {
    let spec = json!({ "powerState": "PoweredOn", "imageName": IMAGE });
    cluster.apply(&machine(name, &spec))?;
    cluster.await_boots(name, &[1], READY).await
}

/// The digest that the disk of a machine is made from.
pub(super) fn is_made_of(cluster: &Cluster, name: &str, digest: &str) -> Result<()> {
    let vm = cluster.vm(name)?;
    let image = vm["status"]["image"].as_str().unwrap_or_default();
    ensure!(image.ends_with(&format!("@{digest}")), "{name}: {image}");
    Ok(())
}

/// These versions, the newest first, all of them ready, and the one that new machines use.
pub(super) async fn await_versions(
    cluster: &Cluster,
    digests: &[&str],
    current: &str,
) -> Result<()> {
    eventually(READY, "the versions", || async {
        let image = image(cluster)?;
        let status = &image["status"];
        let all = status["versions"].as_array().cloned().unwrap_or_default();
        let known: Vec<_> = all.iter().map(|version| &version["digest"]).collect();
        let is_ready = all.iter().all(|version| version["state"] == "Ready");
        ensure!(known == digests && is_ready, "{status}");
        ensure!(status["update"]["current"] == json!(current), "{status}");
        ensure!(
            condition(&image, "UpToDate")["status"] == "True",
            "{status}"
        );
        Ok(())
    })
    .await
}

pub(super) async fn await_condition(
    cluster: &Cluster,
    status: &str,
    reason: &str,
    words: &str,
) -> Result<()> {
    eventually(READY, reason, || async {
        let found = condition(&image(cluster)?, "UpToDate");
        let message = found["message"].as_str().unwrap_or_default();
        let is_so = found["status"] == status && found["reason"] == reason;
        ensure!(is_so && message.contains(words), "{found}");
        Ok(())
    })
    .await
}

pub(super) fn image(cluster: &Cluster) -> Result<Value> {
    cluster.get_json(&["virtualmachineimage", IMAGE])
}

pub(super) fn check(cluster: &Cluster, request: &str) -> Result<()> {
    patch(cluster, &json!({ "checkRequest": request }))
}

pub(super) fn patch(cluster: &Cluster, update: &Value) -> Result<()> {
    let patch = json!({ "spec": { "update": update } }).to_string();
    cluster
        .kubectl(&["patch", "vmimage", IMAGE, "--type=merge", "-p", &patch])
        .map(drop)
}

/// The file that says what a tag means.
fn link(cluster: &Cluster, tag: &str) -> PathBuf {
    let repository = "registry/storage/docker/registry/v2/repositories/disks/golden";
    let tags = cluster
        .stack()
        .dir()
        .join(repository)
        .join("_manifests/tags");
    tags.join(tag).join("current/link")
}

fn tag(cluster: &Cluster, tag: &str) -> Result<String> {
    let link = link(cluster, tag);
    let read = fs::read_to_string(&link);
    let digest = read.with_context(|| format!("read {}", link.display()))?;
    Ok(digest.trim().to_owned())
}

/// Writes what the tag `stable` means.
fn move_tag(cluster: &Cluster, digest: &str) -> Result<()> {
    let link = link(cluster, "stable");
    fs::write(&link, digest).with_context(|| format!("write {}", link.display()))
}
