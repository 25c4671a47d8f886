//! Root disks of images that follow a tag: their sizes, and claims of owners.
//!
//! Invariant: a disk stays what it was made of.
//! Failure: none of its own.

use super::*;

const RECORD: &str = "/metadata/annotations/vmlet.dev~1root-claim-uid";

async fn restart(bench: &mut Bench) {
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
}

fn image_of_pod(bench: &Bench) -> Value {
    bench.pod()["spec"]["containers"][0]["image"].take()
}

/// The UID of the claim, and the one on record at the machine.
fn claims(bench: &Bench) -> [Value; 2] {
    let claim = bench.get(CLAIMS, "data")["metadata"]["uid"].take();
    let recorded = bench.get(VMS, "vm").pointer(RECORD).cloned();
    [claim, recorded.unwrap_or_default()]
}

#[tokio::test]
async fn the_size_of_a_version_counts_from_the_write_that_lets_machines_use_it() {
    let mut bench = cluster(&["n1"], json!({}));
    pass(&mut bench).await.ok();
    bench.machine(json!({}));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_none());
    finds(&mut bench, 'a');
    // One write: properties and name of the image follow with the next one.
    pass(&mut bench).await.ok();
    assert!(status(&bench)["disks"].is_null());
    bench.settle().await.ok();
    let placeholder = bench.placeholder("vm").unwrap();
    let resources = &placeholder["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"]["ephemeral-storage"], "2Gi");
}

#[tokio::test]
async fn the_size_of_a_disk_is_recorded_before_its_version_is_forgotten() {
    let mut bench = with_first(&["n1"], json!({ "retain": 0 })).await;
    Box::pin(bench.provisioning(json!({}))).await;
    comes_into_use(&mut bench, "1", 'b').await;
    assert_eq!(versions(&bench), "b! >b");
    bench.task_ends("Provision", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.vm().status.unwrap().image, Some(named('a')));
    assert_eq!(size(&bench), json!("2Gi"));
}

#[tokio::test]
async fn an_attempt_with_another_version_records_the_size_of_that_one() {
    let mut bench = with_first(&["n1"], json!({})).await;
    Box::pin(bench.provisioning(json!({}))).await;
    assert_eq!(size(&bench), json!("2Gi"));
    let task = bench.task("Provision");
    let failed = json!({ "state": "Error", "message": "disk full", "transient": true });
    ends(&mut bench, &task, failed);
    bench.settle().await.ok();
    comes_into_use(&mut bench, "1", 'b').await;
    bench.settle().await.ok();
    assert_eq!(
        bench.status().node_name.as_deref(),
        Some("n1"),
        "still on record"
    );
    // kubelet confirms the end of the one for the former version.
    let former = bench.placeholder("vm").unwrap()["metadata"].take();
    assert!(!former["deletionTimestamp"].is_null(), "{former}");
    bench.placeholder_is_gone("vm");
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["image"], json!(named('b')));
    assert_eq!(size(&bench), json!("3Gi"), "before the disk is there");
    bench.task_ends("Provision", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.status().image, Some(named('b')));
    assert_eq!(size(&bench), json!("3Gi"));
}

#[tokio::test]
async fn a_node_that_is_given_up_leaves_no_size_behind() {
    let mut bench = with_first(&["n1"], json!({})).await;
    Box::pin(bench.provisioning(json!({}))).await;
    bench.task_ends("Provision", "Error");
    bench.settle().await.ok();
    assert_eq!(size(&bench), json!("2Gi"));
    bench.forward(300);
    bench.settle().await.ok();
    assert_eq!(bench.status().node_name, None);
    assert_eq!(size(&bench), Value::Null);
}

