//! Backups of a machine with the real controller, against a real API server: the node, its agent and the
//! scheduler are the test.
//!
//! Invariant: the machine is off, so that no pod is needed; every rule of the kinds and every policy counts.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use crds::names::{BACKUP_TARGET, DISK_BACKUPS};
use e2e::machines::{condition, machine};
use e2e::{Cluster, Control, Effect, Who, eventually};
use serde_json::{Value, json};

use crate::clones::allow_rules;
use crate::played::{SYSTEM, installed, node, renewals};
use crate::protected::denied;
use crate::snapshots::{disk, success};
use crate::vmletctl::Ctl;

const SOON: Duration = Duration::from_secs(240);
const BACKUP: &str = "VirtualMachineBackup";
const SCHEDULE: &str = "VirtualMachineBackupSchedule";
const KINDS: [&str; 4] = ["Backup", "VerifyBackup", "DeleteBackup", "RestoreBackup"];

#[tokio::test]
#[ignore = "needs root"]
async fn backups_are_made_by_schedule_too_and_restored_without_their_machine() -> Result<()> {
    let control = Control::up().await?;
    let cluster = installed(&control).await?;
    node(cluster, "n1", &KINDS)?;
    reaches(cluster, "nfs")?;
    let controller = control
        .controller("controller", &["--lease-enabled", "false"])
        .await?;
    let ctl = Ctl::new(&control)?;
    let ended = tokio::select! {
        ended = story(cluster, &ctl) => ended,
        failed = renewals(cluster, "n1") => failed,
    };
    ended.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

/// Agent and daemon of the node make backups, to this target.
fn reaches(cluster: &Cluster, target: &str) -> Result<()> {
    let daemon = json!({
        "reachable": true, "taskKinds": KINDS, "features": [format!("{BACKUP_TARGET}{target}")],
    });
    let facts = json!({ "daemon": daemon, "features": [DISK_BACKUPS] });
    let change = json!({ "metadata": { "annotations": {
        crds::names::NODE_FACTS: facts.to_string(),
    } } });
    let patch = [
        "-n",
        SYSTEM,
        "patch",
        "lease",
        "vmlet-node-n1",
        "--type=merge",
        "-p",
    ];
    cluster
        .kubectl(&[&patch[..], &[&change.to_string()]].concat())
        .map(drop)
}

async fn story(cluster: &Cluster, ctl: &Ctl) -> Result<()> {
    cluster.apply(&machine("vm", &json!({ "runStrategy": "Halted" })))?;
    disk(cluster).await?;
    let disk_uid = cluster.vm("vm")?["metadata"]["uid"].clone();

    backup(cluster, "first")?;
    complete(cluster, &Value::Null, 1).await?;
    let first = await_state(cluster, "first", "Ready", "True").await?;
    ensure!(first["status"]["type"] == "Full", "{first}");
    ensure!(first["status"]["diskUID"] == disk_uid, "{first}");
    let manifest = &first["status"]["manifest"];
    ensure!(manifest["spec"]["runStrategy"] == "Halted", "{first}");
    backup(cluster, "second")?;
    complete(cluster, &first["metadata"]["uid"], 2).await?;
    let second = await_state(cluster, "second", "Ready", "True").await?;
    ensure!(second["status"]["parent"]["name"] == "first", "{second}");
    ensure!(second["status"]["storage"]["read"] == "4Mi", "{second}");

    let request = json!({ "spec": { "verifyRequest": "1" } }).to_string();
    cluster.kubectl(&[
        "patch",
        "vmbackup",
        "second",
        "--type=merge",
        "-p",
        &request,
    ])?;
    let digest = json!({ "state": "Success" });
    success(cluster, "VerifyBackup", &digest).await?;
    await_state(cluster, "second", "Verified", "True").await?;
    exports_are_refused(cluster, ctl)?;

    // Those that a schedule creates have its label, and are made as others.
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackupSchedule",
        "metadata": { "name": "often" },
        "spec": { "schedule": "* * * * *", "vmNames": ["vm"], "target": "nfs" },
    }))?;
    let made = eventually(SOON, "the backup of the schedule", || async {
        let label = "vmlet.dev/backup-schedule=often";
        let all = cluster.get_json(&["vmbackup", "-l", label])?;
        let name = all["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned).context("there is none")
    })
    .await?;
    cluster.kubectl(&["delete", "vmbackupschedule", "often"])?;
    complete(cluster, &second["metadata"]["uid"], 3).await?;
    await_state(cluster, &made, "Ready", "True").await?;

    // The machine goes, and its backups stay.
    cluster.kubectl(&["delete", "vm", "vm", "--wait=false"])?;
    success(cluster, "DeleteDisk", &json!({})).await?;
    let restored = json!({ "runStrategy": "Halted", "source": { "backup": { "name": "second" } } });
    let mut again = machine("again", &restored);
    if let Some(spec) = again["spec"].as_object_mut() {
        spec.remove("imageName");
    }
    cluster.apply(&again)?;
    success(cluster, "RestoreBackup", &json!({})).await?;
    cluster
        .await_vm("again", "its disk", SOON, |vm| {
            let created = condition(vm, "VirtualMachineCreated");
            ensure!(created["status"] == "True", "{created}");
            Ok(())
        })
        .await?;

    // The last one of a chain goes first.
    cluster.kubectl(&[
        "delete",
        "vmbackup",
        "first",
        "second",
        &made,
        "--wait=false",
    ])?;
    for name in [made.as_str(), "second", "first"] {
        success(cluster, "DeleteBackup", &json!({})).await?;
        eventually(SOON, "the end of a backup", || async {
            let left = cluster.kubectl(&["get", "vmbackup", "-o", "name"])?;
            let is_left = left.lines().any(|line| line.ends_with(&format!("/{name}")));
            ensure!(!is_left, "{left}");
            Ok(())
        })
        .await?;
        if name == made {
            // The node keeps no layer for those that are left.
            let left = cluster.get_json(&["vmbackup", "second"])?;
            ensure!(left["status"]["baseReleased"] == true, "{left}");
        }
    }
    Ok(())
}

