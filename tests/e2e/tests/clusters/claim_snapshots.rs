//! Snapshots of machines with claims, in a storage system with the snapshot controller of Kubernetes; and clones of
//! claims by it.
//!
//! Invariant: a snapshot has the data of a claim as of the time at which it was shown as created, whatever the guest
//! writes afterwards; what the storage system has of it goes with the snapshot.
//! Failure: the step is named; the logs of the storage system are among those of the cluster.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::machines::{condition, machine};
use e2e::storage::{CLASS, Storage};
use e2e::{Cluster, eventually};
use serde_json::{Value, json};

use crate::snapshots::await_taken;

const UP: Duration = Duration::from_secs(600);
const DOWN: Duration = Duration::from_secs(300);

#[tokio::test]
#[ignore = "needs root"]
async fn a_claim_of_a_snapshot_has_what_the_guest_had_written_by_then() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    // The controller finds the kinds while it runs.
    let storage = Storage::start(&cluster).await?;
    cluster.apply(&claim("data", &json!({})))?;
    let spec = json!({ "runStrategy": "Always", "volumes": [volume("data", false)] });
    cluster.apply(&machine("vm", &spec))?;
    cluster.await_word("vm", "Running", UP).await?;
    write(&cluster, "vm", "first").await?;

    take(&cluster, "s", "vm").await?;
    write(&cluster, "vm", "later").await?;
    let status = await_ready(&cluster, "s").await?;
    let part = &status["claims"][0];
    ensure!(
        part["claimName"] == "data" && part["volumeName"] == "data",
        "{status}"
    );
    ensure!(
        !status["uniqueID"].is_null(),
        "the node has no part: {status}"
    );
    let name = part["volumeSnapshotName"].as_str().unwrap_or_default();
    let stored = cluster.get_json(&["volumesnapshot", name])?;
    ensure!(
        stored["spec"]["volumeSnapshotClassName"] == CLASS,
        "{stored}"
    );
    let owner = &stored["metadata"]["ownerReferences"][0];
    ensure!(
        owner["kind"] == "VirtualMachineSnapshot" && owner["name"] == "s",
        "{stored}"
    );

    does_not_freeze(&cluster).await?;
    cluster.apply(&claim("copy", &of_snapshot(name)))?;
    let spec = json!({ "runStrategy": "Always", "volumes": [volume("copy", false)] });
    cluster.apply(&machine("reader", &spec))?;
    cluster.await_word("reader", "Running", UP).await?;
    for (machine, expected) in [("reader", "first"), ("vm", "later")] {
        let found = read(&cluster, machine).await?;
        ensure!(found == expected, "the disk of {machine} says {found:?}");
    }

    revert(&cluster, "vm", "s").await?;
    let found = read(&cluster, "vm").await?;
    ensure!(found == "first", "after the revert the disk says {found:?}");
    let replaced = cluster.vm("vm")?;
    let replaced = &replaced["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"];
    let replaced = replaced.as_str().unwrap_or_default().to_owned();
    ensure!(replaced.starts_with("data-"), "{replaced:?}");

    cluster.delete("vmsnap/s", DOWN)?;
    await_none(&storage, "snapshots").await?;
    for name in ["vm", "reader"] {
        cluster.delete(&format!("vm/{name}"), DOWN)?;
        cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    }
    root_disks(&cluster, &storage).await?;
    for name in ["data", "copy", "again", replaced.as_str()] {
        cluster.delete(&format!("pvc/{name}"), DOWN)?;
    }
    await_none(&storage, "volumes").await?;
    storage.stop()?;
    cluster.await_clean().await?;
    cluster.down()
}

