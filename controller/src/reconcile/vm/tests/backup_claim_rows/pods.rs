//! Pods that do not mount their claim: they end, wait, are changed, or are needed no more.
//!
//! Invariant: as for the rows of all backups in claims.
//! Failure: the same.

use super::*;

/// A machine that is restored from a backup in a claim; its pod waits.
async fn restored() -> Bench {
    let (mut bench, _) = with_claim();
    backed_up(&mut bench).await;
    bench.remove(VMS, "vm");
    let source = json!({ "spec": { "imageName": null, "source": { "backup": { "name": "b" } } } });
    bench.machine(source);
    bench.settle().await.ok();
    assert_eq!(affinity(&bench), bound_to("n1"));
    bench
}

fn affinity(bench: &Bench) -> Value {
    let pod = pods(bench).remove(0);
    let nodes = &pod["spec"]["affinity"]["nodeAffinity"];
    nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
}

fn bound_to(node: &str) -> Value {
    let here = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    json!([{ "matchFields": [here] }])
}

/// A webhook has changed where the pod may run.
fn bind(bench: &mut Bench, terms: &Value) {
    let name = pod_name(bench);
    let required = json!({ "nodeSelectorTerms": terms });
    let nodes = json!({ "requiredDuringSchedulingIgnoredDuringExecution": required });
    let spec = json!({ "affinity": { "nodeAffinity": nodes } });
    bench.edit(PODS, &name, json!({ "spec": spec }));
}

#[tokio::test]
async fn a_pod_that_ends_at_once_is_made_again_after_a_minute() {
    let (mut bench, _) = with_claim();
    bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    let name = pod_name(&bench);
    let status = json!({ "phase": "Failed", "reason": "Evicted", "message": "DiskPressure" });
    let made = json!({ "creationTimestamp": bench.time() });
    let failed = json!({ "metadata": made, "spec": { "nodeName": "n1" }, "status": status });
    let earlier = pods(&bench)[0]["metadata"]["uid"].clone();
    bench.edit(PODS, &name, failed);
    bench.backup_settles("b").await;
    let text = bench.backup_message("b", "Completed");
    assert!(
        text.contains("ended on node n1: Evicted: DiskPressure"),
        "{text}"
    );
    bench.writes();
    bench.forward(30);
    assert!(bench.backup_pass("b").await.is_ok());
    assert_eq!(bench.writes(), [""; 0]);
    assert_eq!(ended(&mut bench), 0);
    bench.forward(31);
    bench.backup_settles("b").await;
    ended(&mut bench);
    bench.backup_settles("b").await;
    assert_ne!(pods(&bench)[0]["metadata"]["uid"], earlier);
    runs(&mut bench);
    bench.backup_settles("b").await;
    bench.task("Backup");
}

#[tokio::test]
async fn a_backup_whose_pod_never_ran_goes_at_once() {
    let (mut bench, claim) = with_claim();
    bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    let status = bench.get(BACKUPS, "b")["status"].clone();
    assert_eq!(status["targetClaimUID"], claim.as_str());
    assert!(status["diskUID"].is_null() && status["manifest"].is_null());
    bench.delete_backup("b");
    assert!(bench.backup_pass("b").await.is_ok());
    assert!(bench.try_get(BACKUPS, "b").is_none());
    assert!(pods(&bench).is_empty());
    assert!(bench.tasks("DeleteBackup").is_empty());
}

#[tokio::test]
async fn a_webhook_may_change_a_pod_that_stays_bound_to_its_node() {
    let (mut bench, _) = with_claim();
    bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    let mut terms = bound_to("n1");
    terms[0]["matchExpressions"] = json!([{ "key": "pool", "operator": "Exists" }]);
    bind(&mut bench, &terms);
    bench.backup_settles("b").await;
    assert_eq!(ended(&mut bench), 0);
    runs(&mut bench);
    bind(&mut bench, &json!([]));
    bench.backup_settles("b").await;
    bench.task("Backup");

    let (mut bench, _) = with_claim();
    bench.backup("b", &in_claim());
    bench.backup_settles("b").await;
    bind(&mut bench, &bound_to("n2"));
    bench.backup_settles("b").await;
    assert_eq!(affinity(&bench), bound_to("n1"), "it is made again");
}

#[tokio::test]
async fn a_restore_whose_node_never_mounts_the_claim_goes_on_at_another_one() {
    let mut bench = restored().await;
    bench.node("n2", true);
    bench.keeps_claims("n2");
    bench.edit(NODES, "n1", json!({ "spec": { "unschedulable": true } }));
    bench.settle().await.ok();
    assert_eq!(affinity(&bench), bound_to("n2"));
    assert!(node(&bench).is_null());
}

#[tokio::test]
async fn a_restore_that_cannot_go_on_leaves_the_claim() {
    let mut bench = restored().await;
    bench.delete_backup("b");
    bench.settle().await.ok();
    assert!(pods(&bench).is_empty());
    assert!(bench.tasks("RestoreBackup").is_empty());
}

#[tokio::test]
async fn a_layer_that_went_with_its_claim_is_no_longer_that_of_earlier_backups() {
    let (mut bench, _) = with_claim();
    let earlier = backed_up(&mut bench).await;
    bench.forward(10);
    bench.backup("c", &in_claim());
    bench.backup_settles("c").await;
    runs(&mut bench);
    bench.backup_settles("c").await;
    bench.node_backs_up(Some(&earlier));
    bench.backup_settles("c").await;
    ended(&mut bench);
    bench.remove(CLAIMS, "store");
    bench.delete_backup("c");
    bench.backup_settles("c").await;
    let is_released = |bench: &Bench| bench.get(BACKUPS, "b")["status"]["baseReleased"].clone();
    assert_ne!(is_released(&bench), true);
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Error" }));
    bench.backup_settles("c").await;
    assert_eq!(is_released(&bench), true);
}
