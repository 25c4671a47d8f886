//! How a disk is made of an image that its node has.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

/// The node removes what it has begun; see `src/node/run.rs`.
#[tokio::test]
async fn f3a_a_copy_that_fails_leaves_no_task_and_no_node_on_record() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    bench.placeholder_runs("vm");
    settle(&mut bench).await.ok();
    bench.task_ends("Provision", "Error");
    bench.forward(300);
    bench.settle().await.ok();
    assert!(bench.tasks("Provision").is_empty());
    assert_eq!(bench.status().node_name, None);
    assert_eq!(bench.status().unique_id, None);
}

async fn linked(annotation: Option<&str>) -> Value {
    let mut bench = cluster().await;
    let annotations = annotation.map(|mode| json!({ "vmlet.dev/fast-deploy": mode }));
    bench.machine(json!({ "metadata": { "annotations": annotations } }));
    settle(&mut bench).await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    settle(&mut bench).await.ok();
    bench.task("Provision")["spec"]["linked"].clone()
}

#[tokio::test]
async fn f4a_a_direct_disk_is_a_full_copy() {
    assert_eq!(linked(Some("Direct")).await, json!(false));
}

#[tokio::test]
async fn f4b_a_linked_disk_is_an_overlay_by_default() {
    assert_eq!(linked(None).await, json!(true));
    assert_eq!(linked(Some("LINKED")).await, json!(true));
}

/// Nodes have no host devices for machines: what forbids a mode is a disk that is a claim.
#[tokio::test]
async fn f4c_a_mode_that_is_impossible_is_reported() {
    let mut bench = cluster().await;
    bench.claim("root", "Bound");
    bench.machine(json!({
        "metadata": { "annotations": { "vmlet.dev/fast-deploy": "linked" } },
        "spec": { "volumes": [{
            "name": "root", "persistentVolumeClaim": { "claimName": "root", "root": true },
        }] },
    }));
    bench.settle().await.ok();
    let unsupported = bench.condition("UnsupportedFeatures").unwrap();
    assert!(
        unsupported.message.contains("vmlet.dev/fast-deploy"),
        "{}",
        unsupported.message
    );
    assert!(bench.try_get(CACHES, &name()).is_none());
}
