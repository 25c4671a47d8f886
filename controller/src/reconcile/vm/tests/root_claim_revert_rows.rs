//! Reverts of machines whose root disk is a claim: a new claim of the snapshot is their root disk.
//!
//! Invariant: no agent of a node takes part; the test is storage system and kubelet.
//! Failure: none of its own.

mod failures;

use serde_json::{Value, json};

use super::bench::*;
use super::revert_rows::to;

const REVERT: &str = "VirtualMachineSnapshotRevertSucceeded";
const RECORD: &str = "vmlet.dev/root-claim-uid";
const GENERATION: &str = "/metadata/annotations/vmlet.dev~1disk-generation";

/// A machine with its root disk in a storage class, and a claim for data, on a node without an agent.
async fn in_class(strategy: &str) -> Bench {
    let mut bench = Bench::new();
    bench.agents(&[]);
    let class = json!({
        "metadata": { "name": "sc" }, "provisioner": "p", "allowVolumeExpansion": true,
    });
    bench.put(STORAGE_CLASSES, class);
    bench.claim("data", "Bound");
    let data = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    let spec = json!({
        "runStrategy": strategy, "storageClass": "sc", "bootDiskCapacity": "945Mi", "volumes": [data],
    });
    bench.machine(json!({ "spec": spec }));
    bench.settle().await.ok();
    bind(&mut bench).await;
    bench
}

/// The storage system binds the claims.
async fn bind(bench: &mut Bench) {
    let all = bench.server.lock().unwrap().objects.clone();
    for ((collection, name), claim) in all {
        if collection == CLAIMS && claim["status"]["phase"] != "Bound" {
            bench.edit(CLAIMS, &name, json!({ "status": { "phase": "Bound" } }));
        }
    }
    bench.settle().await.ok();
}

async fn runs(bench: &mut Bench) {
    bench.run("n1");
    bench.facts(alive());
    bench.settle().await.ok();
    assert!(bench.status().image.is_some());
}

/// A snapshot `s` that can be used.
async fn taken(bench: &mut Bench) {
    bench.snapshot("s", json!({}));
    bench.settles().await;
    for claim in bench.get(SNAPSHOTS, "s")["status"]["claims"]
        .as_array()
        .unwrap()
    {
        let name = claim["volumeSnapshotName"].as_str().unwrap();
        let taken = json!({
            "creationTime": "2027-01-15T08:00:10Z", "readyToUse": true, "restoreSize": "1Gi",
        });
        bench.edit(VOLUME_SNAPSHOTS, name, json!({ "status": taken }));
    }
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Ready"), "True/Ready");
    bench.reported();
}

/// The same of a machine that runs.
async fn ready() -> Bench {
    let mut bench = in_class("Always").await;
    runs(&mut bench).await;
    taken(&mut bench).await;
    bench
}

/// The machine is powered off, and has its new claims.
async fn reverts(bench: &mut Bench) {
    bench.edit(VMS, "vm", to(Some("s")));
    bench.settles().await;
    if bench.has_pod() {
        bench.end("vm", 137, "Killed");
    }
    bench.settle().await.ok();
}

/// Names of the claims of the volumes of the machine, that of the root disk first.
fn claims(bench: &Bench) -> Vec<String> {
    let mut volumes = bench.vm().spec.volumes;
    volumes.sort_by_key(|volume| !volume.persistent_volume_claim.as_ref().unwrap().root);
    let claims = volumes.into_iter();
    let claims = claims.filter_map(|volume| volume.persistent_volume_claim);
    claims.map(|claim| claim.claim_name).collect()
}

/// All claims that there are.
fn all_claims(bench: &Bench) -> Vec<String> {
    let server = bench.server.lock().unwrap();
    let all = server.objects.keys().filter(|(kind, _)| kind == CLAIMS);
    all.map(|(_, name)| name.clone()).collect()
}

fn uid(bench: &Bench, claim: &str) -> String {
    let uid = bench.get(CLAIMS, claim)["metadata"]["uid"].take();
    uid.as_str().unwrap().to_owned()
}

fn said(bench: &mut Bench, reason: &str) -> String {
    let reported = bench.reported().into_iter();
    let mut of_it = reported.filter(|one| one.reason == reason);
    of_it.next().map(|one| one.message).unwrap_or_default()
}

fn image_of_pod(bench: &Bench) -> Value {
    bench.pod()["spec"]["containers"][0]["image"].take()
}

