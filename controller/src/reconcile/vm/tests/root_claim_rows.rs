//! The claim of a root disk in a storage class, and claims that are mounted.
//!
//! Invariant: the claim is made by a pass, and never by one for a claim of another owner.
//! Failure: none of its own.

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::error::is_unwatched;

const MIB: u64 = 1 << 20;

fn storage_class(bench: &mut Bench, changes: &Value) {
    let mut class = json!({ "metadata": { "name": "sc" }, "provisioner": "p" });
    json_patch::merge(&mut class, changes);
    bench.put(STORAGE_CLASSES, class);
}

fn in_class(capacity: &str) -> Value {
    json!({ "spec": {
        "runStrategy": "Always", "storageClass": "sc", "bootDiskCapacity": capacity,
    }})
}

fn requested(claim: &Value) -> &str {
    let request = &claim["spec"]["resources"]["requests"]["storage"];
    request.as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_root_disk_in_a_class_gets_a_claim_of_its_machine() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    let uid = bench.machine(in_class("945Mi"));
    bench.settle().await.ok();
    let claim = bench.get(CLAIMS, "vm-root");
    assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
    assert_eq!(claim["spec"]["storageClassName"], "sc");
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], uid);
    // With what the tables of the file system take.
    assert_eq!(requested(&claim), "1002Mi");
    assert!(!bench.has_pod());

    bench.edit(CLAIMS, "vm-root", json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    let pod = bench.pod();
    let disks = pod["metadata"]["annotations"]["vmlet.dev/file-disks"].as_str();
    let disks: Value = serde_json::from_str(disks.unwrap()).unwrap();
    assert_eq!(disks[0]["devicePath"], "/");
    let size: u64 = disks[0]["size"].as_str().unwrap().parse().unwrap();
    assert!(size >= 945 * MIB, "{size}");
    assert_eq!(bench.condition_text("Unsupported"), "-");
}

#[tokio::test]
async fn fast_deploy_of_a_root_disk_in_a_claim_is_reported() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    bench.machine(in_class("945Mi"));
    let annotations =
        |mode: Value| json!({ "metadata": { "annotations": { "vmlet.dev/fast-deploy": mode } } });
    bench.edit(VMS, "vm", annotations(json!("direct")));
    bench.settle().await.ok();
    let condition = bench.condition("UnsupportedFeatures").unwrap();
    assert_eq!(&*condition.status, "True");
    let words = "vmlet.dev/fast-deploy (the root disk is a claim";
    assert!(condition.message.contains(words), "{}", condition.message);

    bench.edit(VMS, "vm", annotations(Value::Null));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("UnsupportedFeatures"), "-");
}

/// Whose guest has run: from then on the content is the claim's.
#[tokio::test]
async fn a_claim_that_has_its_content_needs_no_image_until_it_is_made_again() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    bench.machine(in_class("945Mi"));
    bench.settle().await.ok();
    let bound = json!({ "status": { "phase": "Bound" } });
    bench.edit(CLAIMS, "vm-root", bound.clone());
    bench.settle().await.ok();
    let image = bench.pod()["spec"]["containers"][0]["image"].clone();
    bench.run("n1");
    bench.settle().await.ok();
    let starts = |strategy: &str| json!({ "spec": { "runStrategy": strategy } });
    let off = async |bench: &mut Bench| {
        bench.edit(VMS, "vm", starts("Halted"));
        bench.settle().await.ok();
        bench.end("vm", 0, "Stopped");
        bench.settle().await.ok();
        assert!(!bench.has_pod());
    };
    off(&mut bench).await;
    bench.edit(VMS, "vm", starts("Always"));
    bench.settle().await.ok();
    let pod = bench.pod();
    assert_eq!(pod["spec"]["containers"][0]["image"], "vmlet.dev/none");
    assert_eq!(
        pod["metadata"]["annotations"]["vmlet.dev/disk-image"],
        image
    );
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(json!(bench.status().image), image);

    off(&mut bench).await;
    bench.remove(CLAIMS, "vm-root");
    bench.edit(VMS, "vm", starts("Always"));
    bench.settle().await.ok();
    assert_eq!(bench.status().image, None, "the new claim is empty");
    bench.edit(CLAIMS, "vm-root", bound);
    bench.settle().await.ok();
    assert_eq!(bench.pod()["spec"]["containers"][0]["image"], image);
}

