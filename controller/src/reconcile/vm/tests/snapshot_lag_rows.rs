//! Rows T1: snapshots and reverts of which the watches do not show everything yet.
//!
//! Invariant: one test for each case, named by it; what a pass does is seen when the test says so.
//! Failure: none of its own.

use http::Method;
use serde_json::json;

use super::bench::*;
use super::revert_rows::{blind, edited, to};
use crate::reconcile::vm::reconcile;
use crate::shared::Shared;

/// A machine that reverts to `s`, which the watch of machines does not show.
async fn begun() -> Bench {
    let mut bench = edited(json!({})).await;
    bench.edit(VMS, "vm", to(Some("s")));
    blind(&bench).await;
    assert!(bench.status().snapshot_revert.is_some());
    // The answer to that write is lost, or it is longer ago than a write is expected.
    bench.ctx.shared = Shared::default();
    bench.delete_snapshot_ahead("s");
    bench
}

#[tokio::test]
async fn a_snapshot_stays_for_a_revert_that_the_store_does_not_show_yet() {
    let mut bench = begun().await;
    let result = Box::pin(reconcile(&bench.ctx, &bench.key)).await;
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    assert!(is_conflict(&result), "{result:?}");
    bench.sync();
    bench.settles().await;
    bench.end("vm", 137, "Killed");
    bench.settles().await;
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    bench.task_ends("Revert", "Success");
    bench.settles().await;
    bench.settles().await;
    assert_eq!(bench.get(VMS, "vm")["metadata"]["labels"]["app"], "old");
    bench.task("DeleteSnapshot");
}

#[tokio::test]
async fn a_snapshot_stays_while_it_is_not_known_whether_the_machine_reverts_to_it() {
    let mut bench = begun().await;
    bench.refuse(Method::GET, "virtualmachines/vm", 503, 1);
    let result = Box::pin(reconcile(&bench.ctx, &bench.key)).await;
    let text = failure(&result);
    assert!(text.contains("before deleting its snapshot"), "{text}");
    assert!(bench.tasks("DeleteSnapshot").is_empty());
}

#[tokio::test]
async fn a_snapshot_of_a_machine_that_was_replaced_meanwhile_is_left_to_its_pass() {
    let mut bench = edited(json!({})).await;
    bench.delete_snapshot_ahead("s");
    let later = json!({ "metadata": { "uid": "later" } });
    bench.edit_unseen(VMS, "vm", later);
    let result = Box::pin(reconcile(&bench.ctx, &bench.key)).await;
    assert!(is_conflict(&result), "{result:?}");
    assert!(bench.tasks("DeleteSnapshot").is_empty());
}

#[tokio::test]
async fn a_deletion_waits_for_a_snapshot_whose_task_the_store_does_not_show_yet() {
    let mut bench = edited(json!({})).await;
    bench.snapshot("t", json!({}));
    blind(&bench).await;
    assert_eq!(bench.tasks("Snapshot").len(), 2);
    bench.see("vm");
    bench.see_snapshot("t");
    bench.delete_snapshot_ahead("s");
    blind(&bench).await;
    let waits = "another task of the machine has not ended";
    assert_eq!(bench.snapshot_message("s", "Ready"), waits);
    assert!(bench.tasks("DeleteSnapshot").is_empty());
    bench.sync();
    bench.settles().await;
    assert!(bench.tasks("DeleteSnapshot").is_empty(), "it is seen");
    bench.node_takes(true);
    bench.settles().await;
    bench.task("DeleteSnapshot");
}

#[tokio::test]
async fn a_task_that_the_api_server_refuses_holds_up_no_revert() {
    let mut bench = edited(json!({})).await;
    bench.snapshot("t", json!({}));
    bench.refuse(Method::POST, "virtualmachinetasks", 403, 1);
    let failed = bench.pass().await;
    assert!(failed.is_err(), "{failed:?}");
    bench.edit(VMS, "vm", to(Some("s")));
    bench.passes().await;
    assert!(bench.status().snapshot_revert.is_some());
}
