//! Pulls for a cache: a second machine, files that are gone, failures.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

/// Nothing about the cache is written for a machine that finds its image.
#[tokio::test]
async fn f2a_a_second_machine_on_the_node_costs_no_write_of_the_cache() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Success", "");
    bench.placeholder_runs("vm");
    settle(&mut bench).await.ok();
    bench.task_ends("Provision", "Success");
    settle(&mut bench).await.ok();
    bench.writes();
    bench.machine_named("second", json!({}));
    let second = Key::new("ns", "second");
    for _ in 0..3 {
        Box::pin(crate::reconcile::vm::reconcile(&bench.ctx, &second))
            .await
            .ok();
        bench.sync();
    }
    let preferred = bench.placeholder("second").unwrap();
    let preferred = &preferred["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        preferred[1]["preference"]["matchFields"][0]["values"],
        json!(["n1"])
    );
    assert_eq!(preferred[1]["weight"], 1);
    bench.placeholder_is_bound("second", "n1");
    pass(&mut bench).await.ok();
    bench.placeholder_runs("second");
    pass(&mut bench).await.ok();
    let written = bench.writes();
    let of_cache = |write: &&String| write.contains("imagecaches") || write.contains("pull-image");
    assert_eq!(written.iter().filter(of_cache).count(), 0, "{written:?}");
}

#[tokio::test]
async fn f2b_files_that_are_gone_are_pulled_again_for_a_machine_that_waits() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Success", "");
    settle(&mut bench).await.ok();
    bench.node_has("n1", &[format!("{}:latest", url_image_name(URL))]);
    pass(&mut bench).await.ok();
    assert_eq!(place(&bench), "True/Listed");
    bench.node_has("n1", &["vmlet.dev/other:latest".to_owned()]);
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "False/Pulling");
    assert_eq!(bench.condition_text(CACHED), "False/NotReady");
    bench.task("PullImage");
}

#[tokio::test]
async fn f2c_a_failed_pull_is_shown_with_its_cause_and_repeated() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Error", "404 Not Found");
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "False/Failed");
    assert!(message(&bench).ends_with("node n1: 404 Not Found"));
    let files = cache_condition(&bench, "VirtualMachineImageCacheFilesReady");
    assert_eq!(
        (&files["status"], &files["reason"]),
        (&json!("False"), &json!("Failed"))
    );
    bench.writes();
    let again = pass(&mut bench).await;
    assert_eq!(seconds(&again), Some(300));
    assert_eq!(bench.writes(), Vec::<String>::new());
    bench.forward(300);
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "False/Pulling");
    assert!(bench.task("PullImage")["status"].is_null(), "another task");
}

#[tokio::test]
async fn f2d_a_node_that_starts_the_placeholder_at_once_gets_no_task() {
    let mut bench = cluster().await;
    bench.machine(json!({}));
    settle(&mut bench).await.ok();
    let placeholder = bench.placeholder("vm").unwrap()["metadata"]["name"].clone();
    let made = json!({ "metadata": { "creationTimestamp": bench.time() } });
    bench.edit(PODS, placeholder.as_str().unwrap(), made);
    bench.placeholder_is_bound("vm", "n1");
    let soon = pass(&mut bench).await;
    assert_eq!(seconds(&soon), Some(3));
    assert!(bench.try_get(CACHES, &name()).is_none());
    bench.forward(AWHILE);
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "False/Pulling");
    bench.placeholder_runs("vm");
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "True/Pulled");
}
