//! The word in the column `STATUS` of a machine that does not get on.
//!
//! Invariant: a machine that waits for its owner, or for an administrator, is not shown as one on its way.
//! Failure: none of its own.

use crds::vm::PrintableStatus as Word;
use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::error::is_unwatched;

const NADS: &str = "network-attachment-definitions";

fn shown(bench: &Bench) -> Option<Word> {
    bench.status().printable_status
}

fn on(network: &str) -> Value {
    json!({ "network": { "interfaces": [{ "name": "a", "networkRef": network }] } })
}

#[rstest]
#[case::class(json!({ "className": "none" }), Word::ErrorClass)]
#[case::image(json!({ "imageName": "none" }), Word::ErrorImage)]
#[case::storage(json!({ "storageClass": "none" }), Word::ErrorStorage)]
#[case::network(on("none"), Word::ErrorNetwork)]
#[tokio::test]
async fn a_part_that_is_missing_gives_the_word(#[case] spec: Value, #[case] word: Word) {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": spec }));
    let text = failure(&bench.settle().await);
    assert!(text.contains("none"), "{text}");
    assert_eq!(shown(&bench), Some(word));
    assert_eq!(bench.status().message, Some(text));
}

#[tokio::test]
async fn a_class_that_is_missing_at_a_start_is_named_without_the_reason_of_its_condition() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.remove(CLASSES, "small");
    let text = failure(&bench.settle().await);
    let words = "VirtualMachineClass small does not exist in namespace ns";
    assert_eq!(text, words);
    assert_eq!(bench.status().message.as_deref(), Some(words));
}

#[tokio::test]
async fn a_quota_without_room_gives_the_word() {
    let mut bench = Bench::new();
    bench.most_pods(0);
    bench.machine(json!({}));
    assert!(failure(&bench.settle().await).contains("exceeded quota"));
    assert_eq!(shown(&bench), Some(Word::ErrorUnschedulable));
    bench.most_pods(usize::MAX);
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Some(Word::Provisioning));
}

#[tokio::test]
async fn a_pod_of_another_owner_gives_the_word_and_is_looked_at_again_by_time() {
    let mut bench = Bench::new();
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "w", "controller": true,
    });
    let foreign = json!({
        "metadata": { "name": "vm", "namespace": "ns", "ownerReferences": [owner] },
        "spec": { "containers": [] },
    });
    bench.put(PODS, foreign);
    bench.created(json!({})).await;
    let ended = bench.settle().await;
    assert!(failure(&ended).contains("ReplicaSet web controls it"));
    assert!(
        is_unwatched(&ended.unwrap_err()),
        "pods are watched by our label"
    );
    assert_eq!(shown(&bench), Some(Word::ErrorUnschedulable));
    bench.remove(PODS, "vm");
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Some(Word::Starting));
}

#[tokio::test]
async fn a_machine_type_that_its_node_lacks_gives_the_word() {
    let mut bench = Bench::new();
    bench.agent("n1", &json!({ "machineTypes": ["pc-q35-7.2"] }));
    let least = json!({ "spec": { "minMachineType": "pc-q35-99.0" } });
    bench.created(least).await;
    let ended = bench.settle().await;
    assert!(failure(&ended).starts_with("minMachineType: node n1 does not have"));
    assert!(is_unwatched(&ended.unwrap_err()));
    assert_eq!(shown(&bench), Some(Word::ErrorUnschedulable));
}

/// The same for a disk beside the root disk as for the root disk.
#[rstest]
#[case::beside_the_root_disk(false)]
#[case::of_the_root_disk(true)]
#[tokio::test]
async fn a_claim_that_does_not_exist_gives_the_word(#[case] is_root: bool) {
    let mut bench = Bench::new();
    let claim = json!({ "claimName": "dv", "root": is_root });
    let volumes = json!([{ "name": "d", "persistentVolumeClaim": claim }]);
    bench.machine(json!({ "spec": { "volumes": volumes } }));
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Some(Word::ErrorPvcNotFound));
    bench.claim("dv", "Bound");
    bench.settle().await.ok();
    let found = if is_root {
        Word::Starting
    } else {
        Word::Provisioning
    };
    assert_eq!(shown(&bench), Some(found));
}

/// What the controller may not read is no answer that an event corrects.
#[tokio::test]
async fn a_network_that_may_not_be_read_is_looked_at_again_by_time() {
    let mut bench = Bench::new();
    bench.refuse(http::Method::GET, NADS, 403, usize::MAX);
    bench.machine(json!({ "spec": on("blue") }));
    assert!(is_unwatched(&bench.settle().await.unwrap_err()));
    assert_eq!(shown(&bench), Some(Word::ErrorNetwork));
    bench.server.lock().unwrap().refusals.clear();
    let missing = bench.settle().await.unwrap_err();
    assert!(
        !is_unwatched(&missing),
        "the network's event wakes the machine"
    );
}
