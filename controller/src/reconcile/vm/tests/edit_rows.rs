//! Edits of a machine that has no node on record, and no disk.
//!
//! Invariant: until something is made of a specification, what is made follows it.
//! Failure: none of its own.

use http::Method;
use podspec::url_image_name;
use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::config::Config;

const OTHER: &str = "https://images.example/other.qcow2";
const BIOS: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
const INSTANCE: &str = "7b0e4a7e-2a61-4d0e-8a53-0c7a4d1b2e3f";

/// Another image than that of the machines here.
fn other_image(bench: &mut Bench) {
    let mut other = image("other");
    other["spec"]["source"]["http"]["url"] = json!(OTHER);
    bench.put(IMAGES, other);
    bench.sync();
}

fn image_of(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["image"]
}

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

/// The machine keeps its place: what was edited counts from the next pod on.
#[tokio::test]
async fn a_placeholder_stays_once_its_node_is_on_record() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.task_ends("Provision", "Error");
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
    let edit = json!({ "spec": { "nodeSelector": { "disk": "fast" } } });
    bench.edit(VMS, "vm", edit);
    bench.settle().await.ok();
    assert!(!is_deleting(&bench.placeholder("vm").unwrap()));
}

#[rstest]
#[case::image(json!({ "imageName": "other" }))]
#[case::affinity(json!({ "affinity": { "podAntiAffinity": {} } }))]
#[case::size_of_the_disk(json!({ "bootDiskCapacity": "1Gi" }))]
#[tokio::test]
async fn a_placeholder_on_a_node_follows_edits_before_a_disk_is_made(#[case] edit: Value) {
    let mut bench = Bench::new();
    other_image(&mut bench);
    bench.machine(json!({ "spec": { "bootDiskCapacity": "2Gi" } }));
    bench.settle().await.ok();
    let first = bench.placeholder("vm").unwrap();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().node_name, None);

    bench.edit(VMS, "vm", json!({ "spec": edit }));
    bench.settle().await.ok();
    assert!(is_deleting(&bench.placeholder("vm").unwrap()));
    bench.placeholder_is_gone("vm");
    bench.settle().await.ok();
    let second = bench.placeholder("vm").unwrap();
    assert_ne!(second["metadata"]["uid"], first["metadata"]["uid"]);
    assert_ne!(second["spec"], first["spec"]);
    assert!(second["spec"]["nodeName"].is_null());
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    let task = bench.task("Provision");
    assert_eq!(task["spec"]["image"], *image_of(&second));
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
}

/// Its kubelet confirms no end.
#[tokio::test]
async fn an_outdated_placeholder_on_a_lost_node_is_made_again_at_once() {
    let mut bench = Bench::new();
    other_image(&mut bench);
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.node("n1", false);
    bench.edit(VMS, "vm", json!({ "spec": { "imageName": "other" } }));
    bench.settle().await.ok();
    let second = bench.placeholder("vm").unwrap();
    assert_eq!(*image_of(&second), json!(url_image_name(OTHER)));
}

/// The watch of machines may be behind.
#[tokio::test]
async fn no_disk_is_made_of_an_image_that_was_edited_away() {
    let mut bench = Bench::new();
    other_image(&mut bench);
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.edit_unseen(VMS, "vm", json!({ "spec": { "imageName": "other" } }));
    let result = bench.pass().await;
    assert!(is_conflict(&result), "{result:?}");
    assert_eq!(bench.status().node_name, None);
    assert!(bench.tasks("Provision").is_empty());

    bench.settle().await.ok();
    bench.placeholder_is_gone("vm");
    bench.settle().await.ok();
    let placeholder = bench.placeholder("vm").unwrap();
    assert_eq!(*image_of(&placeholder), json!(url_image_name(OTHER)));
}

