//! An image that follows a tag with the real controller, against a real API server: the node and its agent are
//! the test.
//!
//! Invariant: the agent's lease is written once, and no other agent renews: no agent counts as lost then. A
//! controller that is stopped leaves what the next one goes on with.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::names::{IMAGE_UPDATES, NODE_FACTS};
use e2e::machines::{class, condition, machine};
use e2e::{Cluster, Control, eventually};
use serde_json::{Value, json};

use crate::played::{SYSTEM, node, report};

const SOON: Duration = Duration::from_secs(240);
const IMAGE: &str = "guest";
const TAG: &str = "registry.example/guest:1";
/// Of a controller that is alone.
const ALONE: [&str; 2] = ["--lease-enabled", "false"];

#[tokio::test]
#[ignore = "needs root"]
async fn a_version_is_pulled_before_new_machines_use_it_also_by_another_controller() -> Result<()> {
    let control = Control::up().await?;
    let cluster = control.cluster();
    cluster.apply(&class("tiny", "64Mi"))?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": IMAGE },
        "spec": { "source": { "oci": { "reference": TAG } }, "update": {}, "prePull": {} },
    }))?;
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/runtimeclass.yaml");
    cluster.kubectl(&["apply", "-f", &runtime.to_string_lossy()])?;
    control.namespace(SYSTEM).await?;
    let kinds = ["InspectImage", "PullImage"];
    node(cluster, "n1", &kinds)?;
    let facts = json!({
        "features": [IMAGE_UPDATES], "daemon": { "reachable": true, "taskKinds": kinds },
    });
    let facts = format!("{NODE_FACTS}={facts}");
    let annotate = ["annotate", "lease", "vmlet-node-n1", "--overwrite", &facts];
    cluster.kubectl(&[&["-n", SYSTEM][..], &annotate].concat())?;

    let first = control.controller("first", &ALONE).await?;
    a_first_version(cluster)
        .await
        .with_context(|| first.tail())?;
    let pull = a_second_version(cluster).await;
    let pull = pull.with_context(|| first.tail())?;
    ensure!(first.stop().await?.success());
    report(cluster, "default", &pull, &json!({ "state": "Success" }))?;
    let second = control.controller("second", &ALONE).await?;
    await_current(cluster, &digest('b'))
        .await
        .with_context(|| second.tail())?;
    one_field_pins_the_first(cluster)
        .await
        .with_context(|| second.tail())?;
    ensure!(second.stop().await?.success());
    control.down()
}

async fn a_first_version(cluster: &Cluster) -> Result<()> {
    finds(cluster, &digest('a')).await?;
    await_current(cluster, &digest('a')).await?;
    ensure!(new_machine_uses(cluster, "first").await? == named('a'));
    let pull = task(cluster, "PullImage", &named('a')).await?;
    report(cluster, "default", &pull, &json!({ "state": "Success" }))
}

/// The pull of the second version, which no node has yet.
async fn a_second_version(cluster: &Cluster) -> Result<String> {
    edit(cluster, &json!({ "checkRequest": "again" }))?;
    finds(cluster, &digest('b')).await?;
    let pull = task(cluster, "PullImage", &named('b')).await?;
    eventually(SOON, "a version that nodes pull", || async {
        let image = image(cluster)?;
        let status = &image["status"];
        let newest = &status["versions"][0];
        let is_newest = newest["digest"] == json!(digest('b'));
        ensure!(is_newest && newest["state"] == "Pulling", "{status}");
        ensure!(
            condition(&image, "UpToDate")["reason"] == "Pulling",
            "{status}"
        );
        ensure!(
            status["update"]["current"] == json!(digest('a')),
            "{status}"
        );
        Ok(())
    })
    .await?;
    ensure!(new_machine_uses(cluster, "early").await? == named('a'));
    Ok(pull)
}

async fn one_field_pins_the_first(cluster: &Cluster) -> Result<()> {
    ensure!(new_machine_uses(cluster, "late").await? == named('b'));
    edit(cluster, &json!({ "digest": digest('a') }))?;
    // No node says that it has this version: one reads it again before machines use it.
    answers(cluster, &named('a'), &digest('a')).await?;
    await_current(cluster, &digest('a')).await?;
    let image = image(cluster)?;
    ensure!(
        condition(&image, "UpToDate")["reason"] == "Pinned",
        "{image}"
    );
    ensure!(new_machine_uses(cluster, "pinned").await? == named('a'));
    Ok(())
}

fn digest(version: char) -> String {
    format!("sha256:{}", version.to_string().repeat(64))
}

/// Name in pods of a version.
fn named(version: char) -> String {
    format!("vmlet.dev/{TAG}@{}", digest(version))
}

/// The node that checks the tag reports this version.
async fn finds(cluster: &Cluster, digest: &str) -> Result<()> {
    answers(cluster, &format!("vmlet.dev/{TAG}"), digest).await
}

/// The node that reads this image reports this version.
async fn answers(cluster: &Cluster, image: &str, digest: &str) -> Result<()> {
    let check = task(cluster, "InspectImage", image).await?;
    let found = json!({
        "format": "qcow2", "virtualBytes": 1_073_741_824, "fileBytes": 7, "bootable": true,
        "firmware": "bios", "digest": digest,
    });
    let status = json!({ "state": "Success", "image": found });
    report(cluster, "default", &check, &status)
}

/// A task without a state, of this kind and for this image.
async fn task(cluster: &Cluster, kind: &str, image: &str) -> Result<String> {
    eventually(SOON, kind, || async {
        let tasks = cluster.get_json(&["virtualmachinetasks"])?;
        let tasks = tasks["items"].as_array().cloned().unwrap_or_default();
        let is_it = |task: &&Value| {
            let spec = &task["spec"];
            spec["kind"] == kind && spec["image"] == image && task["status"]["state"].is_null()
        };
        let found = tasks.iter().find(is_it).context("there is none")?;
        let name = found["metadata"]["name"].as_str();
        Ok(name.unwrap_or_default().to_owned())
    })
    .await
}

async fn await_current(cluster: &Cluster, digest: &str) -> Result<()> {
    eventually(SOON, "the version of new machines", || async {
        let image = image(cluster)?;
        ensure!(image["status"]["update"]["current"] == digest, "{image}");
        let id = image["status"]["providerItemID"].as_str();
        ensure!(id.is_some_and(|id| id.ends_with(digest)), "{image}");
        ensure!(
            condition(&image, "Ready")["reason"] == "Available",
            "{image}"
        );
        Ok(())
    })
    .await
}

/// The image of the placeholder of a new machine.
async fn new_machine_uses(cluster: &Cluster, name: &str) -> Result<String> {
    cluster.apply(&machine(name, &json!({ "powerState": "PoweredOn" })))?;
    eventually(SOON, "the placeholder", || async {
        let pods = cluster.get_json(&["pods", "-l", "vmlet.dev/role=provision"])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let is_its = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == name;
        let pod = pods.iter().find(is_its).context("there is none")?;
        let image = pod["spec"]["containers"][0]["image"].as_str();
        Ok(image.unwrap_or_default().to_owned())
    })
    .await
}

fn image(cluster: &Cluster) -> Result<Value> {
    cluster.get_json(&["virtualmachineimage", IMAGE])
}

fn edit(cluster: &Cluster, update: &Value) -> Result<()> {
    let patch = json!({ "spec": { "update": update } }).to_string();
    cluster
        .kubectl(&["patch", "vmimage", IMAGE, "--type=merge", "-p", &patch])
        .map(drop)
}
