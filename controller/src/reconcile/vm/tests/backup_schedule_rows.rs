//! Schedules of backups: which backups they create, and which they delete.
//!
//! Invariant: the clock advances only as a test says.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;
use crate::flow::Flow;

const HOUR: i64 = 3600;

/// The schedule `nightly`, at full hours, with changes.
fn schedule(bench: &mut Bench, changes: &Value) {
    let mut schedule = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackupSchedule",
        "metadata": { "name": "nightly", "namespace": "ns" },
        "spec": {
            "schedule": "0 * * * *", "vmNames": ["vm"], "target": "default", "fullEvery": 3,
            "retention": { "keepLast": 2 },
        },
    });
    json_patch::merge(&mut schedule["spec"], changes);
    bench.put(SCHEDULES, schedule);
    // All objects of the bench are made at the same time, long ago.
    let begun = json!({ "status": { "lastScheduleTime": bench.time() } });
    bench.edit(SCHEDULES, "nightly", begun);
}

fn backups(bench: &Bench) -> Vec<String> {
    let server = bench.server.lock().unwrap();
    let all = server.objects.keys().filter(|(of, _)| of == BACKUPS);
    all.map(|(_, name)| name.clone()).collect()
}

fn ready(bench: &Bench) -> String {
    let schedule = bench.get(SCHEDULES, "nightly");
    let ready = &schedule["status"]["conditions"][0];
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("status"), text("reason"))
}

/// So many machines with a disk, `vm` and then `vm-001` and so on, of which all get backups.
fn machines(bench: &mut Bench, count: usize) {
    bench.with_disk("vm");
    let first = bench.get(VMS, "vm");
    for number in 1..count {
        let mut vm = first.clone();
        vm["metadata"] = json!({ "name": format!("vm-{number:03}"), "namespace": "ns" });
        bench.put(VMS, vm);
    }
    let all = json!({ "vmNames": null, "selector": { "matchLabels": {} } });
    schedule(bench, &all);
    bench.forward(HOUR);
}

/// The time comes, and the node makes the backup; returns its mode.
async fn hour_passes(bench: &mut Bench, parent: Option<&str>) -> String {
    let before = backups(bench);
    bench.forward(HOUR);
    bench.scheduled().await;
    let mut new = backups(bench);
    new.retain(|name| !before.contains(name));
    let name = new.pop().unwrap();
    bench.backup_settles(&name).await;
    bench.node_backs_up(parent);
    bench.backup_settles(&name).await;
    bench.get(BACKUPS, &name)["spec"]["mode"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_time_that_passes_creates_one_backup_however_often_the_pass_is_repeated() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    schedule(&mut bench, &json!({ "verify": true }));
    let ended = bench.schedule_pass().await.unwrap();
    assert_eq!(
        ended,
        Flow::RequeueAfter(std::time::Duration::from_secs(3600))
    );
    assert!(backups(&bench).is_empty());
    assert_eq!(ready(&bench), "True/Ready");
    bench.forward(HOUR + 100);
    // The controller is killed before it has recorded the time.
    bench.refuse(
        http::Method::PATCH,
        "virtualmachinebackupschedules/nightly/status",
        500,
        1,
    );
    assert!(bench.schedule_pass().await.is_err());
    bench.scheduled().await;
    let all = backups(&bench);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("vm-20270115-0900-"), "{all:?}");
    let backup = bench.get(BACKUPS, &all[0]);
    assert_eq!(
        backup["metadata"]["labels"],
        json!({ "vmlet.dev/backup-schedule": "nightly" })
    );
    assert_eq!(backup["spec"]["verify"], true);
    let of = bench.get(VMS, "vm")["metadata"]["uid"].clone();
    let annotations = &backup["metadata"]["annotations"];
    assert_eq!(*annotations, json!({ "vmlet.dev/backup-vm-uid": of }));
    let status = &bench.get(SCHEDULES, "nightly")["status"];
    assert_eq!(status["lastScheduleTime"], "2027-01-15T09:00:00Z");
    bench.writes();
    bench.scheduled().await;
    assert!(bench.writes().is_empty());
}

#[tokio::test]
async fn times_that_were_missed_are_made_up_for_once_and_an_open_backup_is_waited_for() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    schedule(&mut bench, &json!({ "suspend": true }));
    bench.forward(100 * HOUR);
    bench.scheduled().await;
    assert!(backups(&bench).is_empty());
    assert_eq!(ready(&bench), "False/Suspended");
    bench.edit(
        SCHEDULES,
        "nightly",
        json!({ "spec": { "suspend": false } }),
    );
    bench.scheduled().await;
    assert_eq!(backups(&bench).len(), 1);
    bench.events();
    bench.forward(HOUR);
    bench.scheduled().await;
    assert_eq!(backups(&bench).len(), 1);
    assert_eq!(bench.events(), ["BackupSkipped"]);
}

#[tokio::test]
async fn a_clock_that_was_set_back_does_not_end_a_schedule() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    schedule(&mut bench, &json!({}));
    let ahead = json!({ "status": { "lastScheduleTime": "2028-01-01T00:00:00Z" } });
    bench.edit(SCHEDULES, "nightly", ahead);
    bench.scheduled().await;
    assert_eq!(backups(&bench).len(), 1);
    let status = &bench.get(SCHEDULES, "nightly")["status"];
    assert_eq!(status["lastScheduleTime"], "2027-01-15T08:00:00Z");
    bench.scheduled().await;
    assert_eq!(backups(&bench).len(), 1);
}

