//! The image cache of an image: a machine waits for it with the progress of its node, the next one finds the
//! files, and files that the node lost are fetched again.
//!
//! Invariant: the server of the image holds back half of the file until the test has seen the machine wait,
//! and counts the requests, so that an unexpected download shows.
//! Failure: the object as it was last seen.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, condition, machine};
use e2e::{Cluster, HeldServer, eventually, program};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const CACHED: &str = "VirtualMachineConditionImageCacheReady";
const IMAGE: &str = "held";

/// A case of `images.rs`; there is no image on the node.
pub(super) async fn a_machine_waits_for_its_image_and_the_next_one_finds_it(
    cluster: &Cluster,
) -> Result<()> {
    let server = HeldServer::start(cluster.stack(), guest(cluster)?)?;
    cluster.apply(&class("tiny", "128Mi"))?;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": IMAGE },
        "spec": { "source": { "http": { "url": format!("http://{}/held.qcow2", server.authority()) } } },
    }))?;
    start(cluster, "cold")?;
    cluster
        .await_vm("cold", "the progress of its image", READY, |vm| {
            let cached = condition(vm, CACHED);
            let message = cached["message"].as_str().unwrap_or_default();
            let shows_it = message.contains("node node1 pulls the image: ");
            ensure!(cached["status"] == "False" && shows_it, "{cached}");
            Ok(())
        })
        .await?;
    let provisions = tasks(cluster, "Provision")?;
    ensure!(
        provisions.is_empty(),
        "it has a create slot: {provisions:?}"
    );
    await_location(cluster, "False", "Pulling").await?;
    server.release();
    cluster.await_boots("cold", &[1], READY).await?;
    await_location(cluster, "True", "").await?;
    eventually(READY, "the end of the pull", || async {
        let pulls = tasks(cluster, "PullImage")?;
        ensure!(pulls.is_empty(), "{pulls:?}");
        Ok(())
    })
    .await?;

    let before = server.requests();
    start(cluster, "warm")?;
    cluster.await_boots("warm", &[1], READY).await?;
    ensure!(server.requests() == before, "it was pulled again");
    for name in ["cold", "warm"] {
        cluster.delete(&format!("vm/{name}"), GONE)?;
    }

    eventually(GONE, "a node without the image", || async {
        cluster.stack().crictl(&["rmi", "--all"])?;
        let images = cluster.stack().crictl(&["images", "-q"])?;
        ensure!(images.trim().is_empty(), "{images}");
        Ok(())
    })
    .await?;
    start(cluster, "again")?;
    cluster.await_boots("again", &[1], READY).await?;
    ensure!(server.requests() > before, "from where was it pulled?");
    await_location(cluster, "True", "").await?;
    cluster.delete("vm/again", GONE)?;
    cluster.kubectl(&["delete", "vmimage", IMAGE])?;
    eventually(GONE, "the end of the cache", || async {
        let left = cache(cluster)?;
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await
}

fn start(cluster: &Cluster, name: &str) -> Result<()> {
    let spec = json!({ "powerState": "PoweredOn", "imageName": IMAGE });
    cluster.apply(&machine(name, &spec)).map(drop)
}

/// The file of the guest.
fn guest(cluster: &Cluster) -> Result<Vec<u8>> {
    let file = cluster.stack().dir().join("held.qcow2");
    let path = file.to_str().context("a path in UTF-8")?;
    let url = cluster.stack().var("VMLET_TEST_IMAGE_URL")?.to_owned();
    let mut command = cluster.stack().command_inside("curl")?;
    let fetched = program::output(command.args(["-sSf", "-o", path, &url]))?;
    ensure!(fetched.status.success(), "{fetched:?}");
    Ok(std::fs::read(&file)?)
}

/// The cache of the image.
fn cache(cluster: &Cluster) -> Result<Option<Value>> {
    let all = cluster.get_json(&["-n", "vmlet-system", "virtualmachineimagecaches"])?;
    let all = all["items"].as_array().cloned().unwrap_or_default();
    let is_it = |cache: &Value| cache["spec"]["image"]["name"] == IMAGE;
    Ok(all.into_iter().find(is_it))
}

/// `Ready` of the only location.
async fn await_location(cluster: &Cluster, status: &str, reason: &str) -> Result<()> {
    eventually(READY, "the location on the node", || async {
        let cache = cache(cluster)?.context("there is no cache")?;
        let location = &cache["status"]["locations"][0];
        ensure!(location["node"] == "node1", "{cache}");
        let ready = &location["conditions"][0];
        let is_so = ready["status"] == status && (reason.is_empty() || ready["reason"] == reason);
        ensure!(is_so, "{cache}");
        Ok(())
    })
    .await
}

/// Tasks of that kind, in all namespaces.
fn tasks(cluster: &Cluster, kind: &str) -> Result<Vec<Value>> {
    let all = cluster.get_json(&["-A", "virtualmachinetasks"])?;
    let all = all["items"].as_array().cloned().unwrap_or_default();
    Ok(all
        .into_iter()
        .filter(|task| task["spec"]["kind"] == kind)
        .collect())
}
