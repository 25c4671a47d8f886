//! A quota of disk space, and the pods of machines.
//!
//! Invariant: the quota's limits are in its status, as the controller-manager would write them.
//! Failure: the machine's status, or the quota as it was last.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::VirtualMachine;
use crds::conditions::CREATED;
use e2e::foreign::await_words;
use e2e::{Control, eventually, machines};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "disk-quota";
const STORAGE: &str = "requests.ephemeral-storage";

pub(super) async fn a_quota_counts_the_root_disks_of_machines(control: &Control) -> Result<()> {
    let runtime = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/runtimeclass.yaml"
    );
    control.cluster().kubectl(&["apply", "-f", runtime])?;
    control.namespace(NAMESPACE).await?;
    let quotas = Api::<ResourceQuota>::namespaced(control.client()?, NAMESPACE);
    let hard = json!({ STORAGE: "30Gi" });
    let quota = json!({ "metadata": { "name": "disks" }, "spec": { "hard": hard } });
    let quota = serde_json::from_value(quota)?;
    quotas.create(&PostParams::default(), &quota).await?;
    let status = json!({ "status": { "hard": hard, "used": { STORAGE: "0" } } });
    let params = PatchParams::default();
    let status = Patch::Merge(status);
    quotas.patch_status("disks", &params, &status).await?;

    let controller = control.controller("quota", &[]).await?;
    let story = story(control, &quotas).await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    Ok(())
}

async fn story(control: &Control, quotas: &Api<ResourceQuota>) -> Result<()> {
    let apply = |mut object: serde_json::Value| {
        object["metadata"]["namespace"] = json!(NAMESPACE);
        control.cluster().apply(&object)
    };
    apply(machines::class("tiny", "64Mi"))?;
    apply(machines::image("example.com/guest"))?;
    let large = json!({ "running": true, "bootDiskCapacity": "20Gi" });
    apply(machines::machine("first", &large))?;
    eventually(SOON, "the disk is counted", || async {
        let used = quotas.get("disks").await?.status.and_then(|s| s.used);
        let used = used.context("no figures")?;
        ensure!(
            used.get(STORAGE).is_some_and(|is| is.0 == "20Gi"),
            "{used:?}"
        );
        Ok(())
    })
    .await?;
    apply(machines::machine("second", &large))?;
    let vms: Api<VirtualMachine> = Api::namespaced(control.client()?, NAMESPACE);
    await_words(&vms, "second", CREATED, "exceeded quota: disks", SOON).await?;
    // The watch of quotas wakes the machine when there is room.
    let hard = json!({ "status": { "hard": { STORAGE: "50Gi" } } });
    let params = PatchParams::default();
    quotas
        .patch_status("disks", &params, &Patch::Merge(hard))
        .await?;
    await_placeholder(control, "second").await?;
    // A disk whose size no node has read is not counted: only CPU and memory have to be requested.
    apply(machines::machine("unknown", &json!({ "running": true })))?;
    await_placeholder(control, "unknown").await
}

async fn await_placeholder(control: &Control, machine: &str) -> Result<()> {
    let placeholders = Api::<Pod>::namespaced(control.client()?, NAMESPACE);
    let prefix = format!("{machine}-placeholder");
    eventually(SOON, &format!("the placeholder of {machine}"), || async {
        let pods = placeholders.list(&ListParams::default()).await?;
        let mut pods = pods
            .items
            .iter()
            .filter_map(|pod| pod.metadata.name.as_deref());
        ensure!(pods.any(|name| name.starts_with(&prefix)));
        Ok(())
    })
    .await
}
