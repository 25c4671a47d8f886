//! A machine whose disks are claims: its root disk a local volume on a loop device, a disk in a file
//! system, and a file system that it mounts. And one whose root disk is a clone of a claim.
//!
//! Invariant: the machine is that of `examples/claims.yaml`; the image is written to the volume once;
//! what the guest wrote outlives its pods, and the machine. The test is the driver of the storage
//! class: it makes the volume of the one claim that requests a clone, and nothing else.
//! Failure: the step is named; the machine, its pod and its tasks are shown.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::machine;
use e2e::{Cluster, LoopDevice};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(600);
const DOWN: Duration = Duration::from_secs(300);

/// A volume of that node for the claim of the same name.
pub(super) fn volume(name: &str, mode: &str, path: &Path, node: &str) -> Value {
    let on_node = json!({
        "key": "kubernetes.io/hostname",
        "operator": "In",
        "values": [node],
    });
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "96Mi" },
            "volumeMode": mode,
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "name": name, "namespace": "default" },
            "local": { "path": path },
            "nodeAffinity": {
                "required": { "nodeSelectorTerms": [{ "matchExpressions": [on_node] }] },
            },
        },
    })
}

/// Provisioner of the class whose volumes the test makes.
const DRIVER: &str = "e2e.vmlet.dev/copies";

/// Makes the volume that the claim of a machine requests, as a driver that clones volumes does.
async fn clone_volume(cluster: &Cluster, claim: &str, from: &Path, node: &str) -> Result<PathBuf> {
    // The controller manager names the driver after the claim exists.
    let requested = || async {
        let claimed = cluster.get_json(&["pvc", claim])?;
        let by = &claimed["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"];
        ensure!(by == DRIVER, "{claimed}");
        Ok(claimed)
    };
    let claimed = e2e::eventually(UP, "the claim of the clone", requested).await?;
    let spec = &claimed["spec"];
    ensure!(
        spec["dataSource"]["kind"] == "PersistentVolumeClaim",
        "{claimed}"
    );
    ensure!(spec["dataSource"]["name"] == "classed-root", "{claimed}");
    ensure!(spec["volumeMode"] == "Filesystem", "{claimed}");
    let copy = directory(cluster, claim)?;
    fs::copy(from.join("disk.img"), copy.join("disk.img"))?;
    let mut made = volume(claim, "Filesystem", &copy, node);
    made["spec"]["storageClassName"] = json!("classed");
    cluster.apply(&made)?;
    Ok(copy)
}

