//! Backups of machines: made, verified, deleted, and machines that are restored from them.
//!
//! Invariant: tasks end as a test says; the machine is written by the test alone.
//! Failure: none of its own.

use std::time::Duration;

use crds::conditions::{CREATED, SOURCE_READY};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::bench::*;
use crate::context::Key;
use crate::flow::Flow;
use crate::reconcile::backup::{Health, health};

fn transient() -> Value {
    json!({ "state": "Error", "transient": true })
}

#[tokio::test]
async fn a_backup_is_made_by_the_node_of_the_disk_and_its_result_is_recorded_once() {
    let mut bench = Bench::new();
    let disk = bench.with_disk("vm");
    let uid = bench.backup(
        "b",
        &json!({ "mode": "Full", "quiesce": { "timeout": "30s" } }),
    );
    bench.writes();
    assert!(bench.backup_pass("b").await.is_ok());
    // The finalizer, then what the target may have, then the task.
    let writes = bench.writes();
    let kinds: Vec<_> = writes
        .iter()
        .map(|one| one.split('-').next().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "PATCH virtualmachinebackups/b",
            "PATCH virtualmachinebackups/b/status",
            "POST virtualmachinetasks/b",
        ]
    );
    let task = bench.task("Backup");
    assert_eq!(task["spec"]["nodeName"], "n1");
    assert_eq!(task["spec"]["vmUID"], disk.as_str());
    assert_eq!(
        task["spec"]["backup"],
        json!({ "uid": uid, "target": "default", "full": true, "quiesceSeconds": 30 })
    );
    assert_eq!(task["metadata"]["ownerReferences"][0]["uid"], uid.as_str());
    assert_eq!(bench.backup_condition("b", "Completed"), "False/InProgress");
    let name = task["metadata"]["name"].as_str().unwrap();
    let half = json!({ "status": { "state": "Running", "progressPercent": 57 } });
    bench.edit(TASKS, name, half);
    bench.backup_settles("b").await;
    assert_eq!(bench.get(BACKUPS, "b")["status"]["progressPercent"], 50);

    bench.node_backs_up(None);
    bench.backup_settles("b").await;
    let status = bench.get(BACKUPS, "b")["status"].clone();
    assert_eq!(status["type"], "Full");
    assert!(status["fullReason"].is_null(), "it was requested");
    assert_eq!(status["storage"]["stored"], "3Mi");
    assert_eq!(status["storage"]["read"], "4Mi");
    assert_eq!(status["manifest"]["spec"]["runStrategy"], "Halted");
    assert_eq!(bench.backup_condition("b", "Completed"), "True/Completed");
    assert!(bench.events().contains(&"BackupCompleted".to_owned()));
    // The task is kept for a while, and its end writes nothing.
    bench.writes();
    bench.backup_settles("b").await;
    assert!(bench.writes().is_empty());
    bench.forward(601);
    bench.backup_settles("b").await;
    assert!(bench.tasks("Backup").is_empty());
}

#[tokio::test]
async fn a_backup_waits_for_what_can_pass_and_says_what_that_is() {
    let mut bench = Bench::new();
    let id = |bench: &Bench| bench.backup_message("b", "Completed");
    bench.backup("b", &json!({}));
    bench.backup_settles("b").await;
    assert!(id(&bench).contains("does not exist"), "{}", id(&bench));
    bench.with_disk("vm");
    bench.edit(
        VMS,
        "vm",
        json!({ "status": { "powerState": "Suspended" } }),
    );
    bench.backup_settles("b").await;
    assert!(id(&bench).contains("is suspended"), "{}", id(&bench));
    bench.edit(
        VMS,
        "vm",
        json!({ "status": { "powerState": "PoweredOff" } }),
    );
    bench.reaches("n1", &["other"]);
    bench.backup_settles("b").await;
    assert!(
        id(&bench).contains("no backup target default"),
        "{}",
        id(&bench)
    );
    bench.reaches("n1", &["default"]);
    let unpaused = json!({ "metadata": { "annotations": null, "labels": null } });
    for mark in [
        json!({ "annotations": { "vmlet.dev.protected/admin-paused": "" } }),
        json!({ "labels": { "vmlet.dev/paused": "devops" } }),
    ] {
        bench.edit(VMS, "vm", unpaused.clone());
        bench.edit(VMS, "vm", json!({ "metadata": mark }));
        bench.backup_settles("b").await;
        assert!(id(&bench).contains("administrator"), "{}", id(&bench));
        assert_eq!(bench.backup_condition("b", "Completed"), "False/Waiting");
        assert!(bench.tasks("Backup").is_empty());
    }
    bench.edit(VMS, "vm", unpaused);
    bench.backup_settles("b").await;
    bench.task("Backup");
    // One at a time, and the oldest first: all are as old here, so that the name decides.
    for name in ["c", "d"] {
        bench.backup(name, &json!({}));
    }
    bench.backup("other", &json!({ "target": "other" }));
    bench.backup_settles("d").await;
    let text = bench.backup_message("d", "Completed");
    assert!(
        text.contains("backup b of the machine is made first"),
        "{text}"
    );
    bench.node_backs_up(None);
    bench.backup_settles("b").await;
    bench.backup_settles("d").await;
    let text = bench.backup_message("d", "Completed");
    assert!(
        text.contains("backup c of the machine is made first"),
        "{text}"
    );
    // One that waits for another target is in no way, and one that failed has had its turn.
    bench.backup_settles("other").await;
    bench.backup_settles("c").await;
    bench.backup_task_ends("Backup", &transient());
    bench.forward(10);
    assert!(bench.backup_pass("c").await.is_ok());
    bench.backup_settles("d").await;
    assert_eq!(bench.tasks("Backup").len(), 2);
}