/// The guest has no file system that it could freeze: no disk is taken, and its machine goes on.
async fn does_not_freeze(cluster: &Cluster) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
        "metadata": { "name": "quiesced" }, "spec": { "vmName": "vm", "quiesce": {} },
    }))?;
    eventually(UP, "the refusal of the guest", || async {
        let snapshot = cluster.get_json(&["vmsnap", "quiesced"])?;
        let created = condition(&snapshot, "VirtualMachineSnapshotCreated");
        let message = created["message"].as_str().unwrap_or_default();
        ensure!(
            created["reason"] == "VirtualMachineSnapshotCreationFailed"
                && message.contains("freeze"),
            "{created}"
        );
        let part = &snapshot["status"]["claims"][0];
        ensure!(part["requestTime"].is_null(), "{part}");
        Ok(())
    })
    .await?;
    cluster.delete("vmsnap/quiesced", DOWN)
}

/// A root disk in a claim: a snapshot of it without a part of the node, a revert to that, and a clone of the earlier
/// claim as an image.
async fn root_disks(cluster: &Cluster, storage: &Storage) -> Result<()> {
    let spec = json!({ "runStrategy": "Always", "storageClass": CLASS });
    cluster.apply(&machine("classed", &spec))?;
    cluster.await_word("classed", "Running", UP).await?;
    note(cluster, "classed", "golden").await?;
    take(cluster, "root", "classed").await?;
    note(cluster, "classed", "edited").await?;
    let later = ["sh", "-c", "touch /boot/later && sync"];
    cluster.run_inside("classed", &later, UP).await?;
    let status = await_ready(cluster, "root").await?;
    ensure!(status["uniqueID"].is_null(), "{status}");
    let part = &status["claims"][0];
    ensure!(part["claimName"] == "classed-root", "{status}");
    let name = part["volumeSnapshotName"].as_str().unwrap_or_default();

    let mut again = claim("again", &of_snapshot(name));
    let source = cluster.get_json(&["pvc", "classed-root"])?;
    again["spec"]["resources"]["requests"] = source["status"]["capacity"].clone();
    cluster.apply(&again)?;
    let spec = json!({ "runStrategy": "Always", "volumes": [volume("again", true)] });
    cluster.apply(&machine("again", &spec))?;
    cluster.await_word("again", "Running", UP).await?;
    let read = ["cat", "/boot/note"];
    let found = cluster.run_inside("again", &read, UP).await?;
    ensure!(
        found == "golden",
        "the claim of the snapshot says {found:?}"
    );
    cluster.delete("vm/again", DOWN)?;
    cluster.await_gone("pod/again", DOWN)?;

    let reverted = revert_root(cluster).await?;
    // The earlier claim has what the guest wrote after the snapshot.
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": "golden", "namespace": "default" },
        "spec": { "source": { "pvc": { "name": "classed-root" } } },
    }))?;
    let spec = json!({ "imageName": "golden", "runStrategy": "Always", "storageClass": CLASS });
    cluster.apply(&machine("clone", &spec))?;
    cluster.await_word("clone", "Running", UP).await?;
    let found = cluster.run_inside("clone", &read, UP).await?;
    ensure!(found == "edited", "the clone of the claim says {found:?}");
    cluster.delete("vm/clone", DOWN)?;
    cluster.await_gone("pvc/clone-root", DOWN)?;
    cluster.delete("vmimage/golden", DOWN)?;
    // Its snapshot goes with it, and both claims that were made for its root disk.
    cluster.delete("vm/classed", DOWN)?;
    for object in [
        "vmsnap/root",
        "pvc/classed-root",
        &format!("pvc/{reverted}"),
    ] {
        cluster.await_gone(object, DOWN)?;
    }
    await_none(storage, "snapshots").await
}

/// The machine `classed` reverts to the snapshot `root`, and boots from a new claim, of which the name is returned.
async fn revert_root(cluster: &Cluster) -> Result<String> {
    revert(cluster, "classed", "root").await?;
    let only_first = ["sh", "-c", "test ! -e /boot/later && cat /boot/note"];
    let found = cluster.run_inside("classed", &only_first, UP).await?;
    ensure!(
        found == "golden",
        "after the revert the disk says {found:?}"
    );
    let vm = cluster.vm("classed")?;
    let volume = &vm["spec"]["volumes"][0];
    let claim = &volume["persistentVolumeClaim"];
    ensure!(
        volume["name"] == "vmlet-root" && claim["root"] == true,
        "{volume}"
    );
    let name = claim["claimName"].as_str().unwrap_or_default();
    let claim = cluster.get_json(&["pvc", name])?;
    let owner = &claim["metadata"]["ownerReferences"][0];
    ensure!(owner["name"] == "classed", "{claim}");
    let pod = cluster.get_json(&["pod", "classed"])?;
    let annotations = &pod["metadata"]["annotations"];
    ensure!(
        annotations["vmlet.dev/disk-generation"] == claim["metadata"]["uid"],
        "{annotations}"
    );
    let image = &pod["spec"]["containers"][0]["image"];
    ensure!(image == "vmlet.dev/none", "{image}");
    Ok(name.to_owned())
}

