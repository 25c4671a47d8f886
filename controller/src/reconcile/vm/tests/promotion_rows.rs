//! Rows of promotion: a linked root disk is flattened, and nothing waits for it.
//!
//! Invariant: one test for each case; tasks end as a test says.
//! Failure: none of its own.

use crds::names;
use serde_json::{Value, json};

use super::bench::*;

const SYNCED: &str = crds::conditions::DISK_PROMOTION_SYNCED;
const STARTED: &str = crds::conditions::DISK_PROMOTION_STARTED;

fn mode(mode: &str) -> Value {
    json!({ "spec": { "promoteDisksMode": mode } })
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

/// The node flattens disks and makes backups.
fn backs_up(bench: &mut Bench) {
    let facts = json!({
        "daemon": { "taskKinds": ["Backup", "VerifyBackup", "DeleteBackup"] },
        "features": [
            names::DISK_PROMOTION, names::DISK_BACKUPS, format!("{}default", names::BACKUP_TARGET),
        ],
    });
    bench.agent_reports("n1", &facts);
}

#[tokio::test]
async fn a_disk_is_flattened_while_the_machine_is_off() {
    let mut bench = Bench::new();
    bench.off("Offline").await;
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert_eq!(bench.condition_text(STARTED), "False/DiskPromotionPending");
    assert_eq!(bench.task("Promote")["spec"]["nodeName"], "n1");
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
    bench.edit(VMS, "vm", mode("Online"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/Promoted");
}

#[tokio::test]
async fn a_disk_waits_while_the_machine_runs_and_a_start_cancels_its_promotion() {
    let mut bench = Bench::new();
    bench.promoting();
    bench.running(mode("Offline")).await;
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert!(text(&bench).contains("when the machine is off"));
    assert!(bench.tasks("Promote").is_empty());

    let mut bench = Bench::new();
    bench.off("Offline").await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.pass().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    assert!(bench.has_pod(), "it does not wait");
}

#[tokio::test]
async fn the_disk_of_a_suspended_machine_is_not_flattened() {
    let mut bench = Bench::new();
    bench.promoting();
    let on = json!({ "spec": {
        "runStrategy": null, "powerState": "PoweredOn", "promoteDisksMode": "Offline",
    } });
    bench.running(on).await;
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "Suspended" } }));
    bench.settle().await.ok();
    bench.task("Save");
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    assert!(bench.tasks("Promote").is_empty());
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
}

#[tokio::test]
async fn a_linked_disk_is_a_problem_only_where_its_promotion_is_requested() {
    let mut bench = Bench::new();
    bench.off("Online").await;
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    assert_eq!(bench.condition_text(STARTED), "-");
    assert!(text(&bench).contains("promoteDisksMode: Offline"));
    assert!(crds::conditions::is_well(&bench.condition(SYNCED).unwrap()));
    assert!(bench.tasks("Promote").is_empty());
    bench.writes();
    assert!(is_quiet(&bench.pass().await));
    assert!(bench.writes().is_empty());
    bench.edit(VMS, "vm", mode("Offline"));
    bench.settle().await.ok();
    bench.task("Promote");
}

