//! What a deletion that leaves everything leaves: pods, tasks, data volumes, claims.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

#[tokio::test]
async fn x3a_what_is_to_be_left_loses_its_owner_before_the_finalizer_goes() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    left_behind(&mut bench).await;
    bench.passes().await;
    assert!(!is_there(&bench));
    assert_eq!(bench.pod()["metadata"]["ownerReferences"], json!([]));
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert!(bench.tasks("DeleteDisk").is_empty());
    let writes = bench.writes();
    let of = |what: &str| writes.iter().position(|w| w == what).unwrap();
    assert!(
        of("PATCH pods/vm") < of("PATCH virtualmachines/vm"),
        "{writes:?}"
    );
    assert_eq!(bench.events(), Vec::<String>::new());
}

/// Nothing that the machine owned has an owner, and all of it lost it before the finalizer went.
fn assert_is_left(bench: &Bench, left: &[(&str, &str)]) {
    let writes = bench.writes();
    let of = |what: &str| writes.iter().position(|w| w == what);
    let released = of("PATCH virtualmachines/vm").unwrap();
    for (collection, name) in left {
        let object = bench.get(collection, name);
        assert_eq!(object["metadata"]["ownerReferences"], json!([]), "{name}");
        let kind = collection.rsplit('/').next().unwrap();
        let stripped = of(&format!("PATCH {kind}/{name}"));
        assert!(
            stripped.is_some_and(|at| at < released),
            "{kind}/{name}: {writes:?}"
        );
    }
}

#[tokio::test]
async fn tasks_data_volumes_and_claims_are_left_too() {
    let mut bench = Bench::new();
    for name in ["dv", "collected", "dropped"] {
        bench.claim(name, "Bound");
    }
    let volume = |name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
    let uid = bench
        .created(json!({ "spec": {
            "dataVolumeTemplates": [
                { "name": "dv", "spec": {} }, { "name": "collected", "spec": {} },
            ],
            "volumes": [volume("dv"), volume("collected")],
        } }))
        .await;
    let owners = json!([{
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "name": "vm", "uid": uid,
        "controller": true,
    }]);
    // CDI collected two volumes and handed their claims over; a template was dropped later.
    for name in ["collected", "dropped"] {
        bench.edit(
            CLAIMS,
            name,
            json!({ "metadata": { "ownerReferences": owners } }),
        );
    }
    bench.settle().await.ok();
    let volume = bench.get(DATA_VOLUMES, "dv");
    assert_eq!(volume["metadata"]["ownerReferences"][0]["uid"], uid);
    let task = bench.task("Provision")["metadata"]["name"].clone();
    left_behind(&mut bench).await;
    bench.passes().await;
    assert!(!is_there(&bench));
    let left = [
        (TASKS, task.as_str().unwrap()),
        (DATA_VOLUMES, "dv"),
        (CLAIMS, "collected"),
        (CLAIMS, "dropped"),
    ];
    assert_is_left(&bench, &left);
}

#[tokio::test]
async fn the_claim_of_a_root_disk_is_left_before_the_store_shows_it() {
    let mut bench = Bench::new();
    bench.put(
        STORAGE_CLASSES,
        json!({ "metadata": { "name": "sc" }, "provisioner": "p" }),
    );
    bench.machine(json!({ "spec": { "storageClass": "sc", "bootDiskCapacity": "1Gi" } }));
    bench.settle().await.ok();
    let claim = bench.get(CLAIMS, "vm-root");
    assert_eq!(claim["metadata"]["ownerReferences"][0]["name"], "vm");
    bench.remove(CLAIMS, "vm-root");
    left_behind(&mut bench).await;
    let place = (CLAIMS.to_owned(), "vm-root".to_owned());
    bench.server.lock().unwrap().objects.insert(place, claim);
    bench.passes().await;
    assert!(!is_there(&bench));
    assert_is_left(&bench, &[(CLAIMS, "vm-root")]);
}

#[tokio::test]
async fn x3b_what_cannot_be_left_keeps_the_machine() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    left_behind(&mut bench).await;
    bench.refuse(Method::PATCH, "pods/vm", 500, 1);
    assert!(failure(&bench.pass().await).contains("dependents"));
    assert!(is_there(&bench));
}

/// Another program changed the owners after they were read.
#[tokio::test]
async fn owners_that_changed_meanwhile_are_read_again() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    left_behind(&mut bench).await;
    bench.refuse(Method::PATCH, "pods/vm", 409, 1);
    assert!(is_conflict(&bench.pass().await));
    assert!(is_there(&bench));
    bench.passes().await;
    assert!(!is_there(&bench) && bench.has_pod());
}