#[tokio::test]
async fn the_new_claim_takes_the_place_of_the_one_of_the_storage_class() {
    let mut bench = ready().await;
    let image = bench.status().image;
    reverts(&mut bench).await;
    assert!(bench.tasks("Revert").is_empty(), "no node has a part");
    assert_eq!(bench.condition_text(REVERT), "-");
    let now = claims(&bench);
    assert!(now[0].starts_with("vm-root-"), "{now:?}");
    assert!(now[1].starts_with("data-"), "{now:?}");
    let volume = &bench.get(VMS, "vm")["spec"]["volumes"][0];
    assert_eq!(volume["name"], "vmlet-root");
    assert_eq!(volume["persistentVolumeClaim"]["root"], true);
    let root = bench.get(CLAIMS, &now[0]);
    let part = &bench.get(SNAPSHOTS, "s")["status"]["claims"][0]["volumeSnapshotName"];
    assert_eq!(root["spec"]["dataSource"]["name"], *part);
    assert_eq!(root["spec"]["storageClassName"], "sc");
    assert_eq!(root["spec"]["resources"]["requests"]["storage"], "1Gi");
    let owner = &root["metadata"]["ownerReferences"][0];
    let vm = bench.get(VMS, "vm")["metadata"]["uid"].clone();
    assert_eq!((&owner["uid"], &owner["controller"]), (&vm, &json!(true)));
    let data = bench.get(CLAIMS, &now[1]);
    assert!(data["metadata"]["ownerReferences"].is_null());
    let text = said(&mut bench, "RevertSucceeded");
    assert!(text.ends_with("stay: vm-root, data"), "{text}");
    assert_eq!(all_claims(&bench).len(), 4);

    bind(&mut bench).await;
    let pod = bench.pod();
    assert_eq!(image_of_pod(&bench), "vmlet.dev/none");
    let first = uid(&bench, &now[0]);
    assert_eq!(bench.annotation("vm", RECORD), first);
    assert_eq!(pod.pointer(GENERATION), Some(&json!(first)));
    assert_eq!(bench.status().image, image);
    assert!(bench.status().current_snapshot.is_none());
    // The snapshot is still one of the machine.
    runs(&mut bench).await;
    bench.forward(1);
    reverts(&mut bench).await;
    let again = claims(&bench);
    assert_eq!(again[0].len(), now[0].len(), "{again:?}");
    assert_ne!(again[0], now[0]);
    let text = said(&mut bench, "RevertSucceeded");
    let earlier = format!("stay: {}, {}", now[0], now[1]);
    assert!(text.ends_with(&earlier), "{text}");
}

#[tokio::test]
async fn a_snapshot_after_a_revert_is_one_of_the_new_claim() {
    let mut bench = ready().await;
    reverts(&mut bench).await;
    bind(&mut bench).await;
    runs(&mut bench).await;
    let first = claims(&bench);
    bench.delete_snapshot("s");
    bench.settles().await;
    taken(&mut bench).await;
    let record = bench.get(SNAPSHOTS, "s")["status"]["claims"][0].take();
    assert_eq!(record["claimName"], json!(first[0]));
    bench.forward(1);
    reverts(&mut bench).await;
    let second = claims(&bench);
    assert_eq!(second[0].len(), first[0].len(), "{second:?}");
    assert_eq!(second.len(), 2);
    let owners = bench.get(CLAIMS, &second[0])["metadata"]["ownerReferences"].take();
    assert_eq!(owners.as_array().map(Vec::len), Some(1));
    assert_eq!(bench.annotation("vm", RECORD), uid(&bench, &second[0]));
}

#[tokio::test]
async fn a_disk_that_no_guest_had_run_from_is_filled_from_its_image_again() {
    let mut bench = in_class("Halted").await;
    taken(&mut bench).await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    let image = image_of_pod(&bench);
    runs(&mut bench).await;
    reverts(&mut bench).await;
    bind(&mut bench).await;
    assert!(!bench.has_pod(), "it was off");
    assert_eq!(bench.annotation("vm", RECORD), "-");
    assert_eq!(bench.status().image, None);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert_eq!(image_of_pod(&bench), image);
    runs(&mut bench).await;
    let root = claims(&bench)[0].clone();
    assert_eq!(bench.annotation("vm", RECORD), uid(&bench, &root));
}

#[tokio::test]
async fn a_claim_that_the_owner_named_is_replaced_by_one_without_an_owner() {
    let mut bench = Bench::new();
    bench.agents(&[]);
    bench.claim("disk", "Bound");
    let of_disk = json!({ "claimName": "disk", "root": true });
    let root = json!({ "name": "root", "persistentVolumeClaim": of_disk });
    bench.machine(json!({ "spec": { "volumes": [root] } }));
    bench.settle().await.ok();
    runs(&mut bench).await;
    taken(&mut bench).await;
    reverts(&mut bench).await;
    let volume = bench.get(VMS, "vm")["spec"]["volumes"][0].take();
    assert_eq!(volume["name"], "root");
    let name = claims(&bench)[0].clone();
    assert!(name.starts_with("disk-"), "{name}");
    assert_eq!(volume["persistentVolumeClaim"]["root"], true);
    let claim = bench.get(CLAIMS, &name);
    assert!(claim["metadata"]["ownerReferences"].is_null());
    assert_eq!(claim["spec"]["volumeMode"], "Block");
    bind(&mut bench).await;
    assert!(bench.has_pod());
    assert_ne!(image_of_pod(&bench), "vmlet.dev/none", "as before");
}

#[tokio::test]
async fn the_new_claim_grows_as_the_one_of_the_storage_class() {
    let mut bench = ready().await;
    reverts(&mut bench).await;
    bind(&mut bench).await;
    assert_eq!(bench.condition_text("Unsupported"), "-");
    bench.edit(VMS, "vm", json!({ "spec": { "bootDiskCapacity": "9Gi" } }));
    bench.settle().await.ok();
    let root = claims(&bench)[0].clone();
    let grown = bench.get(CLAIMS, &root)["spec"]["resources"]["requests"]["storage"].take();
    assert_eq!(grown, "9754Mi");
    let earlier = bench.get(CLAIMS, "vm-root")["spec"]["resources"]["requests"].take();
    assert_eq!(earlier["storage"], "1002Mi");
}

#[tokio::test]
async fn a_snapshot_of_a_disk_of_a_node_is_not_one_of_a_claim() {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.running(json!({})).await;
    bench.taken("s").await;
    bench.claim("disk", "Bound");
    let of_disk = json!({ "claimName": "disk", "root": true });
    let root = json!({ "name": "root", "persistentVolumeClaim": of_disk });
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": [root] } }));
    bench.edit(VMS, "vm", to(Some("s")));
    let text = failure(&bench.pass().await);
    assert!(
        text.contains("the root disk is claim disk, and the snapshot"),
        "{text}"
    );
    assert!(bench.status().snapshot_revert.is_none());
}