#[tokio::test]
async fn a_disk_with_backups_stays_linked_and_is_flattened_after_the_last_one() {
    let mut bench = Bench::new();
    bench.off("Disabled").await;
    backs_up(&mut bench);
    bench.backup("first", &json!({}));
    bench.backup_settles("first").await;
    bench.edit(VMS, "vm", mode("Offline"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert!(text(&bench).contains("a backup"), "{}", text(&bench));
    assert!(bench.tasks("Promote").is_empty());
    bench.node_backs_up(None);
    bench.backup_settles("first").await;
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    assert!(text(&bench).contains("backups"), "{}", text(&bench));
    assert_eq!(bench.condition_text(STARTED), "-");
    bench.forward(3600);
    bench.settle().await.ok();
    bench.writes();
    assert!(is_quiet(&bench.pass().await));
    assert!(bench.writes().is_empty());
    assert!(bench.tasks("Promote").is_empty());
    bench.delete_backup("first");
    bench.backup_settles("first").await;
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("first").await;
    bench.settle().await.ok();
    bench.task("Promote");
}

/// The node keeps the layer of the last backup alone, and merges it when that is deleted.
#[tokio::test]
async fn a_disk_is_flattened_when_the_last_backup_is_deleted_and_earlier_ones_are_left() {
    let mut bench = Bench::new();
    bench.off("Disabled").await;
    backs_up(&mut bench);
    let first = bench.backed_up("first", None).await;
    bench.forward(60);
    let second = bench.backed_up("second", Some(&first)).await;
    bench.forward(60);
    bench.backed_up("third", Some(&second)).await;
    bench.edit(VMS, "vm", mode("Offline"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    bench.delete_backup("third");
    bench.backup_settles("third").await;
    bench.settle().await.ok();
    // The node has not merged the layer yet.
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("third").await;
    for name in ["first", "second"] {
        let left = bench.get(BACKUPS, name);
        assert_eq!(left["status"]["baseReleased"], true, "{left}");
        assert_eq!(bench.backup_condition(name, "Ready"), "True/Ready");
    }
    bench.settle().await.ok();
    bench.task("Promote");
    // The next backup has a layer again.
    bench.task_ends("Promote", "Cancelled");
    bench.backed_up("fourth", None).await;
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
}

#[tokio::test]
async fn a_disk_stays_linked_when_an_earlier_backup_is_deleted() {
    let mut bench = Bench::new();
    bench.off("Disabled").await;
    backs_up(&mut bench);
    for name in ["first", "second", "third"] {
        bench.backed_up(name, None).await;
        bench.forward(60);
    }
    bench.edit(VMS, "vm", mode("Offline"));
    bench.delete_backup("second");
    bench.backup_settles("second").await;
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("second").await;
    let first = bench.get(BACKUPS, "first");
    assert_eq!(first["status"]["baseReleased"], true, "{first}");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    let third = bench.get(BACKUPS, "third");
    assert!(third["status"]["baseReleased"].is_null(), "{third}");
}

#[tokio::test]
async fn another_mode_cancels_it() {
    for (other, synced) in [("Online", "True/StaysLinked"), ("Disabled", "-")] {
        let mut bench = Bench::new();
        bench.off("Offline").await;
        bench.edit(VMS, "vm", mode(other));
        bench.settle().await.ok();
        assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
        assert_eq!(bench.condition_text(SYNCED), synced);
        assert_eq!(bench.condition_text(STARTED), "-");
    }
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_more_and_more_rarely() {
    let mut bench = Bench::new();
    bench.off("Offline").await;
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
    let mut bench = Bench::new();
    bench.off("Offline").await;
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
async fn a_disk_that_is_not_linked_needs_nothing() {
    let mut bench = Bench::new();
    bench.promoting();
    let direct = json!({ "metadata": { "annotations": { "vmlet.dev/fast-deploy": "direct" } } });
    bench.running(direct).await;
    assert_eq!(bench.condition_text(SYNCED), "True/NothingToPromote");
    assert_eq!(bench.condition_text(STARTED), "-");
    assert!(bench.tasks("Promote").is_empty());
}

#[tokio::test]
async fn a_node_of_an_earlier_version_is_named_and_its_upgrade_is_used() {
    let mut bench = Bench::new();
    bench.off("Online").await;
    bench.agents(&["n1"]);
    bench.agent_reports("n1", &json!({ "features": [] }));
    bench.edit(VMS, "vm", mode("Offline"));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/NotImplemented");
    assert!(text(&bench).contains("node n1 cannot flatten disks"));
    let synced = bench.condition(SYNCED).unwrap();
    assert!(
        !crds::conditions::is_well(&synced),
        "its owner requested it"
    );
    assert!(bench.tasks("Promote").is_empty());
    bench.promoting();
    bench.settle().await.ok();
    bench.task("Promote");
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
}
