//! What the garbage collector takes, and what it must leave, when a machine is deleted.
//!
//! Invariant: the collector is the real one; it has finished with a machine when it has taken an
//! object that the machine owns and nothing protects.
//! Failure: the object that was taken or held, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use e2e::foreign::definition;
use e2e::{Cluster, Control, Controller, Effect, Who, eventually, machines};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(240);
/// A storage class whose volumes no provisioner makes.
const CLASS: &str = "by-hand";
const SKIP: &str = "vmlet.dev.protected/skip-delete-platform-resource";

#[tokio::test]
#[ignore = "needs root"]
async fn the_garbage_collector_takes_what_a_machine_leaves_and_nothing_that_it_keeps() -> Result<()>
{
    let control = Control::up().await?;
    let runtime = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/runtimeclass.yaml"
    );
    control.cluster().kubectl(&["apply", "-f", runtime])?;
    // Before the collector looks which kinds there are.
    let kind = definition("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes");
    control.cluster().apply(&kind)?;
    control.start_controller_manager()?;
    let controller = control.controller("controller", &[]).await?;
    let story = async {
        let cluster = control.cluster();
        cluster.apply(&machines::class("tiny", "64Mi"))?;
        cluster.apply(&machines::image("example.com/guest"))?;
        // Claims of it wait for a pod, so that no volume is needed.
        cluster.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": CLASS }, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }))?;
        keeps(&control).await?;
        takes(&control).await?;
        takes_a_placeholder(cluster).await?;
        orphans(&control, &controller).await
    };
    let story: Result<()> = story.await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

/// All that a machine can own, as kind and name. The claim of the data volume is owned by that.
fn owned(name: &str) -> [(&'static str, String); 5] {
    [
        ("pod", name.to_owned()),
        ("virtualmachinetask", format!("{name}-task")),
        ("datavolume", format!("{name}-data")),
        ("pvc", format!("{name}-root")),
        ("pvc", format!("{name}-old")),
    ]
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "64Mi" } },
        },
    })
}

fn patch(cluster: &Cluster, what: [&str; 2], change: &Value, more: &[&str]) -> Result<()> {
    let change = change.to_string();
    let arguments = ["patch", what[0], what[1], "--type=merge", "-p", &change];
    cluster.kubectl(&[&arguments[..], more].concat()).map(drop)
}

/// Makes a machine that owns all of [`owned`]: the controller makes its pod, its root claim and its data
/// volume; CDI has handed it the claim of another one.
async fn machine_with_everything(control: &Control, name: &str) -> Result<Value> {
    let cluster = control.cluster();
    let data = format!("{name}-data");
    let old = format!("{name}-old");
    cluster.apply(&claim(&data))?;
    cluster.apply(&claim(&old))?;
    let volume = |name: &str, claim: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } });
    let spec = json!({
        "runStrategy": "Always", "storageClass": CLASS, "bootDiskCapacity": "64Mi",
        "dataVolumeTemplates": [{ "name": data, "spec": { "source": { "blank": {} } } }],
        "volumes": [volume("data", &data), volume("old", &old)],
    });
    cluster.apply(&machines::machine(name, &spec))?;
    let vm = cluster.get_json(&["virtualmachine", name])?;
    let owners = json!({ "metadata": { "ownerReferences": [owner(&vm)] } });
    patch(cluster, ["pvc", &old], &owners, &[])?;
    eventually(SOON, "the data volume", || async {
        cluster.get_json(&["datavolume", &data])
    })
    .await?;
    let volume = cluster.get_json(&["datavolume", &data])?;
    let mut by_volume = owner(&volume);
    by_volume["apiVersion"] = volume["apiVersion"].clone();
    by_volume["kind"] = volume["kind"].clone();
    let owners = json!({ "metadata": { "ownerReferences": [by_volume] } });
    patch(cluster, ["pvc", &data], &owners, &[])?;
    let filled = json!({ "status": { "phase": "Succeeded" } });
    patch(
        cluster,
        ["datavolume", &data],
        &filled,
        &["--subresource=status"],
    )?;
    eventually(SOON, "the pod", || async {
        cluster.get_json(&["pod", name])
    })
    .await?;
    make_task(control, &vm, &format!("{name}-task")).await?;
    for (kind, name) in owned(name) {
        let object = cluster.get_json(&[kind, &name])?;
        ensure!(is_owned(&object, &vm), "{object}");
    }
    mark(cluster, &vm)?;
    Ok(vm)
}

