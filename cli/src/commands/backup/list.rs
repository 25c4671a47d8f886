//! `backup list`: backups, the oldest first.
//!
//! Invariant: each backup is in one row, with the one that it builds upon.
//! Failure: the cluster's; a backup that cannot be read is named on standard error.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use crds::conditions::{BACKUP_COMPLETED, BACKUP_READY, BACKUP_VERIFIED};
use crds::guard::Guarded;
use crds::{BackupPlace, VirtualMachineBackup};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use crate::cluster::{ClusterArgs, Names, listed};
use crate::table;

/// Which backups to list.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Name of a virtual machine, which may not exist any more [default: all of the namespace].
    #[arg(value_name = "NAME")]
    machine: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) async fn run(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = args.machine.as_deref().map(Names::machine);
    let api: Api<Guarded<VirtualMachineBackup>> = cluster.api();
    let mut all = listed::readable(&api, &ListParams::default()).await?;
    all.retain(|one| machine.is_none_or(|machine| one.spec.vm_name == machine));
    if all.is_empty() {
        let of = machine.map_or_else(|| cluster.namespace.clone(), str::to_owned);
        eprintln!("{of} has no backups; `vmletctl backup create NAME` makes one of a machine");
        return Ok(ExitCode::SUCCESS);
    }
    super::super::print(&render(all, Timestamp::now()))?;
    Ok(ExitCode::SUCCESS)
}

fn render(mut all: Vec<VirtualMachineBackup>, now: Timestamp) -> String {
    all.sort_by_cached_key(|one| {
        let made = one.creation_timestamp().map(|at| at.0);
        (one.spec.vm_name.clone(), made, one.name_any())
    });
    let rows: Vec<_> = all.iter().map(|one| row(one, now)).collect();
    let columns = [
        "NAME", "VM", "TARGET", "READY", "TYPE", "STORED", "PARENT", "AGE", "MESSAGE",
    ];
    table::render(columns, &rows)
}

fn row(backup: &VirtualMachineBackup, now: Timestamp) -> [String; 9] {
    let status = backup.status.clone().unwrap_or_default();
    let ready = backup.condition(BACKUP_READY);
    let kinds = [BACKUP_READY, BACKUP_COMPLETED, BACKUP_VERIFIED];
    let mut messages = kinds.iter().filter_map(|kind| backup.condition(kind));
    let message = messages.find(|one| !one.message.is_empty());
    let mut message = message.map_or(String::new(), |one| one.message.clone());
    if message.is_empty() && !status.full_reason.is_empty() {
        message = format!("full: {}", status.full_reason);
    }
    let since = backup.creation_timestamp().map(|made| {
        let age = now.duration_since(made.0);
        table::age(Duration::try_from(age).unwrap_or_default())
    });
    let stored = status.storage.and_then(|storage| storage.stored);
    let parent = status
        .parent
        .map(|parent| parent.name.unwrap_or(parent.uid));
    [
        backup.name_any(),
        backup.spec.vm_name.clone(),
        target(backup),
        ready
            .map_or("Unknown", |ready| ready.status.as_str())
            .to_owned(),
        status
            .type_
            .map_or(String::new(), |kind| format!("{kind:?}")),
        stored.map_or(String::new(), |stored| stored.0),
        parent.unwrap_or_default(),
        since.unwrap_or_default(),
        message,
    ]
}

/// The name of a target, or a claim.
fn target(backup: &VirtualMachineBackup) -> String {
    match backup.spec.place() {
        BackupPlace::Target(name) => name.to_owned(),
        BackupPlace::Claim(name) => format!("claim/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn condition(kind: &str, status: &str, message: &str) -> Value {
        json!({
            "type": kind, "status": status, "reason": "R", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn backups_are_shown_by_machine_and_age_with_what_they_build_upon() {
        let backup = |name: &str, made: &str, status: Value| {
            json!({
                "metadata": { "name": name, "uid": name, "creationTimestamp": made },
                "spec": { "vmName": "vm", "target": "nfs" }, "status": status,
            })
        };
        let first = json!({
            "type": "Full", "fullReason": "it is the first one", "storage": { "stored": "1Gi" },
            "conditions": [condition(BACKUP_READY, "True", "")],
        });
        let second = json!({
            "type": "Incremental", "storage": { "stored": "3Mi" }, "parent": { "name": "a", "uid": "a" },
            "conditions": [condition(BACKUP_READY, "False", "it is damaged")],
        });
        let open = json!({
            "conditions": [
                condition(BACKUP_READY, "False", ""), condition(BACKUP_COMPLETED, "False", "it waits"),
            ],
        });
        let all = json!([
            backup("c", "2026-01-01T00:00:50Z", open),
            backup("b", "2026-01-01T00:00:30Z", second),
            backup("a", "2026-01-01T00:00:00Z", first),
        ]);
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let text = render(serde_json::from_value(all).unwrap(), now);
        insta::assert_snapshot!(text, @r"
        NAME  VM  TARGET  READY  TYPE         STORED  PARENT  AGE  MESSAGE
        a     vm  nfs     True   Full         1Gi             60s  full: it is the first one
        b     vm  nfs     False  Incremental  3Mi     a       30s  it is damaged
        c     vm  nfs     False                               10s  it waits
        ");
    }
}