/// No node sends what a user may not restore, what is not there, or what no node reaches.
fn exports_are_refused(cluster: &Cluster, ctl: &Ctl) -> Result<()> {
    let role = [
        "create",
        "role",
        "reader",
        "--verb=get",
        "--resource=virtualmachinebackups.vmlet.dev",
    ];
    cluster.kubectl(&role)?;
    let binding = ["create", "rolebinding", "reader"];
    cluster.kubectl(&[&binding[..], &["--role=reader", "--user=reader"]].concat())?;
    reaches(cluster, "other")?;
    for (options, words) in [
        ("--backup gone", "there is no backup gone"),
        ("--backup second", "has the backup target nfs"),
        (
            "--backup second --as reader",
            "virtualmachinebackups/source",
        ),
    ] {
        let file = cluster.stack().dir().join("never.qcow2");
        let line = format!("export {options} -o {}", file.display());
        let refused = ctl.refused(&line)?;
        ensure!(refused.contains(words), "{line}: {refused}");
    }
    reaches(cluster, "nfs")
}

fn backup(cluster: &Cluster, name: &str) -> Result<()> {
    cluster
        .apply(&json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackup",
            "metadata": { "name": name }, "spec": { "vmName": "vm", "target": "nfs" },
        }))
        .map(drop)
}

/// The node has made the requested backup, upon the one with this UID.
async fn complete(cluster: &Cluster, parent: &Value, minute: u32) -> Result<()> {
    let taken = json!({ "backup": {
        "full": parent.is_null(), "fullReason": "it is the first one", "parentUID": parent,
        "storedBytes": 3 << 20, "readBytes": 4 << 20, "virtualBytes": 1 << 30,
        "manifestSHA256": "a".repeat(64), "createdTime": format!("2026-01-01T00:{minute:02}:00Z"),
    }});
    success(cluster, "Backup", &taken).await
}

