//! Claims of replica sets: who owns them, and which machines wait for one.
//!
//! Invariant: no garbage collector runs: a claim that has the set as its owner would go with the set.
//! Failure: none of its own.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;
use super::replica_set_rows::{FAILURE, ready_set};

/// A set with a claim for each machine.
fn claims(policy: Value) -> Value {
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    json!({
        "template": { "spec": { "volumes": [volume] } },
        "volumeClaimTemplates": [{ "name": "data", "size": "1Gi" }],
        "persistentVolumeClaimRetentionPolicy": policy,
    })
}

fn owner_of_claim(bench: &Bench, name: &str) -> Value {
    bench.get(CLAIMS, name)["metadata"]["ownerReferences"][0]["kind"].clone()
}

/// Claims with these names, of another set where there is a label; the watches do not show them yet.
fn claims_named(bench: &mut Bench, template: &str, count: u32, labels: &Value) {
    for index in 0..count {
        let name = format!("{template}-web-{index}");
        let meta = json!({ "name": name, "namespace": "ns", "labels": labels });
        let claim =
            json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta });
        bench.put(CLAIMS, claim);
    }
}

#[tokio::test]
async fn indices_without_a_usable_claim_hold_up_no_others() {
    let mut bench = Bench::new();
    claims_named(
        &mut bench,
        "data",
        32,
        &json!({ "vmlet.dev/replica-set": "b" }),
    );
    bench.set(40, &claims(json!({})));
    let result = bench.set_settles().await;
    assert_eq!(bench.numbers()[0], 8);
    assert_eq!(seconds(&result), Some(90), "no loop");
}

#[tokio::test]
async fn each_index_has_its_claim_which_stays() {
    let mut bench = ready_set(2, claims(json!({}))).await;
    let vm = bench.get(VMS, "web-1");
    let volume = &vm["spec"]["volumes"][0];
    assert_eq!(volume["persistentVolumeClaim"]["claimName"], "data-web-1");
    let claim = bench.get(CLAIMS, "data-web-1");
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
    assert_eq!(owner_of_claim(&bench, "data-web-1"), Value::Null);
    let uid = claim["metadata"]["uid"].clone();
    for replicas in [1, 2] {
        bench.edit_set(&json!({ "replicas": replicas }));
        bench.sync();
        bench.settled_set().await;
        assert_eq!(bench.get(CLAIMS, "data-web-1")["metadata"]["uid"], uid);
    }
    assert_eq!(bench.machines(), "web-0 web-1");
}

