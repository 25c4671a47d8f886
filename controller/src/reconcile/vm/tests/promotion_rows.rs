//! Rows of promotion: a linked root disk is flattened, and nothing waits for it.
//!
//! Invariant: one test for each case; tasks end as a test says.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

const SYNCED: &str = crds::conditions::DISK_PROMOTION_SYNCED;
const STARTED: &str = crds::conditions::DISK_PROMOTION_STARTED;

fn mode(mode: &str) -> Value {
    json!({ "spec": { "promoteDisksMode": mode } })
}

/// A machine whose guest runs and has not answered yet, on a node that flattens disks.
async fn booting(changes: Value) -> Bench {
    let mut bench = Bench::new();
    bench.promoting();
    bench.booting(changes).await;
    bench
}

/// The same once its guest answers.
async fn running(changes: Value) -> Bench {
    let mut bench = Bench::new();
    bench.promoting();
    bench.running(changes).await;
    bench
}

/// One that is off.
async fn off(changes: Value) -> Bench {
    let mut bench = running(changes).await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    bench
}

fn text(bench: &Bench) -> String {
    bench.condition(SYNCED).unwrap().message
}

fn reported(bench: &mut Bench, status: Value) {
    let name = bench.task("Promote")["metadata"]["name"].clone();
    let name = name.as_str().unwrap().to_owned();
    bench.edit(TASKS, &name, json!({ "status": status }));
}

fn failed(bench: &mut Bench, transient: bool) {
    let now = bench.time();
    reported(
        bench,
        json!({
            "state": "Error", "transient": transient, "message": "said the node",
            "completionTime": now,
        }),
    );
}

#[tokio::test]
async fn a_disk_is_flattened_once_the_guest_answers() {
    let mut bench = booting(json!({})).await;
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert_eq!(bench.condition_text(STARTED), "False/DiskPromotionPending");
    assert!(text(&bench).contains("first boot"));
    assert!(bench.tasks("Promote").is_empty());
    bench.facts(alive());
    bench.settle().await.ok();
    let task = bench.task("Promote");
    assert_eq!(task["spec"]["nodeName"], "n1");
    assert!(task["spec"]["offline"].is_null(), "{task}");
    reported(
        &mut bench,
        json!({ "state": "Running", "progressPercent": 47 }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionRunning");
    assert_eq!(bench.condition_text(STARTED), "True/Started");
    assert!(text(&bench).ends_with("40 %"));
    bench.writes();
    reported(&mut bench, json!({ "progressPercent": 49 }));
    assert_eq!(seconds(&bench.pass().await), Some(30), "it looks again");
    assert!(bench.writes().is_empty(), "the same ten percent");
    bench.task_ends("Promote", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/Promoted");
    assert_eq!(bench.condition_text(STARTED), "True/Started");
    // It stays so when the task is swept, and whatever new disks would be.
    bench.forward(601);
    bench.settle().await.ok();
    let direct = json!({ "metadata": { "annotations": { "vmlet.dev/fast-deploy": "direct" } } });
    bench.edit(VMS, "vm", direct);
    bench.settle().await.ok();
    assert!(bench.tasks("Promote").is_empty());
    assert_eq!(bench.condition_text(SYNCED), "True/Promoted");
}

#[tokio::test]
async fn a_guest_that_never_answers_has_ten_minutes_for_its_first_boot() {
    let mut bench = booting(json!({})).await;
    bench.forward(599);
    bench.settle().await.ok();
    assert!(bench.tasks("Promote").is_empty());
    bench.forward(1);
    bench.settle().await.ok();
    bench.task("Promote");
}

#[tokio::test]
async fn an_offline_disk_is_flattened_while_the_machine_stays_off() {
    let bench = running(mode("Offline")).await;
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert!(bench.tasks("Promote").is_empty());
    let mut bench = off(mode("Offline")).await;
    assert_eq!(bench.task("Promote")["spec"]["offline"], true);
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.pass().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    assert!(bench.has_pod(), "it does not wait");
}

#[tokio::test]
async fn an_online_disk_waits_while_the_machine_is_off() {
    let bench = off(mode("Online")).await;
    let tasks = bench.tasks("Promote");
    assert_eq!(tasks.len(), 1, "the one of its last run: {tasks:?}");
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
}

#[tokio::test]
async fn disabled_cancels_it_and_removes_the_conditions() {
    let mut bench = running(json!({})).await;
    bench.edit(VMS, "vm", mode("Disabled"));
    bench.settle().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    assert_eq!(bench.condition_text(SYNCED), "-");
    assert_eq!(bench.condition_text(STARTED), "-");
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_more_and_more_rarely() {
    let mut bench = running(json!({})).await;
    let first = bench.task("Promote")["metadata"]["uid"].clone();
    failed(&mut bench, true);
    assert_eq!(seconds(&bench.settle().await), Some(30));
    let transient = "False/DiskPromotionTaskTransientError";
    assert_eq!(bench.condition_text(SYNCED), transient);
    assert_eq!(text(&bench), "said the node");
    bench.writes();
    bench.pass().await.ok();
    assert!(bench.writes().is_empty());
    bench.forward(30);
    bench.settle().await.ok();
    assert_ne!(bench.task("Promote")["metadata"]["uid"], first);
    bench.forward(3570);
    failed(&mut bench, true);
    assert_eq!(seconds(&bench.settle().await), Some(1800));
}

#[tokio::test]
async fn a_refusal_is_reported_until_the_machine_changes() {
    let mut bench = running(json!({})).await;
    failed(&mut bench, false);
    bench.settle().await.ok();
    let refused = "False/DiskPromotionTaskError";
    assert_eq!(bench.condition_text(SYNCED), refused);
    bench.writes();
    bench.forward(500);
    assert!(is_quiet(&bench.pass().await));
    assert!(bench.writes().is_empty());
    // The same machine is well otherwise.
    assert_eq!(bench.condition_text("Failure"), "-");
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "powerOffTimeout": "7s" }, "metadata": { "generation": 9 } }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.tasks("Promote").len(), 2);
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
}

#[tokio::test]
async fn a_promotion_delays_no_power_off_and_a_save_cancels_it() {
    let mut bench = running(json!({})).await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());

    let on = json!({ "spec": { "runStrategy": null, "powerState": "PoweredOn" } });
    let mut bench = running(on).await;
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "Suspended" } }));
    bench.settle().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    bench.task("Save");
}

#[tokio::test]
async fn a_disk_that_is_not_linked_needs_nothing() {
    let direct = json!({ "metadata": { "annotations": { "vmlet.dev/fast-deploy": "direct" } } });
    let bench = running(direct).await;
    assert_eq!(bench.condition_text(SYNCED), "True/NothingToPromote");
    assert_eq!(bench.condition_text(STARTED), "-");
    assert!(bench.tasks("Promote").is_empty());
}

#[tokio::test]
async fn a_node_of_an_earlier_version_is_named_and_its_upgrade_is_used() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    bench.running(json!({})).await;
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    assert!(text(&bench).contains("node n1 cannot flatten disks"));
    let is_well = |bench: &Bench| crds::conditions::is_well(&bench.condition(SYNCED).unwrap());
    assert!(is_well(&bench));
    bench.edit(VMS, "vm", mode("Offline"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/NotImplemented");
    assert!(!is_well(&bench), "its owner requested it");
    bench.edit(VMS, "vm", mode("Online"));
    bench.settle().await.ok();
    bench.promoting();
    bench.settle().await.ok();
    bench.task("Promote");
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
}