/// What the owner chose last before a node began with the disk is what the guest boots with.
#[tokio::test]
async fn uuids_follow_edits_until_a_disk_is_made_and_then_stay() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    let first = bench.status();
    let placeholder = bench.placeholder("vm").unwrap();
    let edit = json!({ "spec": { "biosUUID": BIOS, "instanceUUID": INSTANCE } });
    bench.edit(VMS, "vm", edit.clone());
    bench.settle().await.ok();
    assert_eq!(bench.status().bios_uuid.as_deref(), Some(BIOS));
    assert_eq!(bench.status().instance_uuid.as_deref(), Some(INSTANCE));
    // The scheduler does not go by them.
    assert_eq!(bench.placeholder("vm").unwrap(), placeholder);

    let withdrawn = json!({ "spec": { "biosUUID": null, "instanceUUID": null } });
    bench.edit(VMS, "vm", withdrawn);
    bench.settle().await.ok();
    assert_eq!(bench.status().bios_uuid, first.bios_uuid);
    assert_eq!(bench.status().instance_uuid, first.instance_uuid);

    bench.edit(VMS, "vm", edit);
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    bench.task_ends("Provision", "Success");
    bench.settle().await.ok();
    let booted_with = |bench: &Bench| {
        let annotations = bench.pod()["metadata"]["annotations"].clone();
        let uuids = ["vmlet.dev/bios-uuid", "vmlet.dev/instance-uuid"];
        uuids.map(|key| annotations[key].clone())
    };
    assert_eq!(booted_with(&bench), [json!(BIOS), json!(INSTANCE)]);

    // The API server refuses that by now. A controller that sees it all the same keeps what is recorded.
    let late = json!({ "spec": { "biosUUID": INSTANCE, "instanceUUID": BIOS } });
    bench.edit(VMS, "vm", late);
    bench.settle().await.ok();
    assert_eq!(bench.status().bios_uuid.as_deref(), Some(BIOS));
    assert_eq!(bench.status().instance_uuid.as_deref(), Some(INSTANCE));
}

/// The watch of machines may be behind.
#[tokio::test]
async fn no_disk_is_made_for_a_uuid_that_was_edited_away() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.edit_unseen(VMS, "vm", json!({ "spec": { "instanceUUID": INSTANCE } }));
    let result = bench.pass().await;
    assert!(is_conflict(&result), "{result:?}");
    assert!(bench.tasks("Provision").is_empty());

    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n1");
    assert_eq!(bench.status().instance_uuid.as_deref(), Some(INSTANCE));
}

/// Nothing is made of it while it waits for others to be made.
#[tokio::test]
async fn a_machine_that_waits_for_a_slot_of_its_node_can_be_edited() {
    let mut config = Config::default();
    config.machines.creates_per_node = 1;
    let mut bench = Bench::with(config);
    other_image(&mut bench);
    bench.provisioning(json!({})).await;
    bench.key.name = "two".to_owned();
    bench.machine_named("two", json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("two", "n1");
    bench.placeholder_runs("two");
    bench.settle().await.ok();
    assert_eq!(bench.tasks("Provision").len(), 1);
    assert!(bench.get(VMS, "two")["status"]["nodeName"].is_null());
    bench.edit(VMS, "two", json!({ "spec": { "imageName": "other" } }));
    bench.settle().await.ok();
    assert!(is_deleting(&bench.placeholder("two").unwrap()));
}

#[tokio::test]
async fn a_machine_whose_node_cannot_be_recorded_gets_no_disk() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.refuse(Method::PATCH, "virtualmachines/vm/status", 500, 1);
    failure(&bench.pass().await);
    assert_eq!(bench.status().node_name, None);
    assert!(bench.tasks("Provision").is_empty());
    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn a_machine_that_is_deleted_while_its_node_is_recorded_gets_no_disk() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    let deleted = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit_unseen(VMS, "vm", deleted);
    let result = bench.pass().await;
    assert!(is_conflict(&result), "{result:?}");
    assert!(bench.tasks("Provision").is_empty());
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
