//! Machines with `dataVolumeTemplates` where CDI is installed while the controller runs.
//!
//! Invariant: CDI is its definition alone, and this test writes what CDI would.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::VirtualMachine;
use crds::conditions::DATA_VOLUMES_READY;
use e2e::foreign::{await_words, definition};
use e2e::{Control, eventually, machines};
use kube::Api;
use serde_json::json;

/// Far less than the controller's resync, which would help, too.
const SOON: Duration = Duration::from_secs(240);

/// Behind the cases of `rules.rs` that need an API server without CDI: it changes what that knows.
pub(super) async fn cdi_that_is_installed_later_serves_machines_that_wait_for_it(
    control: &Control,
) -> Result<()> {
    let controller = control.controller("controller", &[]).await?;
    let story = story(control).await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    Ok(())
}

async fn story(control: &Control) -> Result<()> {
    let cluster = control.cluster();
    cluster.apply(&machines::class("tiny", "64Mi"))?;
    cluster.apply(&machines::image("example.com/guest"))?;
    let spec = json!({
        "runStrategy": "Always",
        "dataVolumeTemplates": [{ "name": "data", "spec": { "source": { "blank": {} } } }],
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
    });
    cluster.apply(&machines::machine("db", &spec))?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, "default");
    let says = |words| await_words(&vms, "db", DATA_VOLUMES_READY, words, SOON);
    says("False NotServed:").await?;

    let kind = definition("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes");
    cluster.apply(&kind)?;
    says("False NotReady:").await?;
    // Only the volume itself shows this to the controller.
    let patch = r#"{"status":{"phase":"Failed"}}"#;
    let arguments = [
        "patch",
        "datavolume",
        "data",
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    cluster.kubectl(&[&arguments[..], &[patch]].concat())?;
    says("False Failed:").await?;
    sources_and_owners(control).await
}

/// A DataSource that its namespace's administrator points elsewhere, and a volume without an owner.
async fn sources_and_owners(control: &Control) -> Result<()> {
    let cluster = control.cluster();
    let kind = definition("cdi.kubevirt.io", "v1beta1", "DataSource", "datasources");
    cluster.apply(&kind)?;
    let object = |kind: &str, name: &str, spec: serde_json::Value| {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": kind,
            "metadata": { "name": name, "namespace": "default" }, "spec": spec,
        })
    };
    let elsewhere = json!({ "source": { "pvc": { "namespace": "golden", "name": "a" } } });
    let source = object("DataSource", "ds", elsewhere);
    eventually(SOON, "DataSources are served", || async {
        cluster.apply(&source)
    })
    .await?;
    cluster.apply(&object("DataVolume", "old", json!({})))?;
    let spec = |name: &str, template: serde_json::Value| {
        json!({
            "runStrategy": "Always",
            "dataVolumeTemplates": [{ "name": name, "spec": template }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": name } }],
        })
    };
    let reference = json!({ "sourceRef": { "kind": "DataSource", "name": "ds" } });
    cluster.apply(&machines::machine("copy", &spec("copied", reference)))?;
    cluster.apply(&machines::machine("heir", &spec("old", json!({}))))?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, "default");
    let words = "False Forbidden: DataSource default/ds names pvc a of the namespace golden";
    await_words(&vms, "copy", DATA_VOLUMES_READY, words, SOON).await?;
    let words = "False NotOwned: DataVolume old exists and has no owner";
    await_words(&vms, "heir", DATA_VOLUMES_READY, words, SOON).await?;

    let record = format!("{}=old", crds::names::ADOPT_DATA_VOLUMES);
    cluster.kubectl(&["annotate", "virtualmachine", "heir", &record])?;
    await_words(
        &vms,
        "heir",
        DATA_VOLUMES_READY,
        "False NotReady: old is",
        SOON,
    )
    .await?;
    let adopted = cluster.get_json(&["datavolume", "old"])?;
    ensure!(
        adopted["metadata"]["ownerReferences"][0]["name"] == "heir",
        "{adopted}"
    );
    Ok(())
}