#[tokio::test]
async fn a_claim_goes_with_the_machine_or_the_set_where_the_policy_says_so() {
    let both = json!({ "whenScaled": "Delete", "whenDeleted": "Delete" });
    let mut bench = ready_set(2, claims(both)).await;
    assert_eq!(
        owner_of_claim(&bench, "data-web-1"),
        "VirtualMachineReplicaSet"
    );
    // The machine is not deleted before its claim is its own.
    bench.refuse(Method::PATCH, "persistentvolumeclaims/data-web-1", 500, 1);
    bench.edit_set(&json!({ "replicas": 1 }));
    bench.sync();
    bench.set_pass().await.unwrap_err();
    assert_eq!(bench.machines(), "web-0 web-1");
    bench.refuse(Method::DELETE, "virtualmachines/web-1", 500, 1);
    bench.set_pass().await.unwrap_err();
    assert_eq!(owner_of_claim(&bench, "data-web-1"), "VirtualMachine");
    // Taken back before the machine was deleted.
    bench.edit_set(&json!({ "replicas": 2 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(
        owner_of_claim(&bench, "data-web-1"),
        "VirtualMachineReplicaSet"
    );
    bench.edit_set(&json!({ "replicas": 1 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(owner_of_claim(&bench, "data-web-1"), "VirtualMachine");
    assert_eq!(
        owner_of_claim(&bench, "data-web-0"),
        "VirtualMachineReplicaSet"
    );
    // No machine is made on a claim that Kubernetes is about to delete.
    bench.edit_set(&json!({ "replicas": 2 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0");
    let text = "True ClaimNotUsable claim data-web-1 is deleted with VirtualMachine web-1";
    assert_eq!(bench.set_condition(FAILURE), text);
    bench.remove(CLAIMS, "data-web-1");
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1");
}

#[tokio::test]
async fn claims_that_are_to_be_retained_are_not_the_sets_also_without_a_machine() {
    for is_paused in [false, true] {
        let mut bench = ready_set(2, claims(json!({ "whenDeleted": "Delete" }))).await;
        bench.edit_set(&json!({ "replicas": 1 }));
        bench.sync();
        bench.settled_set().await;
        let owner = owner_of_claim(&bench, "data-web-1");
        assert_eq!(owner, "VirtualMachineReplicaSet");
        if is_paused {
            let paused = json!({ "metadata": { "annotations": { "vmlet.dev/paused": "" } } });
            bench.edit(SETS, "web", paused);
        }
        let retain = json!({ "whenDeleted": "Retain" });
        bench.edit_set(&json!({ "persistentVolumeClaimRetentionPolicy": retain }));
        bench.sync();
        bench.settled_set().await;
        for name in ["data-web-0", "data-web-1"] {
            assert_eq!(
                owner_of_claim(&bench, name),
                Value::Null,
                "{name} {is_paused}"
            );
        }
    }
}

#[tokio::test]
async fn the_set_is_read_again_before_it_owns_a_claim() {
    let mut bench = ready_set(1, claims(json!({ "whenDeleted": "Delete" }))).await;
    let deleted = json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"],
    } });
    bench.edit_unseen(SETS, "web", deleted);
    // The garbage collector orphans the claim, and the watch of claims is the first to show it.
    let orphaned = json!({ "metadata": { "ownerReferences": null } });
    bench.edit_unseen(CLAIMS, "data-web-0", orphaned);
    bench.see_claim("data-web-0");
    assert!(is_conflict(&bench.blind_set_pass().await));
    assert_eq!(owner_of_claim(&bench, "data-web-0"), Value::Null);
}

#[tokio::test]
async fn a_claim_of_another_set_is_not_used() {
    let mut bench = Bench::new();
    bench.put(
        CLAIMS,
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data-web-0", "namespace": "ns", "labels": { "vmlet.dev/replica-set": "b" },
            },
        }),
    );
    bench.set(2, &claims(json!({})));
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-1", "the other index has its machine");
    let text = "True ClaimNotUsable claim data-web-0 belongs to replica set b";
    assert_eq!(bench.set_condition(FAILURE), text);
}

/// A set with two claims for each machine.
fn two_claims() -> Value {
    let volume =
        |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
    json!({
        "template": { "spec": { "volumes": [volume("data"), volume("logs")] } },
        "volumeClaimTemplates": [
            { "name": "data", "size": "1Gi" }, { "name": "logs", "size": "1Gi" },
        ],
    })
}

#[tokio::test]
async fn an_index_with_a_claim_that_cannot_be_used_gets_no_other_claims() {
    let mut bench = Bench::new();
    claims_named(
        &mut bench,
        "logs",
        40,
        &json!({ "vmlet.dev/replica-set": "b" }),
    );
    bench.set(41, &two_claims());
    let result = bench.set_settles().await;
    assert_eq!(seconds(&result), Some(90), "no loop");
    assert_eq!(bench.machines(), "web-40");
    let is_claim = |write: &String| write.starts_with("POST persistentvolumeclaims/");
    let made: Vec<_> = bench.writes().into_iter().filter(is_claim).collect();
    assert_eq!(
        made,
        [
            "POST persistentvolumeclaims/data-web-40",
            "POST persistentvolumeclaims/logs-web-40"
        ]
    );
}

#[tokio::test]
async fn a_pass_makes_a_bounded_number_of_claims_for_machines_that_wait() {
    let mut bench = Bench::new();
    bench.set(40, &two_claims());
    claims_named(&mut bench, "logs", 40, &json!({}));
    let result = bench.blind_set_pass().await;
    assert_eq!(seconds(&result), Some(90), "no loop");
    let text =
        "True ClaimNotUsable a claim logs-web-0 exists, and this version of Vmlet cannot read it";
    assert_eq!(bench.set_condition(FAILURE), text);
    let writes = bench.writes();
    let made = |write: &&String| write.starts_with("POST persistentvolumeclaims/data-");
    assert_eq!(writes.iter().filter(made).count(), 32, "{writes:?}");
    assert_eq!(bench.machines(), "");
}

/// The set `web` with two machines, of which the user takes the last one.
async fn set_that_a_machine_leaves(policy: Value) -> Bench {
    let mut bench = ready_set(2, claims(policy)).await;
    let taken = json!({ "metadata": { "labels": { "app": "mine" } } });
    bench.edit(VMS, "web-1", taken);
    bench
}

fn owners_of_machine(bench: &Bench, name: &str) -> usize {
    let owners = &bench.get(VMS, name)["metadata"]["ownerReferences"];
    owners.as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_machine_that_is_released_takes_its_claims_with_it() {
    for deleted in ["Delete", "Retain"] {
        let mut bench = set_that_a_machine_leaves(json!({ "whenDeleted": deleted })).await;
        assert!(bench.set_pass().await.is_ok(), "no conflict of its own");
        bench.settled_set().await;
        assert_eq!(owners_of_machine(&bench, "web-1"), 0);
        assert_eq!(owner_of_claim(&bench, "data-web-1"), Value::Null);
    }
    let mut bench = set_that_a_machine_leaves(json!({ "whenDeleted": "Delete" })).await;
    bench.settled_set().await;
    let of_set = "VirtualMachineReplicaSet";
    assert_eq!(owner_of_claim(&bench, "data-web-0"), of_set);
    bench.remove(VMS, "web-1");
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1");
    assert_eq!(owner_of_claim(&bench, "data-web-1"), of_set, "it is used");
}

#[tokio::test]
async fn a_machine_is_not_released_before_its_claims() {
    let mut bench = set_that_a_machine_leaves(json!({ "whenDeleted": "Delete" })).await;
    bench.refuse(Method::PATCH, "persistentvolumeclaims/data-web-1", 500, 1);
    bench.set_pass().await.unwrap_err();
    assert_eq!(owners_of_machine(&bench, "web-1"), 1);
    assert!(
        bench
            .set_condition(FAILURE)
            .starts_with("True ClaimRefused failed to write the owner of claim data-web-1")
    );
    // The controller ends between the two writes.
    bench.refuse(Method::PATCH, "virtualmachines/web-1", 500, 1);
    bench.set_pass().await.unwrap_err();
    assert_eq!(owner_of_claim(&bench, "data-web-1"), Value::Null);
    assert_eq!(owners_of_machine(&bench, "web-1"), 1);
    bench.settled_set().await;
    assert_eq!(owners_of_machine(&bench, "web-1"), 0);
    assert_eq!(owner_of_claim(&bench, "data-web-1"), Value::Null);
}

#[tokio::test]
async fn claims_of_a_machine_that_is_not_the_sets_are_not_deleted_with_the_set() {
    let mut bench = ready_set(2, claims(json!({ "whenDeleted": "Delete" }))).await;
    // Its user takes it in one step: by its labels, or from beyond the indices of the set.
    for (labels, replicas) in [(json!({ "app": "mine" }), 2), (json!({ "app": "web" }), 1)] {
        let uid = bench.get(SETS, "web")["metadata"]["uid"].clone();
        let owner = json!([{
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineReplicaSet", "name": "web",
            "uid": uid,
        }]);
        let owners = json!({ "metadata": { "ownerReferences": owner } });
        bench.edit_unseen(CLAIMS, "data-web-1", owners);
        let meta = json!({ "labels": labels, "ownerReferences": null });
        bench.edit_unseen(VMS, "web-1", json!({ "metadata": meta }));
        bench.edit_set(&json!({ "replicas": replicas }));
        bench.settled_set().await;
        assert_eq!(bench.machines(), "web-0 web-1");
        assert_eq!(owner_of_claim(&bench, "data-web-1"), Value::Null);
    }
}