#[tokio::test]
async fn a_root_disk_in_a_claim_and_a_restored_object_fail_for_good() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    let volume =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "c", "root": true } });
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": [volume] } }));
    bench.backup("b", &json!({}));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Completed"), "False/Failed");
    assert!(
        bench
            .backup_message("b", "Completed")
            .contains("is a claim")
    );
    assert_eq!(bench.events(), ["BackupFailed"]);
    bench.backup("copied", &json!({}));
    let copied = json!({ "metadata": { "annotations": { "vmlet.dev/backup-uid": "earlier" } } });
    bench.edit(BACKUPS, "copied", copied);
    bench.backup_settles("copied").await;
    assert_eq!(
        bench.backup_condition("copied", "Completed"),
        "False/Failed"
    );
    assert!(bench.tasks("Backup").is_empty());
}

#[tokio::test]
async fn a_failure_that_may_pass_is_repeated_ever_later_under_the_same_uid() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    let uid = bench.backup("b", &json!({}));
    bench.backup_settles("b").await;
    for hold in [10, 20, 40] {
        bench.backup_task_ends("Backup", &transient());
        let ended = bench.backup_pass("b").await.unwrap();
        assert_eq!(ended, Flow::RequeueAfter(Duration::from_secs(hold)));
        assert!(
            bench
                .backup_message("b", "Completed")
                .contains("said the node")
        );
        bench.forward(i64::try_from(hold).unwrap());
        bench.backup_settles("b").await;
        let task = bench.task("Backup");
        assert!(task["status"].is_null());
        assert_eq!(task["spec"]["backup"]["uid"], uid.as_str());
    }
    bench.backup_task_ends("Backup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Completed"), "False/Failed");
}

#[tokio::test]
async fn a_machine_that_goes_meanwhile_ends_its_backup_and_a_complete_one_stays() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("first", None).await;
    bench.backup("b", &json!({}));
    bench.backup_settles("b").await;
    bench.remove(VMS, "vm");
    bench.backup_task_ends("Backup", &transient());
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Completed"), "False/Failed");
    bench.backup_settles("first").await;
    assert_eq!(bench.backup_condition("first", "Ready"), "True/Ready");
    // Another machine of that name has another disk.
    bench.with_disk("vm");
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Completed"), "False/Failed");
}

#[tokio::test]
async fn a_verification_that_finds_damage_says_so_once_and_another_request_asks_again() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("b", None).await;
    assert_eq!(bench.backup_condition("b", "Verified"), "-/-");
    let request = |text: &str| json!({ "spec": { "verifyRequest": text } });
    bench.edit(BACKUPS, "b", request("1"));
    bench.backup_settles("b").await;
    let task = bench.task("VerifyBackup");
    assert_eq!(task["spec"]["backup"]["manifestSHA256"], "a".repeat(64));
    bench.events();
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Verified"), "False/Damaged");
    assert_eq!(bench.backup_condition("b", "Ready"), "False/Damaged");
    assert_eq!(bench.events(), ["BackupDamaged"]);
    bench.writes();
    bench.backup_settles("b").await;
    assert!(bench.writes().is_empty() && bench.tasks("VerifyBackup").is_empty());
    bench.edit(BACKUPS, "b", request("2"));
    bench.backup_settles("b").await;
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Success" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Verified"), "True/Verified");
    assert_eq!(bench.backup_condition("b", "Ready"), "True/Ready");
}