#[tokio::test]
async fn a_class_may_want_block_devices_and_let_claims_grow() {
    let mut bench = Bench::new();
    let block = json!({
        "metadata": { "annotations": { "vmlet.dev/volume-mode": "Block" } },
        "allowVolumeExpansion": true,
    });
    storage_class(&mut bench, &block);
    bench.machine(in_class("1Gi"));
    bench.settle().await.ok();
    let claim = bench.get(CLAIMS, "vm-root");
    assert_eq!(claim["spec"]["volumeMode"], "Block");
    assert_eq!(requested(&claim), "1025Mi");
    bench.edit(CLAIMS, "vm-root", json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    let container = &bench.pod()["spec"]["containers"][0];
    assert_eq!(container["volumeDevices"][0]["devicePath"], "/");

    bench.edit(VMS, "vm", json!({ "spec": { "bootDiskCapacity": "2Gi" } }));
    bench.settle().await.ok();
    assert_eq!(requested(&bench.get(CLAIMS, "vm-root")), "2049Mi");
    bench.edit(VMS, "vm", json!({ "spec": { "bootDiskCapacity": "1Gi" } }));
    bench.settle().await.ok();
    assert_eq!(requested(&bench.get(CLAIMS, "vm-root")), "2049Mi");
}

#[tokio::test]
async fn a_claim_of_another_owner_is_not_used() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    bench.claim("vm-root", "Bound");
    bench.machine(in_class("1Gi"));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineStorageReady");
    assert_eq!(found, "False/NotOwned");
    assert!(!bench.has_pod());
}

#[tokio::test]
async fn a_class_with_another_volume_mode_is_refused() {
    let mut bench = Bench::new();
    let misspelt = json!({ "metadata": { "annotations": { "vmlet.dev/volume-mode": "block" } } });
    storage_class(&mut bench, &misspelt);
    bench.machine(in_class("1Gi"));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineStorageReady");
    assert_eq!(found, "False/Invalid");
    assert!(bench.try_get(CLAIMS, "vm-root").is_none());
}

#[tokio::test]
async fn a_size_that_is_not_known_is_waited_for() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    bench.machine(json!({ "spec": { "runStrategy": "Always", "storageClass": "sc" } }));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineStorageReady");
    assert_eq!(found, "False/NotReady");
    assert!(bench.try_get(CLAIMS, "vm-root").is_none());
}

/// The image of the machine is in this claim.
fn in_claim(bench: &mut Bench, claim: &Value) {
    let source = json!({ "spec": { "source": { "http": null, "pvc": { "name": "golden" } } } });
    bench.edit(IMAGES, "debian", source);
    bench.claim("golden", "Bound");
    bench.edit(CLAIMS, "golden", claim.clone());
}

fn golden(mode: &str) -> Value {
    json!({
        "spec": { "volumeMode": mode, "storageClassName": "sc" },
        "status": { "capacity": { "storage": "2Gi" } },
    })
}

fn of_class() -> Value {
    json!({ "spec": { "runStrategy": "Always", "storageClass": "sc" } })
}

#[rstest]
#[case::a_file_system("Filesystem", None, "2Gi")]
#[case::a_block_device("Block", None, "2Gi")]
#[case::a_larger_disk("Block", Some("3Gi"), "3073Mi")]
#[case::a_smaller_disk("Filesystem", Some("1Gi"), "2Gi")]
#[tokio::test]
async fn an_image_in_a_claim_is_cloned(
    #[case] mode: &str,
    #[case] capacity: Option<&str>,
    #[case] holds: &str,
) {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    in_claim(&mut bench, &golden(mode));
    let mut vm = of_class();
    vm["spec"]["bootDiskCapacity"] = json!(capacity);
    bench.machine(vm);
    bench.settle().await.ok();
    let claim = bench.get(CLAIMS, "vm-root");
    let source = json!({ "kind": "PersistentVolumeClaim", "name": "golden" });
    assert_eq!(claim["spec"]["dataSource"], source);
    assert_eq!(claim["spec"]["volumeMode"], mode);
    assert_eq!(requested(&claim), holds);
    let image = bench.get(IMAGES, "debian");
    assert!(image["status"]["usedSince"].is_string(), "{image}");

    // The clone needs neither its source nor the image.
    bench.edit(CLAIMS, "vm-root", json!({ "status": { "phase": "Bound" } }));
    bench.remove(CLAIMS, "golden");
    bench.remove(IMAGES, "debian");
    bench.settle().await.ok();
    let container = &bench.pod()["spec"]["containers"][0];
    assert_eq!(container["image"], "vmlet.dev/none");
    assert!(
        bench
            .condition_text("VirtualMachineImageReady")
            .starts_with("True")
    );
}

