//! Rows of promotion while the machine runs: its emulator copies the image into the linked root disk.
//!
//! Invariant: one test for each case; tasks end as a test says.
//! Failure: none of its own.

use serde_json::{Value, json};
use service::settings::Timespan;

use super::bench::*;
use crate::config::Config;

const SYNCED: &str = crds::conditions::DISK_PROMOTION_SYNCED;
const STARTED: &str = crds::conditions::DISK_PROMOTION_STARTED;

/// How long a guest has to be ready here, in seconds.
const AFTER: i64 = 300;

fn mode(mode: &str) -> Value {
    json!({ "spec": { "promoteDisksMode": mode } })
}

fn text(bench: &Bench) -> String {
    bench.condition(SYNCED).unwrap().message
}

/// A machine that runs on a linked disk, where the installation promotes such machines.
async fn running() -> Bench {
    let mut config = Config::default();
    config.machines.online_promotion_after = Some(Timespan::from_secs(AFTER.unsigned_abs()));
    let mut bench = Bench::with(config);
    bench.promoting_online();
    let on = json!({ "spec": { "runStrategy": "Always", "promoteDisksMode": "Online" } });
    bench.running(on).await;
    assert!(bench.condition_text("Ready").starts_with("True"));
    bench
}

/// As [`running`], and its node flattens the disk.
async fn promoting() -> Bench {
    let mut bench = running().await;
    bench.forward(AFTER);
    bench.settle().await.ok();
    let name = bench.task("Promote")["metadata"]["name"].clone();
    let name = name.as_str().unwrap().to_owned();
    let status = json!({ "status": { "state": "Running", "progressPercent": 47 } });
    bench.edit(TASKS, &name, status);
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn a_disk_is_flattened_when_its_guest_has_been_ready_for_a_while() {
    let mut bench = running().await;
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert!(text(&bench).contains("when the guest has booted"));
    assert!(bench.tasks("Promote").is_empty());
    bench.writes();
    bench.forward(AFTER / 2);
    let next = seconds(&bench.pass().await).unwrap();
    assert!(next > 0 && next.cast_signed() <= AFTER, "{next}");
    assert!(bench.writes().is_empty(), "nothing has changed");
    bench.forward(AFTER);
    bench.settle().await.ok();
    let task = bench.task("Promote");
    assert_eq!(task["spec"]["online"], true);
    assert_eq!(task["spec"]["nodeName"], "n1");
    bench.task_ends("Promote", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/Promoted");
    assert_eq!(bench.condition_text(STARTED), "True/Started");
    bench.forward(601);
    bench.settle().await.ok();
    assert!(bench.tasks("Promote").is_empty());
    assert_eq!(bench.condition_text(SYNCED), "True/Promoted");
}

#[tokio::test]
async fn a_power_off_ends_it_and_the_next_start_goes_on() {
    let mut bench = promoting().await;
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionRunning");
    assert!(text(&bench).ends_with("40 %"));
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.pass().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    bench.task_ends("Promote", "Cancelled");
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod(), "it does not wait");
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    assert!(text(&bench).contains("while the machine runs"));
    bench.writes();
    assert!(is_quiet(&bench.pass().await));
    assert!(bench.writes().is_empty());
}

#[tokio::test]
async fn another_mode_ends_it_first() {
    let mut bench = promoting().await;
    bench.edit(VMS, "vm", mode("Offline"));
    bench.settle().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    assert_eq!(bench.condition_text(SYNCED), "False/DiskPromotionPending");
    bench.task_ends("Promote", "Cancelled");
    bench.settle().await.ok();
    assert!(
        text(&bench).contains("when the machine is off"),
        "{}",
        text(&bench)
    );
    let mut bench = promoting().await;
    bench.edit(VMS, "vm", mode("Disabled"));
    bench.settle().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["cancel"], true);
    assert_eq!(bench.condition_text(SYNCED), "-");
}

#[tokio::test]
async fn a_node_of_an_earlier_version_leaves_the_disk_linked() {
    let mut bench = running().await;
    bench.promoting();
    bench.forward(AFTER);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(SYNCED), "True/StaysLinked");
    assert!(text(&bench).contains("upgrade vmlet"));
    assert!(crds::conditions::is_well(&bench.condition(SYNCED).unwrap()));
    assert!(bench.tasks("Promote").is_empty());
    bench.promoting_online();
    bench.settle().await.ok();
    assert_eq!(bench.task("Promote")["spec"]["online"], true);
}

#[tokio::test]
async fn a_guest_that_is_not_ready_for_a_moment_goes_on() {
    let mut bench = promoting().await;
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "readinessProbe": { "guestInfo": [{ "key": "never", "value": "x" }] } } }),
    );
    bench.settle().await.ok();
    assert!(!bench.condition_text("Ready").starts_with("True"));
    assert_eq!(bench.task("Promote")["spec"]["cancel"], false);
}