#[tokio::test]
async fn a_verification_begins_in_the_pass_that_records_the_backup_and_a_chain_ends_with_damage() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backup("b", &json!({ "verify": true }));
    bench.backup_settles("b").await;
    bench.node_backs_up(None);
    assert!(bench.backup_pass("b").await.is_ok());
    bench.task("VerifyBackup");
    // A daemon that an agent finds to be of another version says nothing of the content.
    let refused = json!({ "state": "Error", "startTime": null });
    bench.backup_task_ends("VerifyBackup", &refused);
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Verified"), "Unknown/Waiting");
    assert_eq!(bench.backup_condition("b", "Ready"), "True/Ready");
    bench.forward(10);
    bench.backup_settles("b").await;
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Ready"), "False/Damaged");
    bench.backup("next", &json!({}));
    bench.backup_settles("next").await;
    let tasks = bench.tasks("Backup");
    let is_next = |task: &&Value| task["status"].is_null();
    let next = tasks.iter().find(is_next).unwrap();
    assert_eq!(next["spec"]["backup"]["full"], true);
}

#[tokio::test]
async fn a_backup_stays_while_a_machine_is_restored_from_it() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("b", None).await;
    bench.remove(VMS, "vm");
    let source = json!({ "spec": { "imageName": null, "source": { "backup": { "name": "b" } } } });
    bench.machine(source);
    bench.settle().await.ok();
    bench.task("RestoreBackup");
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    let text = bench.backup_message("b", "Ready");
    assert!(
        text.contains("machine vm is being restored from it"),
        "{text}"
    );
    assert!(bench.tasks("DeleteBackup").is_empty());
    bench.task_ends("RestoreBackup", "Success");
    bench.settle().await.ok();
    bench.backup_settles("b").await;
    bench.task("DeleteBackup");
}

#[tokio::test]
async fn a_restore_ends_with_its_node_and_not_with_its_agent() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("b", None).await;
    bench.remove(VMS, "vm");
    let source = json!({ "spec": { "imageName": null, "source": { "backup": { "name": "b" } } } });
    bench.machine(source);
    bench.settle().await.ok();
    assert_eq!(bench.task("RestoreBackup")["spec"]["nodeName"], "n1");
    // The agent is upgraded, say, and the daemon copies on.
    bench.agents(&[]);
    bench.node("n2", true);
    bench.reaches("n2", &["default"]);
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    let text = bench.backup_message("b", "Ready");
    assert!(text.contains("vm is being restored from it"), "{text}");
    assert!(text.contains("Retain ends the wait"), "{text}");
    bench.remove(NODES, "n1");
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n2");
}

#[tokio::test]
async fn a_lost_node_holds_up_no_deletion_of_what_it_only_verifies_or_of_what_stays() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.node("n2", true);
    bench.reaches("n2", &["default"]);
    bench.backed_up("b", None).await;
    bench.edit(BACKUPS, "b", json!({ "spec": { "verifyRequest": "1" } }));
    bench.backup_settles("b").await;
    let task = bench.task("VerifyBackup");
    let name = task["metadata"]["name"].as_str().unwrap();
    bench.edit(TASKS, name, json!({ "status": { "state": "Running" } }));
    bench.remove(NODES, "n1");
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    assert!(bench.tasks("VerifyBackup").is_empty());
    let task = bench.task("DeleteBackup");
    assert_eq!(task["spec"]["nodeName"], "n2");
    let name = task["metadata"]["name"].as_str().unwrap();
    bench.edit(TASKS, name, json!({ "status": { "state": "Running" } }));
    let retained = json!({ "spec": { "deletionPolicy": "Retain" } });
    bench.edit(BACKUPS, "b", retained);
    bench.events();
    bench.backup_settles("b").await;
    assert!(bench.try_get(BACKUPS, "b").is_none());
    // A node may have deleted the data.
    assert!(bench.events().is_empty());
}

