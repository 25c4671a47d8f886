//! Backups that no node can delete for a while.
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
