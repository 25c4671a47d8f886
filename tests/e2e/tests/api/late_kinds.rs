//! A machine that names a storage class and a network which appear while it waits, the network's kind too.
//!
//! Invariant: a failed pass is not repeated within the test's time, so that nothing but the objects wakes the machine.
//! Failure: the machine as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::VirtualMachine;
use crds::conditions::{NETWORK_READY, STORAGE_READY};
use e2e::foreign::{await_words, definition};
use e2e::{Control, eventually, machines};
use kube::Api;
use serde_json::json;

/// A quarter of the time after which the controller looks again by itself.
const SOON: Duration = Duration::from_secs(240);
const SETTINGS: &str =
    "[runner]\nretry_min_ms = 1000000\nretry_max_ms = 1000000\nrecheck_secs = 1000\n";

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
    let story = story(&control).await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

async fn story(control: &Control) -> Result<()> {
    let cluster = control.cluster();
    cluster.apply(&machines::class("tiny", "64Mi"))?;
    cluster.apply(&machines::image("example.com/guest"))?;
    let wish = json!({
        "runStrategy": "Always",
        "storageClass": "fast",
        "network": { "interfaces": [{ "name": "blue", "networkRef": "blue" }] },
    });
    cluster.apply(&machines::machine("db", &wish))?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, "default");
    let says = |kind, words| await_words(&vms, "db", kind, words, SOON);
    says(STORAGE_READY, "fast does not exist").await?;
    says(NETWORK_READY, "install Multus").await?;

    cluster.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": "fast" }, "provisioner": "kubernetes.io/no-provisioner",
    }))?;
    // It is there; what the machine lacks now is a root volume.
    says(STORAGE_READY, "needs a volume with root: true").await?;

    cluster.apply(&definition(
        "k8s.cni.cncf.io",
        "v1",
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
    ))?;
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "blue" }, "spec": { "config": "{}" },
    });
    eventually(SOON, "the network's kind", || async {
        cluster.apply(&network).map(drop)
    })
    .await?;
    says(NETWORK_READY, "True").await
}