#[tokio::test]
async fn another_node_that_reaches_the_target_verifies_and_deletes() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("b", None).await;
    bench.node("n2", true);
    bench.reaches("n1", &[]);
    bench.edit(BACKUPS, "b", json!({ "spec": { "verifyRequest": "1" } }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Verified"), "Unknown/Waiting");
    bench.reaches("n2", &["default"]);
    bench.backup_settles("b").await;
    assert_eq!(bench.task("VerifyBackup")["spec"]["nodeName"], "n2");
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Success" }));
    bench.backup_settles("b").await;
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    // It lets go of the layer that it keeps for the backup.
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n1");
    let busy = json!({ "state": "Error", "transient": true });
    bench.backup_task_ends("DeleteBackup", &busy);
    bench.backup_settles("b").await;
    bench.forward(60);
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n1");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n2");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("b").await;
    assert!(bench.try_get(BACKUPS, "b").is_none());
}

#[tokio::test]
async fn what_waits_for_a_node_is_looked_at_again_also_without_an_event() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("b", None).await;
    bench.forward(601);
    bench.backup_settles("b").await;
    assert!(bench.tasks("Backup").is_empty());
    // No agent lives.
    bench.agents(&[]);
    let later = Flow::RequeueAfter(Duration::from_secs(600));
    bench.edit(BACKUPS, "b", json!({ "spec": { "verifyRequest": "1" } }));
    assert_eq!(bench.backup_pass("b").await.unwrap(), later);
    assert_eq!(bench.backup_condition("b", "Verified"), "Unknown/Waiting");
    bench.delete_backup("b");
    assert_eq!(bench.backup_pass("b").await.unwrap(), later);
    assert_eq!(bench.backup_condition("b", "Ready"), "False/DeletionFailed");
    bench.node("n2", true);
    bench.reaches("n2", &["default"]);
    bench.backup_settles("b").await;
    // Its own node may come back.
    assert!(bench.tasks("DeleteBackup").is_empty());
    bench.remove(NODES, "n1");
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n2");
}

#[tokio::test]
async fn a_damage_lasts_when_the_backup_is_deleted_while_it_is_verified_again() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    let first = bench.backed_up("first", None).await;
    bench.backed_up("second", Some(&first)).await;
    let request = |text: &str| json!({ "spec": { "verifyRequest": text } });
    bench.edit(BACKUPS, "first", request("1"));
    bench.backup_settles("first").await;
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Error" }));
    bench.backup_settles("first").await;
    let found = bench.backup_message("first", "Ready");
    bench.edit(BACKUPS, "first", request("2"));
    bench.backup_settles("first").await;
    let verified = bench.backup_condition("first", "Verified");
    assert_eq!(verified, "Unknown/VerificationInProgress");
    bench.delete_backup("first");
    bench.backup_settles("first").await;
    let ready = bench.backup_condition("first", "Ready");
    assert_eq!(ready, "False/DeletionInProgress");
    let verified = bench.backup_condition("first", "Verified");
    assert_eq!(verified, "False/Damaged");
    assert_eq!(bench.backup_message("first", "Verified"), found);
    let all = bench.ctx.stores.backups_of(&Key::new("ns", "vm"));
    let second = all.iter().find(|one| one.name_any() == "second").unwrap();
    assert_eq!(health(second, &all), Health::Damaged);
}

#[tokio::test]
async fn a_backup_is_deleted_after_those_that_build_upon_it() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    let first = bench.backed_up("first", None).await;
    bench.backed_up("second", Some(&first)).await;
    let second = bench.get(BACKUPS, "second");
    assert_eq!(
        second["status"]["parent"],
        json!({ "name": "first", "uid": first })
    );
    assert_eq!(second["status"]["type"], "Incremental");
    bench.delete_backup("first");
    bench.backup_settles("first").await;
    assert!(
        bench
            .backup_message("first", "Ready")
            .contains("backup second builds upon it")
    );
    assert!(bench.tasks("DeleteBackup").is_empty());
    // One that is being made may build upon it.
    bench.backup("third", &json!({}));
    bench.backup_settles("third").await;
    bench.delete_backup("second");
    bench.backup_settles("second").await;
    let text = bench.backup_message("second", "Ready");
    assert!(text.contains("backup third is being made"), "{text}");
    bench.backup_task_ends("Backup", &json!({ "state": "Error" }));
    bench.backup_settles("third").await;
    bench.backup_settles("second").await;
    bench.backup_task_ends("DeleteBackup", &transient());
    bench.backup_settles("second").await;
    assert_eq!(
        bench.backup_condition("second", "Ready"),
        "False/DeletionFailed"
    );
    bench.forward(10);
    bench.backup_settles("second").await;
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("second").await;
    assert!(bench.try_get(BACKUPS, "second").is_none());
    bench.backup_settles("first").await;
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("first").await;
    assert!(bench.try_get(BACKUPS, "first").is_none());
}

