//! Snapshots that are deleted, by an owner or with their machine.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

#[tokio::test]
async fn t1e_a_snapshot_is_let_go_after_its_machine() {
    let mut bench = with_machine(json!({})).await;
    bench.taken("s").await;
    bench.remove(VMS, "vm");
    bench.delete_snapshot("s");
    assert_eq!(
        bench.get(SNAPSHOTS, "s")["metadata"]["finalizers"],
        json!([FINALIZER])
    );
    bench.passes().await;
    assert!(bench.try_get(SNAPSHOTS, "s").is_none());
    assert!(bench.tasks("DeleteSnapshot").is_empty());
}

/// Gives the snapshot an owner with that UID in place of its machine, and further owners.
fn owned(bench: &mut Bench, uid: &str, others: &[Value]) {
    let mut owners = vec![json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "name": "vm", "uid": uid,
    })];
    owners.extend_from_slice(others);
    let changed = json!({
        "metadata": { "ownerReferences": owners },
        "status": { "diskUID": uid },
    });
    bench.edit(SNAPSHOTS, "s", changed);
}

#[tokio::test]
async fn the_snapshots_of_an_earlier_machine_of_the_name_are_deleted() {
    let mut bench = with_machine(json!({})).await;
    bench.taken("s").await;
    owned(&mut bench, "earlier", &[]);
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "s").is_none());
    assert!(bench.tasks("DeleteSnapshot").is_empty());
}

#[tokio::test]
async fn a_snapshot_of_an_earlier_machine_stays_while_it_has_another_owner() {
    let mut bench = with_machine(json!({})).await;
    bench.taken("s").await;
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "batch", "uid": "batch",
    });
    owned(&mut bench, "earlier", &[other]);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Ready"), "False/DiskGone");
}

#[tokio::test]
async fn a_deleted_snapshot_leaves_its_children_to_its_parent() {
    let mut bench = with_machine(json!({})).await;
    for name in ["a", "b", "c"] {
        bench.taken(name).await;
    }
    bench.delete_snapshot("b");
    bench.settles().await;
    let task = bench.task("DeleteSnapshot");
    let uid = bench.get(SNAPSHOTS, "b")["metadata"]["uid"].clone();
    assert_eq!(task["spec"]["snapshot"]["uid"], uid);
    let under_way = "False/DeletionInProgress";
    assert_eq!(bench.snapshot_condition("b", "Ready"), under_way);
    bench.task_ends("DeleteSnapshot", "Success");
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "b").is_none());
    assert_eq!(status(&bench, "c")["parent"]["name"], "a");
    assert_eq!(children(&bench, "a"), ["c"]);
    assert_eq!(current(&bench), "c");
    bench.delete_snapshot("c");
    bench.settles().await;
    bench.task_ends("DeleteSnapshot", "Success");
    bench.settles().await;
    assert_eq!(current(&bench), "a");
    bench.delete_snapshot("a");
    bench.settles().await;
    bench.task_ends("DeleteSnapshot", "Success");
    bench.settles().await;
    assert_eq!(current(&bench), "-");
    assert_eq!(roots(&bench), Vec::<String>::new());
    assert!(bench.try_get(SNAPSHOTS, "c").is_none());
}

#[tokio::test]
async fn a_node_that_cannot_delete_a_snapshot_says_why_and_holds_up_no_other() {
    let mut bench = with_machine(json!({})).await;
    bench.taken("a").await;
    bench.taken("b").await;
    bench.delete_snapshot("a");
    bench.settles().await;
    node_fails(&mut bench, "DeleteSnapshot", false);
    bench.settles().await;
    let failed = "False/DeletionFailed";
    assert_eq!(bench.snapshot_condition("a", "Ready"), failed);
    let message = bench.snapshot_message("a", "Ready");
    assert!(message.contains("said the node"), "{message}");
    assert_eq!(bench.condition_text("Failure"), "-");
    bench.delete_snapshot("b");
    bench.settles().await;
    assert_eq!(bench.tasks("DeleteSnapshot").len(), 2);
    bench.task_ends("DeleteSnapshot", "Success");
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "b").is_none());
    bench.snapshot("c", json!({}));
    bench.settles().await;
    let open = bench.tasks("Snapshot").into_iter();
    let open = open.filter(|task| task["status"].is_null());
    assert_eq!(open.count(), 1);
    // The failed one is tried again.
    bench.forward(300);
    bench.task_ends("Snapshot", "Success");
    bench.settles().await;
    bench.settles().await;
    let open = bench.tasks("DeleteSnapshot").into_iter();
    let open = open.filter(|task| task["status"].is_null());
    assert_eq!(open.count(), 1);
}

/// A merge may take long, and makes way on the node.
#[tokio::test]
async fn a_machine_powers_off_and_is_suspended_while_a_snapshot_is_deleted() {
    for (state, kind) in [("PoweredOff", "GuestShutdown"), ("Suspended", "Save")] {
        let mut bench = with_machine(json!({})).await;
        bench.taken("a").await;
        bench.delete_snapshot("a");
        bench.settles().await;
        assert!(bench.task("DeleteSnapshot")["status"].is_null());
        let spec = json!({ "runStrategy": null, "powerState": state, "powerOffMode": "Soft" });
        bench.edit(VMS, "vm", json!({ "spec": spec }));
        bench.settle().await.ok();
        assert_eq!(bench.tasks(kind).len(), 1, "{state}");
    }
}

#[tokio::test]
async fn a_deletion_that_fails_while_the_guest_runs_is_repeated_when_it_is_off() {
    let mut bench = with_machine(json!({})).await;
    bench.taken("a").await;
    bench.delete_snapshot("a");
    bench.settles().await;
    node_fails(&mut bench, "DeleteSnapshot", true);
    bench.settles().await;
    bench.writes();
    bench.forward(29);
    bench.passes().await;
    assert_eq!(bench.writes(), Vec::<String>::new(), "it waits");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settles().await;
    bench.end("vm", 0, "Stopped");
    bench.settles().await;
    assert!(!bench.has_pod());
    let open = bench.tasks("DeleteSnapshot").into_iter();
    let open = open.filter(|task| task["status"].is_null());
    assert_eq!(open.count(), 1);
    let again = "False/DeletionInProgress";
    assert_eq!(bench.snapshot_condition("a", "Ready"), again);
    bench.task_ends("DeleteSnapshot", "Success");
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "a").is_none());
}

#[tokio::test]
async fn a_snapshot_that_is_deleted_on_its_way_ends_its_task_first() {
    let mut bench = with_machine(json!({})).await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    bench.delete_snapshot("s");
    bench.settles().await;
    assert_eq!(bench.task("Snapshot")["spec"]["cancel"], true);
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    bench.task_ends("Snapshot", "Cancelled");
    bench.settles().await;
    bench.task_ends("DeleteSnapshot", "Success");
    bench.settles().await;
    assert!(bench.try_get(SNAPSHOTS, "s").is_none());
}
