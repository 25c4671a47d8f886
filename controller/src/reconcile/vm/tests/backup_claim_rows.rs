//! Backups in claims: the pod that has a claim mounted comes before each task, and goes after it.
//!
//! Invariant: kubelet and the scheduler do what a test says; the claim is the test's.
//! Failure: the condition, or the writes that were made.

use crds::conditions::{CREATED, SOURCE_READY};
use crds::names;
use serde_json::{Value, json};

use super::bench::*;

mod pods;

fn in_claim() -> Value {
    json!({ "target": null, "targetClaimName": "store" })
}

/// A claim of the namespace; returns its UID.
fn claim(bench: &mut Bench, changes: &Value) -> String {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "store", "namespace": "ns" },
        "spec": { "volumeMode": "Filesystem", "accessModes": ["ReadWriteOnce"] },
        "status": { "phase": "Bound" },
    });
    json_patch::merge(&mut claim, changes);
    let made = bench.put(CLAIMS, claim);
    bench.sync();
    made["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// A machine with a disk on `n1`, and a claim; returns the claim's UID.
fn with_claim() -> (Bench, String) {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.keeps_claims("n1");
    let uid = claim(&mut bench, &json!({}));
    (bench, uid)
}

/// The pods that have a claim mounted.
fn pods(bench: &Bench) -> Vec<Value> {
    let server = bench.server.lock().unwrap();
    let all = server.objects.iter().filter(|((c, _), _)| c == PODS);
    all.map(|(_, pod)| pod.clone())
        .filter(|pod| pod["metadata"]["labels"][names::POD_ROLE_LABEL] == "backup-target")
        .collect()
}

fn pod_name(bench: &Bench) -> String {
    let all = pods(bench);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]["metadata"]["name"].as_str().unwrap().to_owned()
}

/// The node that has the disk of the machine, as its status says.
fn node(bench: &Bench) -> Value {
    bench.get(VMS, "vm")["status"]["nodeName"].clone()
}

/// kubelet runs the pod.
fn runs(bench: &mut Bench) {
    let name = pod_name(bench);
    let running = json!({ "name": "target", "state": { "running": {} } });
    let change = json!({
        "spec": { "nodeName": "n1" },
        "status": { "phase": "Running", "containerStatuses": [running] },
    });
    bench.edit(PODS, &name, change);
}

/// kubelet has ended the pods that are being deleted; returns how many.
fn ended(bench: &mut Bench) -> usize {
    let mut all = pods(bench);
    all.retain(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
    for pod in &all {
        bench.remove(PODS, pod["metadata"]["name"].as_str().unwrap());
    }
    all.len()
}

/// A complete backup in the claim.
async fn backed_up(bench: &mut Bench) -> String {
    let uid = bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    runs(bench);
    bench.backup_settles("b").await;
    bench.node_backs_up(None);
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Ready"), "True/Ready");
    assert_eq!(ended(bench), 1, "the pod goes with the task");
    uid
}

#[tokio::test]
async fn a_pod_mounts_the_claim_before_the_task_and_goes_after_it() {
    let (mut bench, claim) = with_claim();
    let uid = bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    let status = bench.get(BACKUPS, "b")["status"].clone();
    assert_eq!(status["targetClaimUID"], claim.as_str());
    assert_eq!(bench.backup_condition("b", "Completed"), "False/Waiting");
    let text = bench.backup_message("b", "Completed");
    assert!(text.contains("mounts claim store on node n1"), "{text}");
    assert!(text.contains("not ReadWriteMany"), "{text}");
    assert!(bench.tasks("Backup").is_empty());
    let pod = pods(&bench).remove(0);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], uid.as_str());
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations[names::BACKUP_TARGET_CLAIM], claim.as_str());
    assert_eq!(
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        "store"
    );
    assert!(pod["spec"]["priorityClassName"].is_null());

    runs(&mut bench);
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Completed"), "False/InProgress");
    let task = bench.task("Backup");
    let target = format!("claim:{claim}");
    assert_eq!(task["spec"]["backup"]["target"], target.as_str());
    assert!(pods(&bench)[0]["metadata"]["deletionTimestamp"].is_null());
    bench.node_backs_up(None);
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Ready"), "True/Ready");
    assert_eq!(ended(&mut bench), 1);
    bench.writes();
    bench.backup_settles("b").await;
    assert!(bench.writes().is_empty() && pods(&bench).is_empty());
}