#[tokio::test]
async fn data_that_are_retained_and_backups_that_were_never_begun_need_no_node() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("kept", None).await;
    bench.edit(
        BACKUPS,
        "kept",
        json!({ "spec": { "deletionPolicy": "Retain" } }),
    );
    bench.backup("waits", &json!({ "target": "other" }));
    bench.backup_settles("waits").await;
    bench.events();
    for name in ["kept", "waits"] {
        bench.delete_backup(name);
        bench.backup_settles(name).await;
        assert!(bench.try_get(BACKUPS, name).is_none(), "{name}");
    }
    assert!(bench.tasks("DeleteBackup").is_empty());
    assert_eq!(bench.events(), ["BackupRetained"]);
}

#[tokio::test]
async fn the_deletion_of_a_backup_that_is_being_made_ends_its_task_first() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backup("b", &json!({}));
    bench.backup_settles("b").await;
    let name = bench.task("Backup")["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    bench.edit(TASKS, &name, json!({ "status": { "state": "Running" } }));
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    assert_eq!(bench.task("Backup")["spec"]["cancel"], true);
    assert!(bench.tasks("DeleteBackup").is_empty());
    bench.backup_task_ends("Backup", &json!({ "state": "Cancelled" }));
    bench.backup_settles("b").await;
    // The node may have completed it before.
    bench.task("DeleteBackup");
}

#[tokio::test]
async fn a_machine_is_restored_from_a_backup_of_one_that_is_gone() {
    let mut bench = Bench::new();
    let disk = bench.with_disk("vm");
    let uid = bench.backed_up("b", None).await;
    bench.remove(VMS, "vm");
    let source = json!({ "spec": { "imageName": null, "source": { "backup": { "name": "b" } } } });
    let new = bench.machine(source);
    bench.settle().await.ok();
    let task = bench.task("RestoreBackup");
    assert_eq!(task["spec"]["vmUID"], new.as_str());
    assert_eq!(task["spec"]["nodeName"], "n1");
    assert_eq!(
        task["spec"]["backup"],
        json!({
            "uid": uid, "target": "default", "diskUID": disk, "full": false,
            "manifestSHA256": "a".repeat(64),
        })
    );
    assert!(task["spec"]["source"].is_null());
    assert_eq!(bench.condition_text(SOURCE_READY), "True/Copying");
    bench.task_ends("RestoreBackup", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CREATED), "True/Provisioned");
    assert_eq!(bench.condition_text(SOURCE_READY), "-");
    assert_eq!(bench.status().storage.unwrap().requested.unwrap().0, "10Mi");
    assert!(bench.has_pod());
}

#[tokio::test]
async fn a_machine_waits_for_its_backup_and_fails_with_one_that_is_damaged() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    let source = json!({ "spec": { "imageName": null, "source": { "backup": { "name": "b" } } } });
    bench.key = Key::new("ns", "new");
    bench.machine_named("new", source);
    let restored = |bench: &Bench| -> String {
        let vm = bench.get(VMS, "new");
        let all = vm["status"]["conditions"].as_array().unwrap();
        let found = all.iter().find(|one| one["type"] == SOURCE_READY).unwrap();
        found["message"].as_str().unwrap().to_owned()
    };
    bench.settle().await.ok();
    assert!(restored(&bench).contains("does not exist"));
    bench.backup("b", &json!({}));
    bench.backup_settles("b").await;
    let result = bench.settle().await;
    assert!(matches!(result, Ok(Flow::Waiting(_))), "{result:?}");
    assert!(restored(&bench).contains("is not complete yet"));
    bench.node_backs_up(None);
    bench.backup_settles("b").await;
    bench.reaches("n1", &[]);
    bench.settle().await.ok();
    assert!(restored(&bench).contains("backup target default"));
    bench.edit(BACKUPS, "b", json!({ "spec": { "verifyRequest": "1" } }));
    bench.reaches("n1", &["default"]);
    bench.backup_settles("b").await;
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    bench.settle().await.ok();
    assert!(
        restored(&bench).contains("cannot be restored"),
        "{}",
        restored(&bench)
    );
    assert!(bench.tasks("RestoreBackup").is_empty());
}