/// Neither a pin nor a version that the registry has dropped keeps the guest from its disk.
#[tokio::test]
async fn a_machine_on_a_claim_of_its_owner_restarts_without_an_image_while_the_claim_is_the_same() {
    let mut bench = with_first(&["n1"], json!({})).await;
    bench.claim("data", "Bound");
    let root =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data", "root": true } });
    bench.machine(json!({ "spec": { "volumes": [root], "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert_eq!(image_of_pod(&bench), json!(named('a')));
    let [_, recorded] = claims(&bench);
    assert_eq!(recorded, Value::Null, "perhaps half filled");
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().image, Some(named('a')));
    let [first, recorded] = claims(&bench);
    assert_eq!(recorded, first);

    moves_to(&mut bench, "1", 'b').await;
    update(&mut bench, json!({ "digest": digest('b') }));
    assert_eq!(versions(&bench), "b a! >a", "no pass has seen the pin");
    restart(&mut bench).await;
    assert_eq!(image_of_pod(&bench), "vmlet.dev/none");
    let of_disk = "/metadata/annotations/vmlet.dev~1disk-image";
    assert_eq!(bench.pod().pointer(of_disk), Some(&json!(named('a'))));
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().image, Some(named('a')), "what filled it");

    let made = |time: &str| json!({ "metadata": { "creationTimestamp": time } });
    bench.remove(CLAIMS, "data");
    bench.claim("data", "Bound");
    bench.edit(CLAIMS, "data", made("2026-01-02T00:00:00Z"));
    restart(&mut bench).await;
    assert_eq!(
        image_of_pod(&bench),
        json!(named('a')),
        "the new claim is empty"
    );
    bench.run("n1");
    bench.settle().await.ok();
    let [_, recorded] = claims(&bench);
    assert_eq!(recorded, first, "a pod that is older than the claim");
    let pod = bench.pod()["metadata"]["creationTimestamp"].take();
    bench.edit(CLAIMS, "data", made(pod.as_str().unwrap()));
    bench.settle().await.ok();
    let [second, recorded] = claims(&bench);
    assert_eq!(recorded, second);
    assert_ne!(second, first);
}

#[tokio::test]
async fn a_machine_that_reverts_restarts_without_an_image_on_the_new_claim() {
    let mut bench = with_first(&["n1"], json!({})).await;
    bench.claim("data", "Bound");
    let root =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data", "root": true } });
    bench.machine(json!({ "spec": { "volumes": [root], "runStrategy": "Always" } }));
    bench.settle().await.ok();
    bench.run("n1");
    bench.settle().await.ok();
    let [first, recorded] = claims(&bench);
    assert_eq!(recorded, first);
    bench.snapshot("s", json!({}));
    bench.settle().await.ok();
    let part = &bench.get(SNAPSHOTS, "s")["status"]["claims"][0]["volumeSnapshotName"];
    let part = part.as_str().unwrap().to_owned();
    let taken = json!({ "creationTime": "2027-01-15T08:00:10Z", "readyToUse": true });
    bench.edit(VOLUME_SNAPSHOTS, &part, json!({ "status": taken }));
    bench.settle().await.ok();

    moves_to(&mut bench, "1", 'b').await;
    update(&mut bench, json!({ "digest": digest('b') }));
    let revert = json!({ "spec": { "currentSnapshotName": "s" } });
    bench.edit(VMS, "vm", revert);
    bench.settle().await.ok();
    bench.end("vm", 137, "Killed");
    bench.settle().await.ok();
    let volume = bench.get(VMS, "vm")["spec"]["volumes"][0].take();
    let name = volume["persistentVolumeClaim"]["claimName"].as_str();
    let name = name.unwrap();
    let second = bench.get(CLAIMS, name)["metadata"]["uid"].take();
    let [earlier, recorded] = claims(&bench);
    assert_eq!(recorded, second);
    assert_ne!(recorded, earlier);
    bench.edit(CLAIMS, name, json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    assert_eq!(image_of_pod(&bench), "vmlet.dev/none");
    assert_eq!(bench.status().image, Some(named('a')));
}
