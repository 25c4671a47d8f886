//! Machines that revert to new claims of a snapshot.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

/// A snapshot that can be used.
async fn ready() -> Bench {
    let mut bench = requested().await;
    let size = json!({ "status": { "capacity": { "storage": "2Gi" } } });
    bench.edit(CLAIMS, "data", size);
    for index in [0, 1] {
        reports(&mut bench, index, taken(true));
    }
    bench.settles().await;
    bench
}

fn to_the_snapshot() -> Value {
    json!({ "spec": { "currentSnapshotName": "s" } })
}

/// Names of the claims of the volumes of the machine.
fn claims(bench: &Bench) -> Vec<String> {
    let volumes = bench.vm().spec.volumes.into_iter();
    let claims = volumes.filter_map(|volume| volume.persistent_volume_claim);
    claims.map(|claim| claim.claim_name).collect()
}

#[tokio::test]
async fn a_machine_reverts_to_new_claims_of_the_snapshot() {
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to_the_snapshot());
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    let earlier = claims(&bench);
    assert_eq!(earlier, ["data", "logs", "iso"]);
    bench.events();
    bench.task_ends("Revert", "Success");
    // The new claims are not bound yet.
    bench.settle().await.ok();
    let now = claims(&bench);
    assert!(
        now[0].starts_with("data-") && now[1].starts_with("logs-"),
        "{now:?}"
    );
    assert_eq!(now[2], "iso", "the machine cannot write it");
    let spec = bench.get(CLAIMS, &now[0])["spec"].clone();
    assert_eq!(spec["dataSource"]["name"], part(&bench, 0));
    assert_eq!(spec["dataSource"]["apiGroup"], "snapshot.storage.k8s.io");
    assert_eq!(spec["volumeMode"], "Block");
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
    let other = bench.get(CLAIMS, &now[1])["spec"].clone();
    assert_eq!(other["storageClassName"], "sc");
    assert_eq!(other["resources"]["requests"]["storage"], "1Gi");
    for name in earlier {
        assert!(bench.try_get(CLAIMS, &name).is_some(), "{name}");
    }
    assert!(bench.vm().spec.current_snapshot_name.is_none());
    let reported = bench.reported();
    let said = reported.iter().find(|one| one.reason == "RevertSucceeded");
    let said = said.map(|one| one.message.clone()).unwrap_or_default();
    assert!(said.contains("data, logs"), "{said}");
}

#[tokio::test]
async fn a_claim_that_is_in_the_way_of_a_new_one_is_named_and_the_revert_repeated() {
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to_the_snapshot());
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    bench.refuse(Method::POST, "persistentvolumeclaims", 403, 1);
    bench.task_ends("Revert", "Success");
    let text = failure(&bench.pass().await);
    assert!(text.contains("failed to create claim data-"), "{text}");
    assert_eq!(claims(&bench), ["data", "logs", "iso"]);
    bench.server.lock().unwrap().refusals.clear();
    bench.settle().await.ok();
    assert_eq!(claims(&bench).len(), 3);
    assert!(claims(&bench)[0].starts_with("data-"));
}

#[tokio::test]
async fn an_event_says_that_the_claims_of_a_revert_that_is_given_up_are_not_those_of_the_snapshot()
{
    let mut bench = ready().await;
    bench.edit(VMS, "vm", to_the_snapshot());
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    bench.refuse(Method::POST, "persistentvolumeclaims", 403, usize::MAX);
    bench.task_ends("Revert", "Success");
    failure(&bench.pass().await);
    bench.reported();
    let name = json!({ "spec": { "currentSnapshotName": null } });
    bench.edit(VMS, "vm", name);
    bench.settle().await.ok();
    let reported = bench.reported();
    let said = reported.iter().find(|one| one.reason == "RevertEnded");
    let said = said.map(|one| one.message.clone()).unwrap_or_default();
    assert!(said.contains("claims are not those"), "{said}");
}

#[tokio::test]
async fn a_new_claim_is_like_that_of_its_volume_when_the_earlier_one_is_deleted() {
    let mut bench = ready().await;
    bench.claim("other", "Bound");
    let mut volumes = json!(bench.vm().spec.volumes);
    volumes[0]["persistentVolumeClaim"]["claimName"] = json!("other");
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": volumes } }));
    bench.remove(CLAIMS, "data");
    bench.edit(VMS, "vm", to_the_snapshot());
    bench.settle().await.ok();
    assert!(bench.status().snapshot_revert.is_some());
}

#[tokio::test]
async fn an_object_in_the_place_of_a_part_is_no_source_of_a_revert() {
    let mut bench = ready().await;
    let name = part(&bench, 0);
    bench.remove(VOLUME_SNAPSHOTS, &name);
    let foreign = json!({
        "metadata": { "name": name, "namespace": "ns" },
        "spec": { "source": { "persistentVolumeClaimName": "data" } },
        "status": taken(true),
    });
    bench.put(VOLUME_SNAPSHOTS, foreign);
    bench.edit(VMS, "vm", to_the_snapshot());
    let text = failure(&bench.pass().await);
    assert!(text.contains("claim data is not ready to use"), "{text}");
    assert!(bench.status().snapshot_revert.is_none());
}

#[tokio::test]
async fn what_a_revert_of_claims_lacks_is_said_before_anything_changes() {
    let mut bench = ready().await;
    let lost = bench.get(CLAIMS, "logs");
    bench.remove(CLAIMS, "logs");
    bench.edit(VMS, "vm", to_the_snapshot());
    let text = failure(&bench.pass().await);
    assert!(text.contains("claim logs no longer exists"), "{text}");
    bench.put(CLAIMS, lost);
    bench.sync();
    bench.refuse(Method::POST, "persistentvolumeclaims", 403, 1);
    let text = failure(&bench.pass().await);
    assert!(text.contains("failed to create claim data-"), "{text}");
    bench.server.lock().unwrap().refusals.clear();
    reports(&mut bench, 1, json!({ "readyToUse": false }));
    let text = failure(&bench.pass().await);
    assert!(text.contains("claim logs is not ready to use"), "{text}");
    assert!(bench.status().snapshot_revert.is_none());
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
}