/// The backup, once a condition of it has this status.
async fn await_state(cluster: &Cluster, name: &str, kind: &str, status: &str) -> Result<Value> {
    eventually(SOON, "the backup", || async {
        let backup = cluster.get_json(&["vmbackup", name])?;
        let state = condition(&backup, &format!("VirtualMachineBackup{kind}"));
        ensure!(state["status"] == status, "{}", backup["status"]);
        Ok(backup)
    })
    .await
}

/// A user who mounts the claim reads the disk.
pub(super) async fn a_backup_in_a_claim_needs_the_right_to_read_the_disk(
    control: &Control,
) -> Result<()> {
    let namespace = "keepers";
    control.namespace(namespace).await?;
    let keeper = control.objects_as(&Who::user("keeper"), namespace)?;
    let rule = |resources: Value, verbs: Value, names: Value| {
        json!({
            "apiGroups": ["vmlet.dev"], "resources": resources, "verbs": verbs,
            "resourceNames": names,
        })
    };
    let backups = rule(
        json!(["virtualmachinebackups", "virtualmachinebackupschedules"]),
        json!(["create", "get", "patch"]),
        json!([]),
    );
    let backup = |vm: &str, place: Value| {
        let mut backup = json!({ "metadata": { "name": "b" }, "spec": place });
        backup["spec"]["vmName"] = json!(vm);
        backup
    };
    let claim = || json!({ "targetClaimName": "store" });
    let schedule = |place: Value| {
        let mut schedule = json!({ "metadata": { "name": "s" }, "spec": place });
        schedule["spec"]["schedule"] = json!("@daily");
        schedule["spec"]["vmNames"] = json!(["a"]);
        schedule
    };
    let words = "needs the right to create virtualmachines/source";
    allow_rules(control, "keeper", namespace, "keeper", &json!([backups]))?;
    eventually(Duration::from_secs(60), "the right to create", || async {
        let in_target = backup("a", json!({ "target": "nfs" }));
        let made = keeper.create(BACKUP, &in_target, Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    denied(
        keeper
            .create(BACKUP, &backup("a", claim()), Effect::DryRun)
            .await?,
        words,
    );
    denied(
        keeper
            .create(SCHEDULE, &schedule(claim()), Effect::DryRun)
            .await?,
        words,
    );

    // The right to the disk of one machine.
    let source = |names: Value| rule(json!(["virtualmachines/source"]), json!(["create"]), names);
    let rules = json!([backups, source(json!(["a"]))]);
    allow_rules(control, "keeper", namespace, "keeper", &rules)?;
    eventually(Duration::from_secs(60), "the right to read", || async {
        let in_claim = backup("a", claim());
        let made = keeper.create(BACKUP, &in_claim, Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    denied(
        keeper
            .create(BACKUP, &backup("b", claim()), Effect::DryRun)
            .await?,
        words,
    );
    denied(
        keeper
            .create(SCHEDULE, &schedule(claim()), Effect::DryRun)
            .await?,
        words,
    );
    let in_target = schedule(json!({}));
    let made = keeper.create(SCHEDULE, &in_target, Effect::Real).await?;
    made.map_err(Error::msg)?;
    let change = json!({ "spec": claim() });
    let refused = keeper.patch(SCHEDULE, "s", &change, Effect::DryRun);
    denied(refused.await?, words);

    let rules = json!([backups, source(json!([]))]);
    allow_rules(control, "keeper", namespace, "keeper", &rules)?;
    eventually(Duration::from_secs(60), "the right to all", || async {
        let patched = keeper.patch(SCHEDULE, "s", &change, Effect::DryRun).await?;
        patched.map(|_| ()).map_err(Error::msg)
    })
    .await
}