fn is_owned(object: &Value, vm: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["uid"] == vm["metadata"]["uid"])
}

fn skip_delete(cluster: &Cluster, name: &str) -> Result<()> {
    let skip = json!({ "metadata": { "annotations": { SKIP: "" } } });
    patch(cluster, ["virtualmachine", name], &skip, &[])?;
    cluster
        .kubectl(&["delete", "virtualmachine", name, "--wait=false"])
        .map(drop)
}

/// All of a machine outlives it when it is deleted without its platform resources.
async fn keeps(control: &Control) -> Result<()> {
    let cluster = control.cluster();
    let vm = machine_with_everything(control, "kept").await?;
    skip_delete(cluster, "kept")?;
    collected(cluster, "kept").await?;
    let of_volume = ("pvc", "kept-data".to_owned());
    for (kind, name) in owned("kept").into_iter().chain([of_volume]) {
        let object = cluster.get_json(&[kind, &name])?;
        ensure!(!is_owned(&object, &vm), "{object}");
        ensure!(
            object["metadata"]["deletionTimestamp"].is_null(),
            "{object}"
        );
    }
    Ok(())
}

/// A machine that is deleted takes all of that along, and so does its data volume its claim.
async fn takes(control: &Control) -> Result<()> {
    let cluster = control.cluster();
    machine_with_everything(control, "taken").await?;
    cluster.kubectl(&["delete", "virtualmachine", "taken", "--wait=false"])?;
    collected(cluster, "taken").await?;
    let of_volume = ("pvc", "taken-data".to_owned());
    for (kind, name) in owned("taken").into_iter().chain([of_volume]) {
        gone(cluster, kind, &name).await?;
    }
    Ok(())
}

/// A placeholder holds nothing that is worth keeping.
async fn takes_a_placeholder(cluster: &Cluster) -> Result<()> {
    cluster.apply(&machines::machine(
        "waiting",
        &json!({ "runStrategy": "Always" }),
    ))?;
    let vm = cluster.get_json(&["virtualmachine", "waiting"])?;
    let uid = vm["metadata"]["uid"].as_str().unwrap_or_default();
    let name = format!("waiting{}{uid}", crds::names::PLACEHOLDER_OF);
    eventually(SOON, "the placeholder", || async {
        cluster.get_json(&["pod", &name])
    })
    .await?;
    skip_delete(cluster, "waiting")?;
    gone(cluster, "pod", &name).await
}

async fn gone(cluster: &Cluster, kind: &str, name: &str) -> Result<()> {
    eventually(SOON, &format!("the end of {kind} {name}"), || async {
        let left = cluster.kubectl(&["get", kind, name, "--ignore-not-found", "-o", "yaml"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// A task of the machine, as the controller makes one.
async fn make_task(control: &Control, vm: &Value, name: &str) -> Result<()> {
    let who = Who::service_account("vmlet-system", "vmlet-controller");
    let objects = control.objects_as(&who, "default")?;
    let metadata = &vm["metadata"];
    let task = json!({
        "metadata": { "name": name, "ownerReferences": [owner(vm)] },
        "spec": {
            "nodeName": "n", "vmName": metadata["name"], "vmUID": metadata["uid"], "kind": "Save",
        },
    });
    let made = objects.create("VirtualMachineTask", &task, Effect::Real);
    made.await?.map_err(Error::msg).map(drop)
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
    make_task(control, &vm, "t").await?;
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