#[tokio::test]
async fn a_controller_that_is_killed_after_any_write_makes_one_pod_and_one_task() {
    for left in 0..8 {
        let (mut bench, _) = with_claim();
        bench.backup("b", &in_claim());
        bench.server.lock().unwrap().writes_left = Some(left);
        // Until the kill, which is an error of the pass.
        for _ in 0..6 {
            let died = bench.backup_pass("b").await.is_err();
            if !pods(&bench).is_empty() {
                runs(&mut bench);
            }
            if died {
                break;
            }
        }
        bench.server.lock().unwrap().writes_left = None;
        bench.backup_settles("b").await;
        runs(&mut bench);
        bench.backup_settles("b").await;
        bench.task("Backup");
        bench.node_backs_up(None);
        bench.backup_settles("b").await;
        assert_eq!(bench.backup_condition("b", "Ready"), "True/Ready", "{left}");
        assert_eq!(ended(&mut bench), 1, "{left}");
    }
}

#[tokio::test]
async fn what_keeps_a_claim_from_a_node_is_said_in_words() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    let says = |bench: &Bench| bench.backup_message("b", "Completed");
    bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    assert!(says(&bench).contains("claim store does not exist"));
    let uid = claim(&mut bench, &json!({}));
    // A node of an earlier version gets neither pod nor task.
    bench.backup_settles("b").await;
    assert!(says(&bench).contains("upgrade"), "{}", says(&bench));
    assert!(pods(&bench).is_empty());
    bench.keeps_claims("n1");
    bench.refuse(http::Method::POST, "pods", 403, 1);
    assert!(bench.backup_pass("b").await.is_ok());
    assert!(says(&bench).contains("failed to create pod"));
    bench.backup_settles("b").await;
    let name = pod_name(&bench);
    let unfit = json!({ "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no such volume here",
    }] });
    bench.edit(PODS, &name, json!({ "status": unfit }));
    bench.backup_settles("b").await;
    let text = says(&bench);
    assert!(text.contains("does not place pod") && text.contains("no such volume here"));
    let waiting = json!({ "reason": "CreateContainerError", "message": "mounted read-only" });
    let status = json!({
        "phase": "Pending", "conditions": null,
        "containerStatuses": [{ "name": "target", "state": { "waiting": waiting } }],
    });
    bench.edit(PODS, &name, json!({ "status": status }));
    bench.backup_settles("b").await;
    assert!(says(&bench).contains("mounted read-only"));
    runs(&mut bench);
    bench.backup_settles("b").await;
    bench.task("Backup");
    assert_eq!(
        bench.get(BACKUPS, "b")["status"]["targetClaimUID"],
        uid.as_str()
    );
}

#[tokio::test]
async fn a_claim_that_can_have_no_backups_or_is_another_one_ends_the_backup() {
    for (changes, words) in [
        (
            json!({ "spec": { "volumeMode": "Block" } }),
            "volumeMode Block",
        ),
        (
            json!({ "spec": { "accessModes": ["ReadOnlyMany"] } }),
            "ReadOnlyMany",
        ),
    ] {
        let mut bench = Bench::new();
        bench.with_disk("vm");
        bench.keeps_claims("n1");
        claim(&mut bench, &changes);
        bench.backup("b", &in_claim());
        bench.backup_settles("b").await;
        assert_eq!(bench.backup_condition("b", "Completed"), "False/Failed");
        let text = bench.backup_message("b", "Completed");
        assert!(text.contains(words), "{text}");
        assert!(pods(&bench).is_empty());
    }
    let (mut bench, _) = with_claim();
    bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    bench.remove(CLAIMS, "store");
    claim(&mut bench, &json!({}));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Completed"), "False/Failed");
    let text = bench.backup_message("b", "Completed");
    assert!(text.contains("is not the one"), "{text}");
    assert!(pods(&bench).is_empty(), "no node had it");
}

