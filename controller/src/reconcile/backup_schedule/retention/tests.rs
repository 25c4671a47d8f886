use serde_json::{Value, json};

use super::*;

const DAY: i64 = 86_400;

/// Made on that day; `parent`: the day of the backup that it builds upon.
fn backup(day: i64, parent: Option<i64>, state: &str) -> Arc<VirtualMachineBackup> {
    changed(day, parent, state, &json!({}))
}

fn changed(
    day: i64,
    parent: Option<i64>,
    state: &str,
    change: &Value,
) -> Arc<VirtualMachineBackup> {
    let made = jiff::Timestamp::from_second(day * DAY).unwrap();
    let reason = match state {
        "True" => "Completed",
        "False" => "VirtualMachineBackupFailed",
        _ => "VirtualMachineBackupInProgress",
    };
    let status = if state == "True" { "True" } else { "False" };
    let mut object = json!({
        "metadata": {
            "name": format!("b{day:03}"), "uid": format!("u{day}"), "creationTimestamp": made.to_string(),
        },
        "spec": { "vmName": "vm" },
        "status": {
            "parent": parent.map(|day| json!({ "uid": format!("u{day}") })),
            "conditions": [condition("Completed", status, reason)],
        },
    });
    json_patch::merge(&mut object, change);
    Arc::new(serde_json::from_value(object).unwrap())
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": format!("VirtualMachineBackup{kind}"), "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// Found damaged, and being verified again.
fn damaged(day: i64, parent: Option<i64>) -> Arc<VirtualMachineBackup> {
    let conditions = json!([
        condition("Completed", "True", "Completed"),
        condition("Ready", "False", "VirtualMachineBackupDamaged"),
        condition(
            "Verified",
            "Unknown",
            "VirtualMachineBackupVerificationInProgress"
        ),
    ]);
    changed(
        day,
        parent,
        "True",
        &json!({ "status": { "conditions": conditions } }),
    )
}

fn names(gone: &[Arc<VirtualMachineBackup>]) -> Vec<String> {
    let mut names: Vec<_> = gone.iter().map(|one| one.name_any()).collect();
    names.sort();
    names
}

fn gone(
    all: &[Arc<VirtualMachineBackup>],
    last: u32,
    keep_for: Option<&str>,
    day: i64,
) -> Vec<String> {
    let retention = BackupRetention {
        keep_last: last,
        keep_for: keep_for.map(str::to_owned),
    };
    let gone = superfluous(all.to_vec(), all, &retention, day * DAY, |_| false);
    names(&gone)
}

/// Two chains: 1 ← 2 ← 3 and 4 ← 5.
fn chains() -> Vec<Arc<VirtualMachineBackup>> {
    let parents = [
        (1, None),
        (2, Some(1)),
        (3, Some(2)),
        (4, None),
        (5, Some(4)),
    ];
    let all = parents.map(|(day, parent)| backup(day, parent, "True"));
    all.into()
}

const NONE: [&str; 0] = [];

#[test]
fn a_chain_goes_when_none_of_it_is_kept() {
    let all = chains();
    assert_eq!(gone(&all, 3, None, 10), NONE);
    assert_eq!(gone(&all, 2, None, 10), ["b001", "b002", "b003"]);
    assert_eq!(gone(&all, 1, None, 10), ["b001", "b002", "b003"]);
    assert_eq!(gone(&all, 5, None, 10), NONE);
}

#[test]
fn a_young_backup_stays_beyond_the_number() {
    let all = chains();
    assert_eq!(gone(&all, 1, Some("168h"), 9), NONE);
    assert_eq!(gone(&all, 1, Some("168h"), 10), ["b001", "b002", "b003"]);
}

#[test]
fn what_another_backup_builds_upon_stays() {
    let mut all = chains();
    // One of a user, of the first chain.
    all.push(backup(9, Some(1), "True"));
    let own: Vec<_> = all[..5].to_vec();
    let retention = BackupRetention {
        keep_last: 1,
        keep_for: None,
    };
    let gone = superfluous(own, &all, &retention, 10 * DAY, |_| false);
    assert_eq!(names(&gone), ["b002", "b003"]);
}

#[test]
fn what_a_machine_is_to_be_made_from_stays_with_all_that_it_builds_upon() {
    let all = chains();
    let retention = BackupRetention {
        keep_last: 1,
        keep_for: None,
    };
    let is_needed = |one: &VirtualMachineBackup| one.name_any() == "b002";
    let gone = superfluous(all.clone(), &all, &retention, 10 * DAY, is_needed);
    assert_eq!(names(&gone), ["b003"]);
}

#[test]
fn a_damaged_backup_and_what_builds_upon_it_push_no_good_one_out() {
    // Verified again meanwhile: the damage lasts until a verification finds it whole.
    let all = vec![backup(1, None, "True"), damaged(2, None)];
    assert_eq!(gone(&all, 1, None, 10), NONE);
    let mut all = vec![
        backup(1, None, "True"),
        backup(2, None, "True"),
        damaged(3, Some(2)),
    ];
    for day in 4..9 {
        all.push(backup(day, Some(day - 1), "True"));
    }
    // The newest three of those that are damaged stay, and what they build upon.
    assert_eq!(gone(&all, 1, None, 10), ["b001"]);
    all.remove(1);
    assert_eq!(gone(&all, 1, None, 10), NONE);
}

#[test]
fn damaged_backups_stay_until_as_many_good_ones_are_newer_as_are_kept() {
    let mut all: Vec<_> = (1..=6).map(|day| damaged(day, None)).collect();
    assert_eq!(gone(&all, 1, None, 100), NONE);
    // A failure says nothing of the others.
    all.push(backup(7, None, "False"));
    assert_eq!(gone(&all, 1, None, 100), NONE);
    all.pop();
    all.push(backup(7, None, "True"));
    assert_eq!(gone(&all, 1, None, 100), ["b001", "b002", "b003"]);
    assert_eq!(gone(&all, 1, Some("168h"), 9), NONE);
    assert_eq!(gone(&all, 2, None, 100), NONE);
    all.push(backup(8, None, "True"));
    assert_eq!(gone(&all, 2, None, 100), ["b001", "b002", "b003"]);
    // One that is older than all that are damaged is no reason.
    all.truncate(6);
    all.push(backup(0, None, "True"));
    assert_eq!(gone(&all, 1, None, 100), NONE);
}

#[test]
fn one_that_is_to_be_verified_pushes_nothing_out_before() {
    let to_verify = json!({ "spec": { "verify": true } });
    let all = vec![
        backup(1, None, "True"),
        changed(2, None, "True", &to_verify),
    ];
    assert_eq!(gone(&all, 1, None, 10), NONE);
    let mut verified = to_verify;
    json_patch::merge(&mut verified, &json!({ "status": { "verification": {} } }));
    let all = vec![backup(1, None, "True"), changed(2, None, "True", &verified)];
    assert_eq!(gone(&all, 1, None, 10), ["b001"]);
}

#[test]
fn the_newest_failures_stay_and_an_open_backup_is_never_deleted() {
    let mut all: Vec<_> = (1..=6).map(|day| backup(day, None, "False")).collect();
    all.push(backup(7, None, "open"));
    assert_eq!(gone(&all, 1, None, 100), ["b001", "b002", "b003"]);
}

#[test]
fn a_circle_of_parents_ends() {
    let all = vec![backup(1, Some(2), "True"), backup(2, Some(1), "True")];
    assert_eq!(gone(&all, 1, None, 10), NONE);
}
