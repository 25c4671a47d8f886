//! Scenarios of users, by their numbers, as far as they are logic.
//!
//! Invariant: one test for each number, named by it.
//! Failure: none of its own.

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::reconcile;
use crds::vm::PrintableStatus as Word;

fn shown(bench: &Bench) -> Word {
    bench.status().printable_status.unwrap()
}

/// Passes on what the stores showed before, as if the watch had stopped.
async fn blind(bench: &Bench, times: usize) {
    for _ in 0..times {
        reconcile(&bench.ctx, &bench.key).await.ok();
    }
}

#[tokio::test]
async fn s10_ten_passes_on_a_stale_store_make_one_instance() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.writes();
    blind(&bench, 10).await;
    let writes = bench.writes();
    assert_eq!(
        writes.iter().filter(|w| *w == "POST pods/vm").count(),
        1,
        "{writes:?}"
    );
    bench.sync();
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

#[tokio::test]
async fn s21_an_instance_deleted_by_a_user_is_replaced() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let old = bench.pod()["metadata"]["uid"].clone();
    bench.forward(700);
    let gone = json!({ "metadata": {
        "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30,
    }});
    bench.edit(PODS, "vm", gone);
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Word::Stopping);
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert_ne!(bench.pod()["metadata"]["uid"], old);
}

#[tokio::test]
async fn s22_nothing_is_created_while_the_node_is_silent() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.node("n1", false);
    bench.writes();
    bench.settle().await.ok();
    assert_eq!(shown(&bench), Word::Unknown);
    assert!(
        bench
            .writes()
            .iter()
            .all(|w| w.starts_with("PATCH virtualmachines"))
    );
}

#[tokio::test]
async fn s23_a_quick_change_of_mind_ends_with_one_instance() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.forward(700);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.pass().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    let writes = bench.writes();
    assert_eq!(
        writes.iter().filter(|w| *w == "DELETE pods/vm").count(),
        1,
        "{writes:?}"
    );
    assert_eq!(
        writes.iter().filter(|w| *w == "POST pods/vm").count(),
        1,
        "{writes:?}"
    );
}

#[tokio::test]
async fn s30_a_restart_survives_a_write_that_fails() {
    let mut bench = Bench::new();
    bench
        .running(json!({ "spec": { "runStrategy": "RerunOnFailure" } }))
        .await;
    bench.forward(700);
    bench.end("vm", 1, "Error");
    bench.refuse(Method::PATCH, "virtualmachines/vm/status", 500, 1);
    failure(&bench.pass().await);
    assert!(
        bench.pod()["metadata"]["deletionTimestamp"].is_null(),
        "before the intent is written"
    );
    bench.settle().await.ok();
    assert!(bench.has_pod() && bench.pod()["status"].is_null());
}

#[tokio::test]
async fn s47_a_refused_creation_shows_and_is_tried_again() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.events();
    bench.refuse(Method::POST, "pods", 403, 1);
    assert!(failure(&bench.pass().await).contains("create pod vm"));
    assert_eq!(bench.condition_text("Failure"), "True/FailedCreate");
    assert_eq!(bench.events(), ["UpdateFailure"]);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Failure"), "-");
    assert!(bench.has_pod());
}

fn with_data_volume() -> Value {
    json!({ "spec": {
        "dataVolumeTemplates": [{ "name": "dv", "spec": { "source": { "blank": {} } } }],
        "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "dv" } }],
    }})
}

#[tokio::test]
async fn s56_data_volumes_are_made_owned_and_kept() {
    let mut bench = Bench::new();
    bench.claim("dv", "Bound");
    bench.created(with_data_volume()).await;
    bench.settle().await.ok();
    let made = bench.get(DATA_VOLUMES, "dv");
    assert_eq!(made["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(bench.condition_text("DataVolumesReady"), "False/NotReady");
    assert!(!bench.has_pod());
    assert_eq!(shown(&bench), Word::Provisioning);
    bench.edit(
        DATA_VOLUMES,
        "dv",
        json!({ "status": { "phase": "Succeeded" } }),
    );
    bench.settle().await.ok();
    assert!(bench.has_pod());
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert!(bench.try_get(DATA_VOLUMES, "dv").is_some());
}

#[tokio::test]
async fn s56_without_cdi_a_condition_reports_it() {
    let mut bench = Bench::new();
    bench.claim("dv", "Bound");
    bench
        .server
        .lock()
        .unwrap()
        .unknown
        .push("cdi.kubevirt.io".to_owned());
    bench.created(with_data_volume()).await;
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("DataVolumesReady"), "False/NotServed");
    assert!(!bench.has_pod());
}

#[rstest]
#[case::by_its_name(json!({ "annotations": { "cdi.kubevirt.io/storage.populatedFor": "dv" } }))]
#[case::by_its_pod(json!({ "annotations": { "cdi.kubevirt.io/storage.pod.phase": "Succeeded" } }))]
#[tokio::test]
async fn a_data_volume_that_was_collected_is_not_made_again(#[case] metadata: Value) {
    let mut bench = Bench::new();
    bench.claim("dv", "Bound");
    bench.edit(CLAIMS, "dv", json!({ "metadata": metadata }));
    bench.created(with_data_volume()).await;
    bench.settle().await.ok();
    assert!(bench.try_get(DATA_VOLUMES, "dv").is_none());
    assert_eq!(bench.condition_text("DataVolumesReady"), "True/Filled");
    assert!(bench.has_pod());
}

#[tokio::test]
async fn s57_an_edited_machine_has_the_condition_restart_required() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "powerOffMode": "Hard" } }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("RestartRequired"), "-");
    let label = json!({ "template": { "metadata": { "labels": { "a": "b" } } } });
    bench.edit(VMS, "vm", json!({ "spec": label }));
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("RestartRequired"),
        "True/SpecificationChanged"
    );
    let status = bench.status();
    assert!(status.desired_generation > status.observed_generation);
    bench.forward(700);
    bench.end("vm", 0, "GuestShutdown");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("RestartRequired"), "-");
    let status = bench.status();
    assert_eq!(status.desired_generation, status.observed_generation);
    assert_eq!(bench.pod()["metadata"]["labels"]["a"], "b");
}

#[tokio::test]
async fn s58_a_class_that_is_missing_shows_and_the_machine_starts_when_it_appears() {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": { "className": "late" } }));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Failure"), "True/FailedCreate");
    assert_eq!(
        bench.condition_text("VirtualMachineClassReady"),
        "False/NotFound"
    );
    bench.put(CLASSES, class("late", 1));
    bench.sync();
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_some());
    assert_eq!(bench.condition_text("Failure"), "-");
}

#[tokio::test]
async fn s59_the_guest_sees_the_same_uuid_at_every_start() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let uuids = |bench: &Bench| {
        let all = bench.pod()["metadata"]["annotations"].clone();
        (
            all["vmlet.dev/bios-uuid"].clone(),
            all["vmlet.dev/instance-uuid"].clone(),
        )
    };
    let first = uuids(&bench);
    assert!(first.0.is_string() && first.0 != first.1);
    for _ in 0..3 {
        bench.forward(700);
        bench.end("vm", 0, "GuestShutdown");
        bench.settle().await.ok();
        assert_eq!(uuids(&bench), first);
        bench.run("n1");
        bench.settle().await.ok();
    }
    bench.machine_named("two", json!({}));
    bench.key.name = "two".to_owned();
    bench.settle().await.ok();
    let other = bench.get(VMS, "two")["status"]["biosUUID"].clone();
    assert!(other.is_string() && other != first.0);
}

mod ends;
mod faults;
