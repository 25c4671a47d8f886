//! A machine that names a storage class and a network which appear while it waits, the network's
//! kind too.
//!
//! Invariant: the controller's log names the kind of the object that wakes the machine, so that a
//! pass that is repeated for another reason is not taken for one that the object caused.
//! Failure: the machine as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::VirtualMachine;
use crds::conditions::{NETWORK_READY, STORAGE_READY};
use e2e::foreign::{await_words, definition};
use e2e::{Control, Controller, eventually, machines};
use kube::Api;
use serde_json::json;

const SOON: Duration = Duration::from_secs(240);
const CLASS: &str = "StorageClass";
const NETWORK: &str = "NetworkAttachmentDefinition";
/// A machine that waits is not looked at again and again.
const SETTINGS: &str = "[runner]\nrecheck = \"1000s\"\n";

#[tokio::test]
#[ignore = "needs root"]
async fn storage_classes_and_networks_that_appear_wake_the_machines_that_wait_for_them()
-> Result<()> {
    let control = Control::up().await?;
    let config = control.stack().dir().join("patient.toml");
    std::fs::write(&config, SETTINGS)?;
    let config = config.to_string_lossy();
    let flags = ["--config", &*config];
    let controller = control.controller("controller", &flags).await?;
    let story = story(&control, &controller).await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

async fn story(control: &Control, controller: &Controller) -> Result<()> {
    let cluster = control.cluster();
    cluster.apply(&machines::class("tiny", "64Mi"))?;
    cluster.apply(&machines::image("example.com/guest"))?;
    let spec = json!({
        "runStrategy": "Always",
        "storageClass": "fast",
        "network": { "interfaces": [{ "name": "blue", "networkRef": "blue" }] },
    });
    cluster.apply(&machines::machine("db", &spec))?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, "default");
    let says = |kind, words| await_words(&vms, "db", kind, words, SOON);
    says(STORAGE_READY, "fast does not exist").await?;
    says(NETWORK_READY, "install Multus").await?;

    for kind in [CLASS, NETWORK] {
        ensure!(!is_woken(controller, kind)?, "woken by a {kind} too early");
    }
    cluster.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": CLASS,
        "metadata": { "name": "fast" }, "provisioner": "kubernetes.io/no-provisioner",
    }))?;
    await_wake(controller, CLASS).await?;
    // It is there; what the machine lacks now is the size of its root disk.
    says(STORAGE_READY, "set bootDiskCapacity").await?;

    cluster.apply(&definition(
        "k8s.cni.cncf.io",
        "v1",
        NETWORK,
        "network-attachment-definitions",
    ))?;
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": NETWORK,
        "metadata": { "name": "blue" }, "spec": { "config": "{}" },
    });
    eventually(SOON, "the network's kind", || async {
        cluster.apply(&network).map(drop)
    })
    .await?;
    await_wake(controller, NETWORK).await?;
    says(NETWORK_READY, "True").await
}

/// Waits until an object of this kind has woken the machine.
async fn await_wake(controller: &Controller, kind: &str) -> Result<()> {
    eventually(SOON, &format!("a wake by a {kind}"), || async {
        ensure!(is_woken(controller, kind)?, "{}", controller.tail());
        Ok(())
    })
    .await
}

/// Whether an object of this kind has ever woken the machine.
fn is_woken(controller: &Controller, kind: &str) -> Result<bool> {
    controller.with_lines(|lines| {
        let mut wakes = lines.iter().filter(|line| line.outcome == "queued");
        wakes.any(|line| line.key == "default/db" && line.by == kind)
    })
}
