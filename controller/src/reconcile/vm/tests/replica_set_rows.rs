//! Replica sets: what passes over one write.
//!
//! Invariant: machines become ready, and go, only where a test says so.
//! Failure: none of its own.

use http::Method;
use serde_json::{Value, json};

use super::bench::*;

mod updates;

pub(super) const FAILURE: &str = "ReplicaFailure";

/// A set with that many machines that exist and are ready.
pub(super) async fn ready_set(replicas: u32, changes: Value) -> Bench {
    let mut bench = Bench::new();
    bench.set(replicas, &changes);
    bench.settled_set().await;
    for index in 0..replicas {
        bench.machine_is_ready(&format!("web-{index}"), "True");
    }
    bench.sync();
    bench.settled_set().await;
    bench
}

/// The machines that are being deleted are gone.
fn gone(bench: &mut Bench, names: &[&str]) {
    names.iter().for_each(|name| bench.remove(VMS, name));
    bench.sync();
}

#[tokio::test]
async fn a_new_set_has_its_machines_and_says_so() {
    let mut bench = Bench::new();
    bench.set(2, &json!({}));
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1");
    let vm = bench.get(VMS, "web-1");
    let labels = &vm["metadata"]["labels"];
    assert_eq!(labels["app"], "web");
    assert_eq!(labels["vmlet.dev/replica-set"], "web");
    assert_eq!(labels["vmlet.dev/replica-index"], "1");
    let set = bench.get(SETS, "web");
    let revision = &set["status"]["updateRevision"];
    assert_eq!(labels["vmlet.dev/template-revision"], *revision);
    let owner = &vm["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], set["metadata"]["uid"]);
    assert_eq!(
        (&owner["controller"], &owner["blockOwnerDeletion"]),
        (&json!(true), &json!(true))
    );
    let pods = &vm["spec"]["template"]["metadata"]["labels"];
    assert_eq!(pods["app"], "web", "an autoscaler finds the pods by it");
    assert_eq!(set["status"]["selector"], "app=web");
    assert_eq!(
        set["status"]["observedGeneration"],
        set["metadata"]["generation"]
    );
    assert_eq!(bench.numbers(), [2, 0, 0, 2]);
    assert_eq!(
        bench.set_condition("Ready"),
        "False ReplicasNotAvailable 0 of 2 machines are available"
    );
    bench.machine_is_ready("web-0", "True");
    bench.machine_is_ready("web-1", "True");
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.numbers(), [2, 2, 2, 2]);
    assert_eq!(bench.set_condition("Ready"), "True Ready ");
    bench.writes();
    assert!(is_quiet(&bench.set_settles().await));
    assert_eq!(
        bench.writes(),
        [""; 0],
        "a set as it is to be writes nothing"
    );
}

#[tokio::test]
async fn a_store_that_lags_makes_no_machine_twice_and_deletes_no_second_one() {
    let mut bench = Bench::new();
    bench.set(2, &json!({}));
    assert!(bench.blind_set_pass().await.is_ok());
    for name in ["web-0", "web-1"] {
        let new = json!({ "metadata": { "creationTimestamp": bench.time() } });
        bench.edit_unseen(VMS, name, new);
    }
    bench.blind_set_pass().await.unwrap_err();
    assert_eq!(bench.set_condition(FAILURE), "-", "the store is behind");
    bench.sync();
    assert_eq!(bench.machines(), "web-0 web-1");
    for name in ["web-0", "web-1"] {
        let kept = json!({ "metadata": { "finalizers": ["vmlet.dev/virtualmachine"] } });
        bench.edit(VMS, name, kept);
        bench.machine_is_ready(name, "True");
    }
    bench.sync();
    bench.settled_set().await;
    let rolling = json!({
        "updateStrategy": { "type": "RollingUpdate" },
        "template": { "spec": { "className": "large" } },
    });
    bench.edit_set(&rolling);
    bench.sync();
    assert!(bench.blind_set_pass().await.is_ok());
    assert_eq!(bench.machines(), "web-0 (web-1)");
    // The one that is deleted would be available as far as the store shows, and the other one fails.
    bench.machine_is_ready("web-0", "False");
    bench.see("web-0");
    for _ in 0..3 {
        bench.blind_set_pass().await.ok();
        assert_eq!(bench.machines(), "web-0 (web-1)");
    }
}