#[tokio::test]
async fn a_backup_that_was_requested_of_a_machine_is_of_no_later_one() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    schedule(&mut bench, &json!({}));
    bench.reaches("n1", &["other"]);
    bench.forward(HOUR);
    bench.scheduled().await;
    let name = backups(&bench).pop().unwrap();
    bench.backup_settles(&name).await;
    assert_eq!(bench.backup_condition(&name, "Completed"), "False/Waiting");
    bench.remove(VMS, "vm");
    bench.with_disk("vm");
    bench.backup_settles(&name).await;
    assert_eq!(bench.backup_condition(&name, "Completed"), "False/Failed");
    assert!(bench.tasks("Backup").is_empty());
}

#[tokio::test]
async fn a_machine_that_is_made_again_pushes_out_no_backup_of_the_disk_before() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    schedule(&mut bench, &json!({ "retention": { "keepLast": 1 } }));
    hour_passes(&mut bench, None).await;
    bench.remove(VMS, "vm");
    bench.with_disk("vm");
    for _ in 0..3 {
        hour_passes(&mut bench, None).await;
    }
    bench.scheduled().await;
    let is_going = |name: &String| {
        let backup = bench.get(BACKUPS, name);
        !backup["metadata"]["deletionTimestamp"].is_null()
    };
    let going: Vec<_> = backups(&bench).iter().map(is_going).collect();
    assert_eq!(going, [false, true, true, false]);
}

#[tokio::test]
async fn a_machine_without_a_disk_or_the_label_is_left_out() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.with_disk("other");
    bench.machine_named(
        "new",
        json!({ "metadata": { "labels": { "backup": "yes" } } }),
    );
    bench.edit(
        VMS,
        "other",
        json!({ "metadata": { "labels": { "backup": "yes" } } }),
    );
    let selector = json!({ "matchLabels": { "backup": "yes" } });
    schedule(
        &mut bench,
        &json!({ "vmNames": null, "selector": selector }),
    );
    bench.forward(HOUR);
    bench.scheduled().await;
    let all = backups(&bench);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("other-"));
}

#[tokio::test]
async fn one_backup_of_three_is_full_and_a_chain_goes_when_none_of_it_is_kept() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    schedule(&mut bench, &json!({}));
    let mut parent: Option<String> = None;
    let mut modes = Vec::new();
    for hour in 0..5 {
        let of = parent.clone().filter(|_| hour != 3);
        modes.push(hour_passes(&mut bench, of.as_deref()).await);
        let name = backups(&bench).pop().unwrap();
        let uid = bench.get(BACKUPS, &name)["metadata"]["uid"]
            .as_str()
            .unwrap()
            .to_owned();
        parent = Some(uid);
    }
    // The node makes a full one where there is none.
    let expected = [
        "Incremental",
        "Incremental",
        "Incremental",
        "Full",
        "Incremental",
    ];
    assert_eq!(modes, expected);
    bench.scheduled().await;
    let all = backups(&bench);
    let is_going =
        |name: &String| !bench.get(BACKUPS, name)["metadata"]["deletionTimestamp"].is_null();
    let going: Vec<_> = all.iter().map(is_going).collect();
    assert_eq!(going, [true, true, true, false, false]);
}

#[tokio::test]
async fn what_the_api_server_refuses_of_one_machine_is_shown_and_repeated() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.with_disk("web");
    schedule(&mut bench, &json!({ "vmNames": ["vm", "web"] }));
    bench.forward(HOUR);
    bench.refuse(http::Method::POST, "virtualmachinebackups", 403, 1);
    assert!(bench.schedule_pass().await.is_err());
    assert_eq!(ready(&bench), "False/WriteFailed");
    // The other machine has its backup.
    let all = backups(&bench);
    assert!(all.len() == 1 && all[0].starts_with("web-"), "{all:?}");
    bench.scheduled().await;
    assert_eq!(ready(&bench), "True/Ready");
    assert_eq!(backups(&bench).len(), 2);
    bench.edit(
        SCHEDULES,
        "nightly",
        json!({ "spec": { "schedule": "0 0 30 2 *" } }),
    );
    bench.scheduled().await;
    assert_eq!(ready(&bench), "False/InvalidSchedule");
}

#[tokio::test]
async fn machines_of_which_backups_are_refused_keep_none_from_its_backup() {
    let mut bench = Bench::new();
    machines(&mut bench, 61);
    bench.refuse(http::Method::POST, "virtualmachinebackups", 403, 60);
    assert!(bench.schedule_pass().await.is_err());
    assert_eq!(ready(&bench), "False/WriteFailed");
    let all = backups(&bench);
    assert!(all.len() == 1 && all[0].starts_with("vm-060-"), "{all:?}");
}

#[tokio::test]
async fn a_pass_that_was_refused_too_much_is_followed_by_one_that_begins_elsewhere() {
    let mut bench = Bench::new();
    machines(&mut bench, 501);
    bench.refuse(http::Method::POST, "virtualmachinebackups", 403, 500);
    assert!(bench.schedule_pass().await.is_err());
    assert!(backups(&bench).is_empty());
    // The time decides where: with the last machine at this one.
    let first = (START + HOUR) % 501;
    bench.forward(500 - first);
    bench.scheduled().await;
    let all = backups(&bench);
    assert_eq!(all.len(), 50);
    assert!(all.iter().any(|name| name.starts_with("vm-500-")));
}

#[tokio::test]
async fn backups_that_the_controller_cannot_see_end_a_pass_and_cause_no_next_one_at_once() {
    let mut bench = Bench::new();
    machines(&mut bench, 501);
    bench.refuse(http::Method::POST, "virtualmachinebackups", 409, 500);
    assert!(bench.schedule_pass().await.is_err());
    assert_eq!(ready(&bench), "False/WriteFailed");
    assert!(backups(&bench).is_empty());
}
