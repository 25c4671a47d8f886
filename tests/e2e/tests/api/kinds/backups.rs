//! What the real API server makes of backups, their schedules and their tasks.
//!
//! Invariant: as for the other kinds.
//! Failure: a table of all cases that had another result.

use e2e::Case;
use serde_json::{Value, json};

const BACKUP: &str = "VirtualMachineBackup";
const SCHEDULE: &str = "VirtualMachineBackupSchedule";
const TASK: &str = "VirtualMachineTask";

/// These fields, with some replaced; `null` removes one.
fn with(fields: Value, other: &Value) -> Value {
    let mut fields = fields;
    if let Some(fields) = fields.as_object_mut()
        && let Some(other) = other.as_object()
    {
        fields.extend(other.clone());
        fields.retain(|_, value| !value.is_null());
    }
    fields
}

fn of_backups() -> Vec<Case> {
    let made = || json!({ "vmName": "a", "quiesce": { "timeout": "1m" } });
    let changed = |change: &Value| Case::create(BACKUP, with(made(), change));
    let edit = |change: Value| Case::edit(BACKUP, made(), change);
    vec![
        changed(&json!({})),
        Case::create(BACKUP, json!({})).refused("Required value"),
        changed(&json!({})).named("a".repeat(190)),
        changed(&json!({}))
            .named("a".repeat(191))
            .refused("has at most 190 characters"),
        changed(&json!({ "target": "nfs", "mode": "Full", "verify": true })),
        changed(&json!({ "target": "/srv/backups" })).refused("should match"),
        changed(&json!({ "target": "../x" })).refused("should match"),
        changed(&json!({ "targetClaimName": "store" })),
        changed(&json!({ "targetClaimName": "store", "target": "default" }))
            .refused("at most one of target and targetClaimName"),
        changed(&json!({ "targetClaimName": "../x" })).refused("should match"),
        changed(&json!({ "targetClaimName": "" })).refused("at least 1 chars"),
        changed(&json!({ "mode": "Differential" })).refused("Unsupported value"),
        changed(&json!({ "deletionPolicy": "Keep" })).refused("Unsupported value"),
        changed(&json!({ "quiesce": { "timeout": "11m" } })).refused("must be at most 10m"),
        changed(&json!({ "verifyRequest": "" })).refused("at least 1 chars"),
        edit(json!({ "vmName": "b" })).refused("vmName is immutable"),
        edit(json!({ "target": "nfs" })).refused("target is immutable"),
        edit(json!({ "targetClaimName": "store" })).refused("targetClaimName is immutable"),
        edit(json!({ "mode": "Full" })).refused("mode is immutable"),
        edit(json!({ "quiesce": null })).refused("quiesce is immutable"),
        edit(json!({ "verifyRequest": "1", "deletionPolicy": "Retain", "description": "x" })),
    ]
}

fn of_schedules() -> Vec<Case> {
    let nightly = || json!({ "schedule": "30 2 * * *", "vmNames": ["a", "b"] });
    let changed = |change: &Value| Case::create(SCHEDULE, with(nightly(), change));
    let all = json!({ "matchLabels": {} });
    vec![
        changed(&json!({})),
        changed(&json!({})).named("a".repeat(63)),
        changed(&json!({}))
            .named("a".repeat(64))
            .refused("name of a schedule has at most 63 characters"),
        changed(&json!({ "vmNames": null, "selector": all })),
        changed(&json!({ "selector": all })).refused("exactly one of vmNames and selector"),
        changed(&json!({ "vmNames": null })).refused("exactly one of vmNames and selector"),
        changed(&json!({ "vmNames": [] })).refused("at least 1 items"),
        changed(&json!({ "vmNames": ["a", "a"] })).refused("Duplicate value"),
        changed(&json!({ "schedule": "@daily" })),
        changed(&json!({ "schedule": "daily" })).refused("should match"),
        changed(&json!({ "targetClaimName": "store" })),
        changed(&json!({ "targetClaimName": "store", "target": "nfs" }))
            .refused("at most one of target and targetClaimName"),
        changed(&json!({ "fullEvery": 0 })).refused("greater than or equal to 1"),
        changed(&json!({ "retention": { "keepLast": 0 } })).refused("greater than or equal to 1"),
        changed(&json!({ "retention": { "keepLast": 1, "keepFor": "720h" } })),
        changed(&json!({ "retention": { "keepFor": "a month" } })).refused("should match"),
        Case::edit(
            SCHEDULE,
            nightly(),
            json!({ "suspend": true, "vmNames": ["c"] }),
        ),
    ]
}

fn of_tasks() -> Vec<Case> {
    let work = json!({
        "nodeName": "n", "vmName": "a", "vmUID": "u", "kind": "Backup",
        "backup": { "uid": "b", "target": "nfs", "quiesceSeconds": 600 },
    });
    let about =
        |backup: Value| Case::create(TASK, with(work.clone(), &json!({ "backup": backup })));
    let digest = "a".repeat(64);
    let claim = "claim:0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";
    vec![
        Case::create(TASK, work.clone()),
        about(json!({ "uid": "b" })).refused("Required value"),
        about(json!({ "uid": "b", "target": "../x" })).refused("should match"),
        about(json!({ "uid": "b", "target": claim })),
        about(json!({ "uid": "b", "target": "claim:store" })).refused("should match"),
        about(json!({ "uid": "b", "target": format!("{claim}0") })).refused("should match"),
        about(json!({ "uid": "b", "target": "nfs", "diskUID": "/" })).refused("should match"),
        about(json!({ "uid": "b", "target": "nfs", "quiesceSeconds": 601 }))
            .refused("less than or equal to 600"),
        about(json!({ "uid": "b", "target": "nfs", "manifestSHA256": digest })),
        about(json!({ "uid": "b", "target": "nfs", "manifestSHA256": "a" }))
            .refused("at least 64 chars"),
        Case::edit(
            TASK,
            work.clone(),
            json!({ "backup": { "uid": "c", "target": "nfs" } }),
        )
        .refused("backup is immutable"),
    ]
}

pub(super) fn backups() -> Vec<Case> {
    [of_backups(), of_schedules(), of_tasks()].concat()
}
