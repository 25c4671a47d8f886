//! Edits of a machine that has neither node nor disk.
//!
//! Invariant: until something is made of a specification, what is made follows it.
//! Failure: none of its own.

use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;

fn storage_class(bench: &mut Bench, name: &str) {
    let class = json!({ "metadata": { "name": name }, "provisioner": "p" });
    bench.put(STORAGE_CLASSES, class);
}

fn is_deleting(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

#[rstest]
#[case::labels_of_nodes(json!({ "nodeSelector": { "disk": "fast" } }))]
#[case::affinity(json!({ "affinity": { "podAntiAffinity": {} } }))]
#[case::taints(json!({ "tolerations": [{ "key": "gpu", "operator": "Exists" }] }))]
#[case::priority(json!({ "priorityClassName": "low" }))]
#[case::size_of_the_disk(json!({ "bootDiskCapacity": "1Gi" }))]
#[case::class(json!({ "className": "large" }))]
#[case::claims(json!({ "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "b" } }] }))]
#[tokio::test]
async fn a_placeholder_that_no_node_has_follows_what_the_scheduler_goes_by(#[case] edit: Value) {
    let mut bench = Bench::new();
    let mut large = class("large", 1);
    large["spec"]["hardware"]["memory"] = json!("1Gi");
    bench.put(CLASSES, large);
    let volumes = json!([{ "name": "d", "persistentVolumeClaim": { "claimName": "a" } }]);
    let spec =
        json!({ "bootDiskCapacity": "2Gi", "volumes": volumes, "priorityClassName": "high" });
    bench.machine(json!({ "spec": spec }));
    bench.settle().await.ok();
    let first = bench.placeholder("vm").unwrap();
    bench.edit(VMS, "vm", json!({ "spec": { "powerOffTimeout": "1m" } }));
    bench.settle().await.ok();
    assert_eq!(bench.placeholder("vm").unwrap(), first);

    bench.edit(VMS, "vm", json!({ "spec": edit }));
    bench.settle().await.ok();
    let second = bench.placeholder("vm").unwrap();
    assert_ne!(second["metadata"]["uid"], first["metadata"]["uid"]);
    assert_ne!(second["spec"], first["spec"]);
}

/// It has its place: what was edited counts from the next pod on.
#[tokio::test]
async fn a_placeholder_on_a_node_stays() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    let edit = json!({ "spec": { "nodeSelector": { "disk": "fast" } } });
    bench.edit(VMS, "vm", edit);
    bench.settle().await.ok();
    assert!(!is_deleting(&bench.placeholder("vm").unwrap()));
}

#[tokio::test]
async fn a_machine_that_waits_for_a_node_can_still_have_its_root_disk_in_a_claim() {
    let mut bench = Bench::new();
    storage_class(&mut bench, "sc");
    bench.machine(json!({ "spec": { "bootDiskCapacity": "1Gi" } }));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_some());
    bench.edit(VMS, "vm", json!({ "spec": { "storageClass": "sc" } }));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_none());
    let claim = bench.get(CLAIMS, "vm-root");
    assert_eq!(claim["spec"]["storageClassName"], "sc");
    let created = bench.condition_text("VirtualMachineCreated");
    assert_eq!(created, "True/Provisioned");
}

/// The pass that made the claim came to no end, and the class was edited since.
#[tokio::test]
async fn a_claim_that_was_made_of_another_class_is_not_taken_for_one_of_this_class() {
    let mut bench = Bench::new();
    storage_class(&mut bench, "old");
    storage_class(&mut bench, "new");
    let spec = json!({ "bootDiskCapacity": "1Gi", "storageClass": "new" });
    let uid = bench.machine(json!({ "spec": spec }));
    bench.put(
        CLAIMS,
        json!({
            "metadata": { "name": "vm-root", "namespace": "ns", "ownerReferences": [{
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "name": "vm",
                "uid": uid, "controller": true,
            }] },
            "spec": { "storageClassName": "old", "volumeMode": "Filesystem" },
        }),
    );
    bench.sync();
    bench.settle().await.ok();
    let storage = bench.condition("VirtualMachineStorageReady").unwrap();
    assert_eq!(storage.reason, "Invalid");
    let words =
        "claim vm-root is of storage class old: set storageClass to it, or delete the claim";
    assert!(storage.message.starts_with(words), "{}", storage.message);
    assert!(bench.status().message.unwrap().starts_with(words));

    bench.edit(VMS, "vm", json!({ "spec": { "storageClass": "old" } }));
    bench.settle().await.ok();
    let created = bench.condition_text("VirtualMachineCreated");
    assert_eq!(created, "True/Provisioned");
}