#[tokio::test]
async fn a_verification_and_a_deletion_have_the_claim_mounted_again() {
    let (mut bench, _) = with_claim();
    backed_up(&mut bench).await;
    bench.edit(BACKUPS, "b", json!({ "spec": { "verifyRequest": "1" } }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Verified"), "Unknown/Waiting");
    assert!(bench.tasks("VerifyBackup").is_empty());
    runs(&mut bench);
    bench.backup_settles("b").await;
    bench.backup_task_ends("VerifyBackup", &json!({ "state": "Success" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Verified"), "True/Verified");
    assert_eq!(ended(&mut bench), 1);

    bench.delete_backup("b");
    bench.backup_settles("b").await;
    let text = bench.backup_message("b", "Ready");
    assert!(
        text.contains("mounts claim store") && text.contains("Retain"),
        "{text}"
    );
    runs(&mut bench);
    bench.backup_settles("b").await;
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    assert!(bench.backup_pass("b").await.is_ok());
    assert!(bench.try_get(BACKUPS, "b").is_none());
}

#[tokio::test]
async fn a_backup_whose_claim_is_gone_loses_its_layer_and_then_waits_for_its_user() {
    let (mut bench, claim) = with_claim();
    backed_up(&mut bench).await;
    bench.remove(CLAIMS, "store");
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    let task = bench.task("DeleteBackup");
    let target = format!("claim:{claim}");
    assert_eq!(task["spec"]["backup"]["target"], target.as_str());
    assert_eq!(task["spec"]["nodeName"], "n1");
    assert!(pods(&bench).is_empty());
    let text = bench.backup_message("b", "Ready");
    assert!(text.contains("lets go of the layer"), "{text}");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Ready"), "False/DeletionFailed");
    let text = bench.backup_message("b", "Ready");
    assert!(
        text.contains("no longer exists") && text.contains("Retain"),
        "{text}"
    );
    let retained = json!({ "spec": { "deletionPolicy": "Retain" } });
    bench.edit(BACKUPS, "b", retained);
    assert!(bench.backup_pass("b").await.is_ok());
    assert!(bench.try_get(BACKUPS, "b").is_none());
}

#[tokio::test]
async fn a_machine_that_is_restored_has_the_claim_mounted_until_it_has_its_disk() {
    let (mut bench, claim) = with_claim();
    let backup = backed_up(&mut bench).await;
    bench.remove(VMS, "vm");
    let source = json!({ "spec": { "imageName": null, "source": { "backup": { "name": "b" } } } });
    let uid = bench.machine(source);
    bench.settle().await.ok();
    assert!(bench.tasks("RestoreBackup").is_empty());
    let pod = pods(&bench).remove(0);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], uid.as_str());
    let text = bench.condition(SOURCE_READY).unwrap().message;
    assert!(text.contains("mounts claim store"), "{text}");
    assert!(node(&bench).is_null(), "it may never mount the claim");
    runs(&mut bench);
    bench.settle().await.ok();
    assert_eq!(node(&bench), "n1");
    let task = bench.task("RestoreBackup");
    assert_eq!(task["spec"]["backup"]["uid"], backup.as_str());
    let target = format!("claim:{claim}");
    assert_eq!(task["spec"]["backup"]["target"], target.as_str());
    bench.task_ends("RestoreBackup", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CREATED), "True/Provisioned");
    assert_eq!(ended(&mut bench), 1);
}

#[tokio::test]
async fn a_user_who_fetches_a_backup_has_its_claim_mounted_for_a_while() {
    let (mut bench, _) = with_claim();
    backed_up(&mut bench).await;
    let until = |bench: &mut Bench, text: Value| {
        let change =
            json!({ "metadata": { "annotations": { names::BACKUP_MOUNTED_UNTIL: text } } });
        bench.edit(BACKUPS, "b", change);
    };
    for odd in ["soon", "2000-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
        until(&mut bench, json!(odd));
        bench.backup_settles("b").await;
        assert!(pods(&bench).is_empty(), "{odd}");
    }
    let hour = jiff::Timestamp::from_second(START + 3600).unwrap();
    until(&mut bench, json!(hour.to_string()));
    bench.backup_settles("b").await;
    runs(&mut bench);
    bench.backup_settles("b").await;
    assert_eq!(ended(&mut bench), 0);
    bench.forward(3601);
    bench.backup_settles("b").await;
    assert_eq!(ended(&mut bench), 1);
}

#[tokio::test]
async fn a_schedule_makes_its_backups_in_a_claim() {
    let (mut bench, _) = with_claim();
    bench.put(
        SCHEDULES,
        json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackupSchedule",
            "metadata": { "name": "nightly", "namespace": "ns" },
            "spec": { "schedule": "0 * * * *", "vmNames": ["vm"], "targetClaimName": "store" },
        }),
    );
    let begun = json!({ "status": { "lastScheduleTime": bench.time() } });
    bench.edit(SCHEDULES, "nightly", begun);
    bench.forward(3600);
    bench.scheduled().await;
    let server = bench.server.lock().unwrap();
    let mut made = server.objects.iter().filter(|((c, _), _)| c == BACKUPS);
    let spec = &made.next().unwrap().1["spec"];
    assert_eq!(spec["targetClaimName"], "store");
    assert!(spec["target"].is_null());
}