/// A machine reverts to a snapshot, and runs.
async fn revert(cluster: &Cluster, name: &str, snapshot: &str) -> Result<()> {
    let first = cluster.pod_uid(name)?;
    cluster.patch_vm(name, &json!({ "currentSnapshotName": snapshot }))?;
    cluster
        .await_vm(name, "the end of the revert", UP, |vm| {
            let is_over = vm["spec"]["currentSnapshotName"].is_null()
                && vm["status"]["snapshotRevert"].is_null();
            ensure!(is_over, "{}", vm["status"]);
            Ok(())
        })
        .await?;
    eventually(UP, "the pod after the revert", || async {
        ensure!(cluster.pod_uid(name)? != first, "it is the first one");
        Ok(())
    })
    .await?;
    cluster.await_word(name, "Running", UP).await
}

fn claim(name: &str, source: &Value) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": {
            "storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "64Mi" } },
        },
    });
    if !source["name"].is_null() {
        claim["spec"]["dataSource"] = source.clone();
    }
    claim
}

fn of_snapshot(name: &str) -> Value {
    json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name })
}

fn volume(claim: &str, root: bool) -> Value {
    json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim, "root": root } })
}

/// Takes a snapshot: what the guest writes afterwards is not in it.
async fn take(cluster: &Cluster, name: &str, vm: &str) -> Result<()> {
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot",
        "metadata": { "name": name }, "spec": { "vmName": vm },
    }))?;
    await_taken(cluster, name).await.map(drop)
}

/// Waits until a snapshot can be used. Its status as of then.
async fn await_ready(cluster: &Cluster, name: &str) -> Result<Value> {
    let ready = eventually(UP, "the storage system is ready", || async {
        let snapshot = cluster.get_json(&["vmsnap", name])?;
        for kind in ["Ready", "CSISynced"] {
            let found = condition(&snapshot, &format!("VirtualMachineSnapshot{kind}"));
            ensure!(found["status"] == "True", "{}", snapshot["status"]);
        }
        Ok(snapshot["status"].clone())
    })
    .await?;
    for part in ready["claims"].as_array().into_iter().flatten() {
        ensure!(
            part["ready"] == true && !part["creationTime"].is_null(),
            "{ready}"
        );
    }
    Ok(ready)
}

/// Writes to the second disk of a guest.
async fn write(cluster: &Cluster, machine: &str, text: &str) -> Result<()> {
    let line = format!("printf %s {text} | dd of=/dev/vdb 2>/dev/null && sync");
    let run = ["sh", "-c", &line];
    cluster.run_inside(machine, &run, UP).await.map(drop)
}

/// The first five bytes of that disk.
async fn read(cluster: &Cluster, machine: &str) -> Result<String> {
    let run = ["head", "-c", "5", "/dev/vdb"];
    cluster.run_inside(machine, &run, UP).await
}

/// Writes to the root disk of a guest.
async fn note(cluster: &Cluster, machine: &str, text: &str) -> Result<()> {
    let line = format!("echo {text} >/boot/note && sync");
    let run = ["sh", "-c", &line];
    cluster.run_inside(machine, &run, UP).await.map(drop)
}

async fn await_none(storage: &Storage, kind: &str) -> Result<()> {
    eventually(
        DOWN,
        &format!("the storage system has no {kind}"),
        || async {
            let left = storage.names(kind)?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        },
    )
    .await
}
