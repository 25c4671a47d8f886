//! Backups of the machines of a run: made, deleted, and made by a schedule.
//!
//! Invariant: only complete backups that no schedule may delete are restored; what a machine is to be made of is not
//! deleted.
//! Failure: the last report of the API server.

use anyhow::Result;
use serde_json::{Value, json};

use super::machines::{Machines, TAKEN, name};
use super::objects::text;
use super::operation::Outcome;
use super::snapshots::{SUSPENDED, fit, list};
use crate::machines::condition;
use crate::{Cluster, eventually};

/// Each node has it, and all nodes have the same.
const TARGET: &str = "local";
const VERSION: &str = "vmlet.dev/v1alpha1";
const KIND: &str = "vmbackup";
const SCHEDULE: &str = "chaos-schedule";
/// Label of the backups that a schedule has made.
pub(super) const SCHEDULED: &str = "vmlet.dev/backup-schedule";
const NOTHING: &str = "there is no such backup";

/// Those of a run.
#[derive(Debug, Default)]
pub(super) struct Backups {
    made: u32,
    schedule: Schedule,
}

/// The schedule of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Schedule {
    #[default]
    Absent,
    Active,
    Suspended,
}

impl Backups {
    /// Backs up the first machine from `choice` on that has a disk which can be copied.
    pub(super) async fn make(
        &mut self,
        cluster: &Cluster,
        machines: &Machines,
        choice: usize,
    ) -> Result<Outcome> {
        let Some(machine) = fit(machines, choice) else {
            return Ok(Outcome::Skipped(SUSPENDED.to_owned()));
        };
        self.made += 1;
        let backup = format!("chaos-backup-{}", self.made);
        let object = json!({
            "apiVersion": VERSION, "kind": "VirtualMachineBackup",
            "metadata": { "name": backup },
            "spec": { "vmName": name(machine), "target": TARGET, "verify": choice.is_multiple_of(2) },
        });
        accepts("a backup", || cluster.apply(&object)).await?;
        Ok(Outcome::Requested(format!("{backup} of {}", name(machine))))
    }

    /// Lets a schedule back up all machines, or changes whether it does.
    pub(super) async fn schedule(
        &mut self,
        cluster: &Cluster,
        machines: &Machines,
    ) -> Result<Outcome> {
        let names: Vec<_> = machines.desired_states().map(|(name, _)| name).collect();
        let next = match self.schedule {
            Schedule::Active => Schedule::Suspended,
            Schedule::Absent | Schedule::Suspended => Schedule::Active,
        };
        let object = json!({
            "apiVersion": VERSION, "kind": "VirtualMachineBackupSchedule",
            "metadata": { "name": SCHEDULE },
            "spec": {
                "schedule": "*/5 * * * *", "suspend": next == Schedule::Suspended, "vmNames": names,
                "target": TARGET, "fullEvery": 3, "retention": { "keepLast": 2 },
            },
        });
        accepts("a schedule", || cluster.apply(&object)).await?;
        self.schedule = next;
        Ok(Outcome::Requested(format!("{next:?}")))
    }

    /// From now on no backup begins by itself.
    pub(super) async fn suspend(&mut self, cluster: &Cluster) -> Result<()> {
        if self.schedule != Schedule::Active {
            return Ok(());
        }
        let change = json!({ "spec": { "suspend": true } }).to_string();
        let words = [
            "patch",
            "vmbackupschedule",
            SCHEDULE,
            "--type=merge",
            "-p",
            &change,
        ];
        accepts("the end of a schedule", || cluster.kubectl(&words)).await?;
        self.schedule = Schedule::Suspended;
        Ok(())
    }
}

/// A backup that a machine can be made of.
pub(super) async fn restorable(cluster: &Cluster, choice: usize) -> Result<Option<Value>> {
    let mut all = list(cluster, KIND).await?;
    all.retain(|backup| {
        is_there(backup) && is_ready(backup) && backup["metadata"]["labels"][SCHEDULED].is_null()
    });
    let number = choice.checked_rem(all.len());
    Ok(number.map(|number| all.swap_remove(number)))
}

/// Deletes a complete backup, but that of the name `kept`. One that a later one builds upon goes after that.
pub(super) async fn delete(
    cluster: &Cluster,
    choice: usize,
    kept: Option<&str>,
) -> Result<Outcome> {
    let mut all = list(cluster, KIND).await?;
    all.retain(|backup| {
        is_there(backup) && is_completed(backup) && backup["metadata"]["name"].as_str() != kept
    });
    let Some(number) = choice.checked_rem(all.len()) else {
        return Ok(Outcome::Skipped(NOTHING.to_owned()));
    };
    let backup = text(&all[number]["metadata"]["name"]);
    let words = ["delete", KIND, backup, "--wait=false", "--ignore-not-found"];
    accepts("a deletion", || cluster.kubectl(&words)).await?;
    Ok(Outcome::Requested(backup.to_owned()))
}

/// What restores are skipped for.
pub(super) fn nothing() -> Outcome {
    Outcome::Skipped(NOTHING.to_owned())
}

fn is_there(backup: &Value) -> bool {
    backup["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(backup: &Value) -> bool {
    condition(backup, "VirtualMachineBackupReady")["status"] == "True"
}

fn is_completed(backup: &Value) -> bool {
    condition(backup, "VirtualMachineBackupCompleted")["status"] == "True"
}

/// Repeats a request until the API server accepts it.
async fn accepts<T>(what: &str, request: impl Fn() -> Result<T>) -> Result<T> {
    let what = format!("the API server accepts {what}");
    eventually(TAKEN, &what, || async { request() }).await
}
