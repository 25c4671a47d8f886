//! What the garbage collector takes, and what it must leave, when a machine is deleted.
//!
//! Invariant: the collector is the real one; it has finished with a machine when it has taken an
//! object that the machine owns and nothing protects.
//! Failure: the object that was taken or held, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use e2e::{Cluster, Control, Controller, Effect, Who, eventually, machines};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(240);
const SKIP: &str = "vmlet.dev.protected/skip-delete-platform-resource";

#[tokio::test]
#[ignore = "needs root"]
async fn the_garbage_collector_takes_what_a_machine_leaves_and_nothing_that_it_keeps() -> Result<()>
{
    let control = Control::up().await?;
    control.start_controller_manager()?;
    let controller = control.controller("controller", &[]).await?;
    let story = async {
        let cluster = control.cluster();
        cluster.apply(&machines::class("tiny", "64Mi"))?;
        cluster.apply(&machines::image("example.com/guest"))?;
        cluster.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": "by-hand" }, "provisioner": "kubernetes.io/no-provisioner",
        }))?;
        keeps(cluster).await?;
        orphans(&control, &controller).await
    };
    let story: Result<()> = story.await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

/// The claim of a root disk outlives a machine that is deleted without its platform resources.
async fn keeps(cluster: &Cluster) -> Result<()> {
    let spec = json!({
        "runStrategy": "Always", "storageClass": "by-hand", "bootDiskCapacity": "64Mi",
    });
    cluster.apply(&machines::machine("kept", &spec))?;
    let claim = || cluster.get_json(&["pvc", "kept-root"]);
    eventually(SOON, "the claim of the root disk", || async { claim() }).await?;
    let vm = cluster.get_json(&["virtualmachine", "kept"])?;
    let owners = &claim()?["metadata"]["ownerReferences"];
    ensure!(owners[0]["uid"] == vm["metadata"]["uid"], "{owners}");
    mark(cluster, &vm)?;
    let skip = json!({ "metadata": { "annotations": { SKIP: "" } } }).to_string();
    cluster.kubectl(&[
        "patch",
        "virtualmachine",
        "kept",
        "--type=merge",
        "-p",
        &skip,
    ])?;
    cluster.kubectl(&["delete", "virtualmachine", "kept", "--wait=false"])?;
    collected(cluster, "kept").await?;
    let metadata = claim()?["metadata"].clone();
    ensure!(metadata["ownerReferences"].is_null(), "{metadata}");
    ensure!(metadata["deletionTimestamp"].is_null(), "{metadata}");
    Ok(())
}

/// `--cascade=orphan` is done although the machine has tasks, which only the controller and the agents
/// write.
async fn orphans(control: &Control, controller: &Controller) -> Result<()> {
    let cluster = control.cluster();
    cluster.apply(&machines::machine(
        "orphaning",
        &json!({ "runStrategy": "Halted" }),
    ))?;
    eventually(SOON, "a pass over the machine", || async {
        let vm = cluster.get_json(&["virtualmachine", "orphaning"])?;
        ensure!(vm["metadata"]["finalizers"].is_array(), "{vm}");
        Ok(())
    })
    .await?;
    let vm = cluster.get_json(&["virtualmachine", "orphaning"])?;
    let who = Who::service_account("vmlet-system", "vmlet-controller");
    let objects = control.objects_as(&who, "default")?;
    let task = json!({
        "metadata": { "name": "t", "ownerReferences": [owner(&vm)] },
        "spec": {
            "nodeName": "n", "vmName": "orphaning", "vmUID": vm["metadata"]["uid"], "kind": "Save",
        },
    });
    let made = objects.create("VirtualMachineTask", &task, Effect::Real);
    made.await?.map_err(Error::msg)?;
    let delete = [
        "delete",
        "virtualmachine",
        "orphaning",
        "--cascade=orphan",
        "--wait=false",
    ];
    cluster.kubectl(&delete)?;
    eventually(SOON, "the end of the machine", || async {
        let left = cluster.kubectl(&["get", "virtualmachine", "-o", "name"])?;
        ensure!(!left.contains("orphaning"), "{left}\n{}", controller.tail());
        Ok(())
    })
    .await?;
    let task = cluster.get_json(&["virtualmachinetask", "t"])?;
    let owners = &task["metadata"]["ownerReferences"];
    ensure!(owners.is_null(), "{owners}");
    Ok(())
}

fn owner(vm: &Value) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
        "name": vm["metadata"]["name"], "uid": vm["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Makes an object that the machine owns and nothing protects.
fn mark(cluster: &Cluster, vm: &Value) -> Result<()> {
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": vm["metadata"]["name"], "ownerReferences": [owner(vm)] },
        }))
        .map(drop)
}

/// Waits until the collector has taken that object.
async fn collected(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(SOON, "the garbage collector", || async {
        let left = cluster.kubectl(&["get", "configmap", "-o", "name"])?;
        ensure!(
            !left.lines().any(|one| one == format!("configmap/{name}")),
            "{left}"
        );
        Ok(())
    })
    .await
}
