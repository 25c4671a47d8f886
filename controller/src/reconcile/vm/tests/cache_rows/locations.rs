//! Locations of an image cache: how they come, and when they go.
//!
//! Invariant: the cluster is in memory, and every pass is real.
//! Failure: the assertion shows what differs.

use super::*;

#[tokio::test]
async fn the_cache_of_an_image_that_is_gone_is_deleted() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    bench.remove(IMAGES, "debian");
    pass(&mut bench).await.ok();
    assert!(bench.try_get(CACHES, &name()).is_none());
    bench.writes();
    assert_eq!(pass(&mut bench).await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_location_goes_with_its_node_and_a_day_after_its_last_use() {
    let mut bench = cluster().await;
    bench.node("n2", true);
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Success", "");
    settle(&mut bench).await.ok();
    bench.remove(VMS, "vm");
    let unused = pass(&mut bench).await;
    assert_eq!(seconds(&unused), Some(86_400));
    let at = cache_object(&bench)["status"]["locations"][0].take();
    assert!(at["unusedSince"].is_string(), "{at}");
    bench.forward(86_400);
    pass(&mut bench).await.ok();
    let spec = cache_object(&bench)["spec"].take();
    assert!(
        spec["locations"].as_array().is_none_or(Vec::is_empty),
        "{spec}"
    );

    let mut bench = cluster().await;
    waiting(&mut bench).await;
    bench.remove(NODES, "n1");
    pass(&mut bench).await.ok();
    let spec = cache_object(&bench)["spec"].take();
    assert!(
        spec["locations"].as_array().is_none_or(Vec::is_empty),
        "{spec}"
    );
    assert!(bench.tasks("PullImage").is_empty());
}

#[tokio::test]
async fn a_pre_pull_is_a_location_that_its_own_tasks_fill() {
    let mut bench = cluster().await;
    bench.edit(IMAGES, "debian", json!({ "spec": { "prePull": {} } }));
    for _ in 0..3 {
        pass(&mut bench).await.ok();
    }
    assert_eq!(place(&bench), "False/Pulling");
    assert_eq!(bench.tasks("PullImage").len(), 1, "that of the pre-pull");
    let task = bench.task("PullImage");
    let ended = json!({ "status": { "state": "Success", "completionTime": bench.time() } });
    bench.edit(TASKS, task["metadata"]["name"].as_str().unwrap(), ended);
    for _ in 0..3 {
        pass(&mut bench).await.ok();
    }
    assert_eq!(place(&bench), "True/Pulled");
    assert!(bench.tasks("PullImage").is_empty());
}

#[tokio::test]
async fn an_image_with_a_pull_secret_gets_no_task_of_its_cache() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    let source = json!({ "http": null, "oci": { "reference": "r.example/p", "pullSecret": "s" } });
    bench.edit(IMAGES, "debian", json!({ "spec": { "source": source } }));
    waiting(&mut bench).await;
    assert_eq!(place(&bench), "False/Pulling");
    assert!(
        location(&bench)["message"]
            .as_str()
            .unwrap()
            .contains("pull secret")
    );
    assert!(bench.tasks("PullImage").is_empty());
    bench.placeholder_runs("vm");
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "True/Pulled");
}

#[tokio::test]
async fn the_message_of_a_location_is_short() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Error", &"é".repeat(300));
    settle(&mut bench).await.ok();
    let length = location(&bench)["message"].as_str().unwrap().len();
    assert!((199..=200).contains(&length), "{length}");
}

#[tokio::test]
async fn no_node_is_preferred_where_many_have_the_image() {
    for (count, terms) in [(16, 17), (17, 0)] {
        let mut bench = cluster().await;
        for at in 1..=count {
            let node = format!("n{at}");
            bench.node(&node, true);
            bench.node_has(&node, &[format!("{}:latest", url_image_name(URL))]);
        }
        pass(&mut bench).await.ok();
        bench.machine(json!({}));
        settle(&mut bench).await.ok();
        let pod = bench.placeholder("vm").unwrap();
        let preferred =
            "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        let preferred = pod.pointer(preferred).and_then(Value::as_array);
        assert_eq!(preferred.map_or(0, Vec::len), terms);
    }
}

#[tokio::test]
async fn without_image_caches_kubelet_alone_pulls() {
    let mut config = Config::default();
    config.machines.image_caches = false;
    let mut bench = with(config).await;
    waiting(&mut bench).await;
    assert!(bench.try_get(CACHES, &name()).is_none());
    assert!(bench.tasks("PullImage").is_empty());
    assert_eq!(bench.condition_text(CACHED), "-");
}