#[tokio::test]
async fn a_name_that_the_store_never_shows_is_taken() {
    let mut bench = Bench::new();
    bench.set(2, &json!({}));
    assert!(bench.blind_set_pass().await.is_ok());
    bench.see("web-0");
    bench.see_set();
    let result = bench.blind_set_pass().await;
    assert_eq!(seconds(&result), Some(90));
    let text = "True NameTaken a machine web-1 exists, and this version of Vmlet cannot read it";
    assert_eq!(bench.set_condition(FAILURE), text);
}

#[tokio::test]
async fn a_pass_makes_a_bounded_number_of_machines() {
    let mut bench = Bench::new();
    bench.set(40, &json!({}));
    assert!(bench.set_pass().await.is_ok());
    assert_eq!(bench.numbers()[0], 0);
    assert_eq!(bench.machines().split(' ').count(), 32);
    bench.settled_set().await;
    assert_eq!(bench.numbers()[0], 40);
}

#[tokio::test]
async fn fewer_machines_are_those_with_the_lowest_indices() {
    let mut bench = ready_set(3, json!({})).await;
    bench.edit_set(&json!({ "replicas": 1 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0");
    assert_eq!(bench.numbers(), [1, 1, 1, 1]);
    bench.edit_set(&json!({ "replicas": 2 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1");
}

#[tokio::test]
async fn the_set_is_read_again_before_a_machine_is_deleted() {
    for change in [
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"] } }),
        json!({ "metadata": { "annotations": { "vmlet.dev/paused": "" } } }),
        json!({ "spec": { "replicas": 3 } }),
    ] {
        let mut bench = ready_set(3, json!({})).await;
        bench.edit_set(&json!({ "replicas": 1 }));
        bench.sync();
        bench.edit_unseen(SETS, "web", change.clone());
        assert!(is_conflict(&bench.blind_set_pass().await), "{change}");
        bench.sync();
        bench.settled_set().await;
        assert_eq!(bench.machines(), "web-0 web-1 web-2", "{change}");
    }
}

#[tokio::test]
async fn a_machine_that_changed_meanwhile_is_not_deleted() {
    let mut bench = ready_set(1, json!({})).await;
    bench.edit_set(&json!({ "replicas": 0 }));
    bench.sync();
    bench.edit_unseen(
        VMS,
        "web-0",
        json!({ "metadata": { "labels": { "app": "mine" } } }),
    );
    assert!(is_conflict(&bench.blind_set_pass().await));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0", "released, and not deleted");
    let owners = &bench.get(VMS, "web-0")["metadata"]["ownerReferences"];
    assert_eq!(*owners, json!([]));
}

#[tokio::test]
async fn an_orphan_is_adopted_and_one_with_other_labels_is_released() {
    let mut bench = Bench::new();
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    bench.machine_named("web-0", labels.clone());
    bench.machine_named("web-7", labels.clone());
    bench.machine_named("other", labels);
    bench.set(2, &json!({}));
    bench.settled_set().await;
    assert_eq!(bench.machines(), "other web-0 web-1 web-7");
    let uid = bench.get(SETS, "web")["metadata"]["uid"].clone();
    let owner = |bench: &Bench, name: &str| {
        bench.get(VMS, name)["metadata"]["ownerReferences"][0]["uid"].clone()
    };
    assert_eq!(owner(&bench, "web-0"), uid);
    assert_eq!(owner(&bench, "web-7"), Value::Null, "no index of the set");
    assert_eq!(owner(&bench, "other"), Value::Null);
    assert_eq!(bench.numbers(), [2, 0, 0, 1], "its template is not known");

    bench.edit(
        VMS,
        "web-0",
        json!({ "metadata": { "labels": { "app": "debug" } } }),
    );
    bench.sync();
    bench.settled_set().await;
    assert_eq!(owner(&bench, "web-0"), Value::Null);
    let text = "True NameTaken a machine web-0 exists, and is not of this set";
    assert_eq!(bench.set_condition(FAILURE), text);
    gone(&mut bench, &["web-0"]);
    bench.settled_set().await;
    assert_eq!(owner(&bench, "web-0"), uid);
    assert_eq!(bench.set_condition(FAILURE), "-");
}

#[tokio::test]
async fn an_orphan_of_a_set_that_is_being_deleted_stays_one() {
    let mut bench = Bench::new();
    bench.set(1, &json!({}));
    bench.machine_named(
        "web-0",
        json!({ "metadata": { "labels": { "app": "web" } } }),
    );
    let deleted = json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"],
    } });
    bench.edit_unseen(SETS, "web", deleted);
    assert!(is_conflict(&bench.blind_set_pass().await));
    bench.sync();
    bench.settled_set().await;
    assert!(bench.get(VMS, "web-0")["metadata"]["ownerReferences"].is_null());
}

#[tokio::test]
async fn a_machine_of_another_owner_is_left_alone() {
    let mut bench = Bench::new();
    let owner = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineReplicaSet", "name": "web",
        "uid": "0f0f0f0f-0000-4000-8000-000000000001", "controller": true,
    });
    let owned = json!({ "metadata": { "labels": { "app": "web" }, "ownerReferences": [owner] } });
    bench.machine_named("web-0", owned);
    bench.set(1, &json!({}));
    bench.settled_set().await;
    bench.edit_set(&json!({ "replicas": 0 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(
        bench.machines(),
        "web-0",
        "of a set that had this name before"
    );
    assert_eq!(bench.numbers(), [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_refused_machine_is_reported_in_the_words_of_the_api_server_and_tried_again() {
    let mut bench = Bench::new();
    bench.refuse(Method::POST, "virtualmachines", 422, 2);
    bench.set(3, &json!({}));
    bench.set_pass().await.unwrap_err();
    assert_eq!(bench.machines(), "", "one refusal is enough for a pass");
    let text = bench.set_condition(FAILURE);
    assert!(
        text.starts_with("True CreateRefused failed to create machine web-0"),
        "{text}"
    );
    assert!(text.contains("refused by the test"), "{text}");
    bench.writes();
    bench.set_pass().await.unwrap_err();
    assert_eq!(
        bench.writes(),
        [""; 0],
        "the same failure is not written again"
    );
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1 web-2");
    assert_eq!(bench.set_condition(FAILURE), "-");
}

#[tokio::test]
async fn a_namespace_that_ends_is_no_failure() {
    let mut bench = Bench::new();
    bench.set(1, &json!({}));
    bench.server.lock().unwrap().ending.push("ns".to_owned());
    assert!(bench.set_pass().await.is_ok());
    assert_eq!(bench.set_condition(FAILURE), "-");
}

#[tokio::test]
async fn a_paused_set_changes_no_machine() {
    let mut bench = ready_set(2, json!({})).await;
    bench.edit(
        SETS,
        "web",
        json!({ "metadata": { "annotations": { "vmlet.dev/paused": "" } } }),
    );
    bench.edit_set(&json!({ "replicas": 3 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1");
    assert!(
        bench
            .set_condition("Ready")
            .starts_with("False Paused 2 of 3 machines")
    );
    bench.edit_set(&json!({ "replicas": 1 }));
    bench.sync();
    bench.settled_set().await;
    assert_eq!(bench.machines(), "web-0 web-1");
}