#[rstest]
#[case::volumes_made_by_hand(json!({ "provisioner": "kubernetes.io/no-provisioner" }), golden("Block"))]
#[case::another_driver(json!({}), json!({ "spec": { "storageClassName": "other" } }))]
#[case::another_mode(
    json!({ "metadata": { "annotations": { "vmlet.dev/volume-mode": "Block" } } }),
    golden("Filesystem")
)]
#[tokio::test]
async fn a_class_that_makes_no_such_clone_is_refused(#[case] class: Value, #[case] claim: Value) {
    let mut bench = Bench::new();
    storage_class(&mut bench, &class);
    let other = json!({ "metadata": { "name": "other" }, "provisioner": "q" });
    bench.put(STORAGE_CLASSES, other);
    in_claim(&mut bench, &claim);
    bench.machine(of_class());
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineStorageReady");
    assert_eq!(found, "False/Invalid");
    assert!(bench.try_get(CLAIMS, "vm-root").is_none());
}

#[tokio::test]
async fn no_claim_is_made_empty_while_its_source_is_missing() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    in_claim(&mut bench, &golden("Block"));
    bench.remove(CLAIMS, "golden");
    bench.machine(in_class("1Gi"));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineImageReady");
    assert_eq!(found, "False/NotFound");
    assert!(bench.try_get(CLAIMS, "vm-root").is_none());
}

#[tokio::test]
async fn a_disk_of_a_node_is_no_clone() {
    let mut bench = Bench::new();
    in_claim(&mut bench, &golden("Block"));
    bench.machine(json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineImageReady");
    assert_eq!(found, "False/NotSupported");
    assert!(bench.placeholder("vm").is_none());
}

#[tokio::test]
async fn a_block_device_is_not_mounted_at_a_path() {
    let mut bench = Bench::new();
    bench.claim("data", "Bound");
    let of_data = json!({ "claimName": "data", "mountPath": "/srv/data" });
    bench.machine(json!({ "spec": {
        "runStrategy": "Always",
        "volumes": [{ "name": "data", "persistentVolumeClaim": of_data }],
    }}));
    let as_mode = |mode: &str| json!({ "spec": { "volumeMode": mode } });
    bench.edit(CLAIMS, "data", as_mode("Block"));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineStorageReady");
    assert_eq!(found, "False/Invalid");
    assert!(!bench.has_pod());
    bench.edit(CLAIMS, "data", as_mode("Filesystem"));
    bench.settle().await.ok();
    let found = bench.condition_text("VirtualMachineStorageReady");
    assert!(found.starts_with("True"), "{found}");
}

/// By a quota, say: no watch shows when it is raised.
#[tokio::test]
async fn a_claim_that_the_api_server_refuses_is_reported_in_its_words() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    bench.refuse(Method::POST, "persistentvolumeclaims", 403, usize::MAX);
    bench.machine(in_class("945Mi"));
    let ended = bench.settle().await;
    assert!(is_unwatched(&ended.unwrap_err()));
    let words = "write claim vm-root: refused by the test";
    assert_eq!(bench.condition("Failure").unwrap().message, words);
    let events = bench.reported();
    assert!(events.iter().any(|e| e.message == words), "{events:?}");
}

#[tokio::test]
async fn a_machine_in_a_claim_is_not_said_to_have_its_disk() {
    let mut bench = Bench::new();
    storage_class(&mut bench, &json!({}));
    bench.machine(in_class("945Mi"));
    bench.settle().await.ok();
    let made = bench.reported().into_iter();
    let made: Vec<_> = made.filter(|e| e.reason == "CreateSuccess").collect();
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].message, "the root disk is in the claim vm-root");
}
