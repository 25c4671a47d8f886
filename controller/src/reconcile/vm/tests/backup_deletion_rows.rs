//! Backups that no node can delete for a while, and nodes that let go of their layers.
//!
//! Invariant: tasks end as a test says.
//! Failure: none of its own.

use serde_json::json;

use super::bench::*;

#[tokio::test]
async fn a_deletion_that_no_node_can_make_goes_on_when_the_target_is_back() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.backed_up("b", None).await;
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    bench.reaches("n1", &[]);
    // It has let go of the layer, and its answer is final.
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    bench.forward(60);
    bench.backup_settles("b").await;
    assert!(bench.tasks("DeleteBackup").is_empty());
    assert_eq!(bench.backup_condition("b", "Ready"), "False/DeletionFailed");
    bench.reaches("n1", &["default"]);
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n1");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("b").await;
    assert!(bench.try_get(BACKUPS, "b").is_none());
}

/// However often the deletion has failed while the node had the target, the layer is there: only an answer of the time
/// without the target says that it is not.
#[tokio::test]
async fn a_node_lets_go_of_the_layer_before_another_one_deletes_also_after_many_failures() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.node("n2", true);
    bench.reaches("n2", &["default"]);
    bench.backed_up("b", None).await;
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    let absent = json!({ "state": "Error", "transient": true });
    for _ in 0..4 {
        assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n1");
        bench.backup_task_ends("DeleteBackup", &absent);
        bench.backup_settles("b").await;
        bench.forward(1800);
        bench.backup_settles("b").await;
    }
    bench.backup_task_ends("DeleteBackup", &absent);
    bench.backup_settles("b").await;
    // The target is removed from the configuration of the node.
    bench.reaches("n1", &[]);
    bench.backup_settles("b").await;
    bench.forward(1800);
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n1");
    // The machine is suspended, say, and its layers cannot be merged.
    bench.backup_task_ends("DeleteBackup", &absent);
    bench.backup_settles("b").await;
    bench.forward(1800);
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n1");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n2");
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Success" }));
    bench.backup_settles("b").await;
    assert!(bench.try_get(BACKUPS, "b").is_none());
}

/// Such a daemon reports a target that its settings lack as a failure that may pass, and never lets go.
#[tokio::test]
async fn a_daemon_of_an_earlier_version_that_waits_for_a_removed_target_is_to_be_upgraded() {
    let mut bench = Bench::new();
    bench.with_disk("vm");
    bench.node("n2", true);
    bench.reaches("n2", &["default"]);
    bench.backed_up("b", None).await;
    bench.delete_backup("b");
    bench.backup_settles("b").await;
    let absent = json!({ "state": "Error", "transient": true });
    bench.backup_task_ends("DeleteBackup", &absent);
    bench.backup_settles("b").await;
    let message = bench.backup_message("b", "Ready");
    assert!(!message.contains("pgrade"), "it has the target: {message}");
    bench.reaches("n1", &[]);
    bench.backup_settles("b").await;
    assert_eq!(bench.backup_condition("b", "Ready"), "False/DeletionFailed");
    let message = bench.backup_message("b", "Ready");
    assert!(
        message.contains("node n1 has the target no more")
            && message.contains("Upgrade vmlet and vmlet-agent there")
            && message.contains("said the node"),
        "{message}"
    );
    // The upgrade: the next answer is final.
    let facts = json!({
        "daemon": { "taskKinds": ["DeleteBackup"] },
        "features": [crds::names::DISK_BACKUPS, crds::names::BACKUP_CLAIMS],
    });
    bench.agent_reports("n1", &facts);
    bench.backup_settles("b").await;
    let message = bench.backup_message("b", "Ready");
    assert!(message.contains("It is tried again"), "{message}");
    bench.forward(1800);
    bench.backup_settles("b").await;
    bench.backup_task_ends("DeleteBackup", &json!({ "state": "Error" }));
    bench.backup_settles("b").await;
    assert_eq!(bench.task("DeleteBackup")["spec"]["nodeName"], "n2");
}