/// A directory of the node for a file system of a claim.
pub(super) fn directory(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let path = cluster.stack().dir().join("claims").join(name);
    fs::create_dir_all(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(path)
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_in_a_claim_keeps_its_disk_over_pods() -> Result<()> {
    let device = LoopDevice::new(96)?;
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    let data = directory(&cluster, "data")?;
    let files = directory(&cluster, "files")?;
    let mut items = vec![
        volume("disk", "Block", device.path(), node),
        volume("data", "Filesystem", &data, node),
        volume("files", "Filesystem", &files, node),
    ];
    // This one waits for the claim of a machine.
    let root = directory(&cluster, "root")?;
    let mut classed = volume("classed-root", "Filesystem", &root, node);
    classed["spec"]["storageClassName"] = json!("classed");
    items.extend([
        classed,
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": "classed" },
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
        }),
    ]);
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
    let classed = json!({ "powerState": "PoweredOn", "storageClass": "classed" });
    cluster.apply(&machine("classed", &classed))?;
    cluster.apply(&e2e::example("claims.yaml")?)?;
    let name = "claims";
    cluster.await_word(name, "Running", UP).await?;
    let vm = cluster.vm(name)?;
    let unique = vm["status"]["uniqueID"].as_str().unwrap_or_default();
    ensure!(unique.starts_with("pvc/"), "{vm}");
    let conditions = vm["status"]["conditions"].to_string();
    ensure!(!conditions.contains("volumes"), "{conditions}");
    let write = "echo kept >/boot/note && sync";
    cluster.run_inside(name, &["sh", "-c", write], UP).await?;

    // Of the 96 MiB of a file system a disk gets 94.5 %, in whole MiB.
    let write = "printf %s kept | dd of=/dev/vdb 2>/dev/null && sync && echo shared >/srv/files/note && \
                 cat /sys/block/vdb/size";
    let sectors = cluster.run_inside(name, &["sh", "-c", write], UP).await?;
    ensure!(sectors == (90 * 2048).to_string(), "{sectors} sectors");
    ensure!(fs::read_to_string(files.join("note"))? == "shared\n");
    let disk = fs::read(data.join("disk.img"))?;
    ensure!(
        disk.starts_with(b"kept"),
        "the guest's bytes are not in the file"
    );

    let first = cluster.pod_uid(name)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word(name, "Stopped", DOWN).await?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    cluster.patch_vm(name, &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word(name, "Running", UP).await?;
    ensure!(first != cluster.pod_uid(name)?, "the pod is the same");
    let read = "cat /boot/note /srv/files/note && head -c 4 /dev/vdb";
    let note = cluster.run_inside(name, &["sh", "-c", read], UP).await?;
    ensure!(note == "kept\nshared\nkept", "the disks say {note:?}");

    cluster.delete(&format!("vm/{name}"), DOWN)?;
    cluster.await_gone(&format!("pod/{name}"), DOWN)?;
    for claim in ["disk", "data", "files"] {
        let phase = &cluster.get_json(&["pvc", claim])?["status"]["phase"];
        ensure!(phase == "Bound", "{claim} went with the machine: {phase}");
    }
    // The claim of a root disk in a class goes with its machine; its volume is retained.
    cluster.await_word("classed", "Running", UP).await?;
    let claim = cluster.get_json(&["pvc", "classed-root"])?;
    ensure!(claim["status"]["phase"] == "Bound", "{claim}");
    let write = "echo golden >/boot/note && sync";
    cluster
        .run_inside("classed", &["sh", "-c", write], UP)
        .await?;
    cluster.patch_vm("classed", &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word("classed", "Stopped", DOWN).await?;
    let copy = a_clone_lives_on_its_own(&cluster, &root, node).await?;
    cluster.delete("vm/classed", DOWN)?;
    cluster.await_gone("pvc/classed-root", DOWN)?;
    let disk = fs::metadata(root.join("disk.img"))?;
    ensure!(disk.len() >= 64 << 20, "{disk:?}");
    ensure!(
        copy.join("disk.img").exists(),
        "the volume of the clone is retained"
    );
    for name in ["classed-root", "clone-root"] {
        cluster.delete(&format!("pv/{name}"), DOWN)?;
    }
    let head = device.head().context("the device")?;
    ensure!(head.starts_with("vmlet-root 1 whole sha256:"), "{head}");
    for name in ["disk", "data", "files"] {
        cluster.delete(&format!("pvc/{name}"), DOWN)?;
        cluster.delete(&format!("pv/{name}"), DOWN)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

/// A machine whose image is the claim of another one starts from a clone of it, also after the image is
/// gone.
async fn a_clone_lives_on_its_own(cluster: &Cluster, root: &Path, node: &str) -> Result<PathBuf> {
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": "golden", "namespace": "default" },
        "spec": { "source": { "pvc": { "name": "classed-root" } } },
    }))?;
    let spec = json!({
        "imageName": "golden", "powerState": "PoweredOn", "storageClass": "classed",
    });
    cluster.apply(&machine("clone", &spec))?;
    let copy = clone_volume(cluster, "clone-root", root, node).await?;
    cluster.await_word("clone", "Running", UP).await?;
    let edit = "cat /boot/note && echo edited >/boot/note && sync";
    let note = cluster.run_inside("clone", &["sh", "-c", edit], UP).await?;
    ensure!(note == "golden", "the clone says {note:?}");

    cluster.patch_vm("clone", &json!({ "powerState": "PoweredOff" }))?;
    cluster.await_word("clone", "Stopped", DOWN).await?;
    cluster.delete("vmimage/golden", DOWN)?;
    cluster.patch_vm("clone", &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_word("clone", "Running", UP).await?;
    let note = cluster
        .run_inside("clone", &["cat", "/boot/note"], UP)
        .await?;
    ensure!(note == "edited", "the clone says {note:?}");
    cluster.delete("vm/clone", DOWN)?;
    cluster.await_gone("pvc/clone-root", DOWN)?;
    Ok(copy)
}
