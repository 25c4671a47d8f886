//! Rows F and V: image caches, and how disks are made from them.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use podspec::url_image_name;
use serde_json::{Value, json};

use super::bench::*;
use crate::config::Config;
use crate::context::Key;
use crate::flow::{Flow, Outcome};
use crate::reconcile::image::cache;

/// URL of the image `debian`.
const URL: &str = "https://images.example/debian.qcow2";
const CACHED: &str = "VirtualMachineConditionImageCacheReady";
/// Longer than a node that has the image takes to start a placeholder.
const AWHILE: i64 = 5;

/// A cluster with a node whose agent pulls images, and the image, which it has read.
async fn cluster() -> Bench {
    with(Config::default()).await
}

async fn with(config: Config) -> Bench {
    let mut bench = Bench::with(config);
    bench.agents(&["n1"]);
    pass(&mut bench).await.ok();
    let name = bench.task("InspectImage")["metadata"]["name"].clone();
    let image = json!({ "format": "qcow2", "virtualBytes": 1, "fileBytes": 1, "bootable": true, "firmware": "bios" });
    let status = json!({ "state": "Success", "completionTime": bench.time(), "image": image });
    bench.edit(TASKS, name.as_str().unwrap(), json!({ "status": status }));
    for _ in 0..2 {
        pass(&mut bench).await.ok();
    }
    bench.events();
    bench.writes();
    bench
}

/// A pass over the image.
async fn pass(bench: &mut Bench) -> Outcome {
    bench.image_pass("ns", "debian").await
}

/// Passes over image and machine until neither writes anything.
async fn settle(bench: &mut Bench) -> Outcome {
    for _ in 0..10 {
        let before = bench.server.lock().unwrap().writes.len();
        pass(bench).await.ok();
        let result = bench.pass().await;
        if bench.server.lock().unwrap().writes.len() == before {
            return result;
        }
    }
    panic!("never settles: {:?}", bench.writes());
}

/// A machine whose placeholder is on `n1`, where the image is not.
async fn waiting(bench: &mut Bench) {
    bench.machine(json!({}));
    settle(bench).await.ok();
    bench.placeholder_is_bound("vm", "n1");
    settle(bench).await.ok();
}

fn name() -> String {
    cache::name("VirtualMachineImage", &Key::new("ns", "debian"))
}

fn cache_object(bench: &Bench) -> Value {
    bench.get(CACHES, &name())
}

/// `Ready` of the location on `n1`.
fn location(bench: &Bench) -> Value {
    let cache = cache_object(bench);
    let all = cache["status"]["locations"].as_array().unwrap().clone();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(cache["spec"]["locations"][0]["node"], all[0]["node"]);
    all[0]["conditions"][0].clone()
}

fn place(bench: &Bench) -> String {
    let ready = location(bench);
    format!(
        "{}/{}",
        ready["status"].as_str().unwrap(),
        ready["reason"].as_str().unwrap()
    )
}

fn cache_condition(bench: &Bench, kind: &str) -> Value {
    let all = cache_object(bench)["status"]["conditions"].take();
    let mut all = all.as_array().unwrap().clone().into_iter();
    all.find(|one| one["type"] == kind).unwrap()
}

fn pull(bench: &mut Bench, status: Value) {
    let task = bench.task("PullImage");
    let task = task["metadata"]["name"].as_str().unwrap().to_owned();
    bench.edit(SYSTEM_TASKS, &task, json!({ "status": status }));
}

fn pull_ends(bench: &mut Bench, state: &str, message: &str) {
    let now = bench.time();
    pull(
        bench,
        json!({ "state": state, "message": message, "completionTime": now }),
    );
}

fn message(bench: &Bench) -> String {
    bench.condition(CACHED).map_or(String::new(), |c| c.message)
}

#[tokio::test]
async fn v1a_a_machine_without_a_node_waits_for_no_cache() {
    let mut bench = cluster().await;
    bench.machine(json!({}));
    settle(&mut bench).await.ok();
    assert!(bench.placeholder("vm").is_some());
    assert_eq!(bench.condition_text(CACHED), "-");
    assert!(bench.try_get(CACHES, &name()).is_none(), "no node needs it");
}

#[tokio::test]
async fn v1b_a_cache_that_does_not_exist_yet_is_not_ready() {
    let mut bench = cluster().await;
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CACHED), "False/NotReady");
    assert!(message(&bench).contains("does not exist yet"));
}

#[tokio::test]
async fn v1c_a_cache_of_an_image_that_cannot_be_read_is_not_ready() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Success", "");
    pass(&mut bench).await.ok();
    let hardware = json!([{
        "type": "VirtualMachineImageCacheHardwareReady", "status": "False", "reason": "Failed",
        "message": "no disk", "lastTransitionTime": bench.time(),
    }]);
    bench.edit(
        CACHES,
        &name(),
        json!({ "status": { "conditions": hardware } }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CACHED), "False/NotReady");
    assert!(message(&bench).ends_with("no disk"), "{}", message(&bench));
}

/// A label or an annotation of a cache means nothing on a machine.
#[tokio::test]
async fn v1d_a_label_without_a_location_is_removed() {
    let mut bench = cluster().await;
    let label = json!({ "vmicache.vmlet.dev/name": "c" });
    bench.machine(json!({ "metadata": { "labels": label } }));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_some());
    let labels = bench.get(VMS, "vm")["metadata"]["labels"].take();
    assert!(labels["vmicache.vmlet.dev/name"].is_null(), "{labels}");
}

#[tokio::test]
async fn v1e_a_location_in_another_format_is_removed_with_the_label() {
    let mut bench = cluster().await;
    let meta = json!({
        "labels": { "vmicache.vmlet.dev/name": "c" },
        "annotations": { "vmicache.vmlet.dev/location": "n1,default" },
    });
    bench.machine(json!({ "metadata": meta }));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_some());
    let meta = bench.get(VMS, "vm")["metadata"].take();
    assert!(meta["labels"]["vmicache.vmlet.dev/name"].is_null());
    assert!(meta["annotations"]["vmicache.vmlet.dev/location"].is_null());
}

#[tokio::test]
async fn v1f_a_machine_waits_with_the_progress_of_its_node_and_without_a_slot() {
    let mut config = Config::default();
    config.machines.creates = 1;
    let mut bench = with(config).await;
    waiting(&mut bench).await;
    assert_eq!(place(&bench), "False/Pulling");
    let task = bench.task("PullImage");
    let cache = cache_object(&bench);
    assert_eq!(task["metadata"]["namespace"], "vmlet-system");
    assert_eq!(task["spec"]["vmNamespace"], "ns");
    assert_eq!(task["spec"]["vmUID"], cache["metadata"]["uid"]);
    assert_eq!(task["spec"]["image"], json!(url_image_name(URL)));
    assert_eq!(
        task["metadata"]["ownerReferences"][0]["uid"],
        cache["metadata"]["uid"]
    );
    pull(
        &mut bench,
        json!({ "state": "Running", "progressPercent": 47 }),
    );
    settle(&mut bench).await.ok();
    assert_eq!(bench.condition_text(CACHED), "False/NotReady");
    assert!(message(&bench).ends_with("node n1 pulls the image: 40 %"));
    bench.writes();
    pull(
        &mut bench,
        json!({ "state": "Running", "progressPercent": 48 }),
    );
    settle(&mut bench).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());
    // The only slot is free for a machine whose node has its image.
    bench.machine_named("other", json!({}));
    let other = Key::new("ns", "other");
    for _ in 0..3 {
        Box::pin(crate::reconcile::vm::reconcile(&bench.ctx, &other))
            .await
            .ok();
        bench.sync();
    }
    bench.placeholder_is_bound("other", "n1");
    bench.placeholder_runs("other");
    for _ in 0..2 {
        bench.passes().await;
        Box::pin(crate::reconcile::vm::reconcile(&bench.ctx, &other))
            .await
            .ok();
        bench.sync();
    }
    assert_eq!(bench.task("Provision")["spec"]["vmName"], "other");
}

#[tokio::test]
async fn v1g_a_machine_goes_on_once_its_node_has_the_image() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    pull_ends(&mut bench, "Success", "");
    settle(&mut bench).await.ok();
    assert_eq!(place(&bench), "True/Pulled");
    assert!(bench.tasks("PullImage").is_empty(), "it is on record");
    for kind in ["HardwareReady", "ProviderReady", "FilesReady"] {
        let kind = format!("VirtualMachineImageCache{kind}");
        assert_eq!(cache_condition(&bench, &kind)["status"], "True", "{kind}");
    }
    assert_eq!(cache_condition(&bench, "Ready")["status"], "True");
    let metadata = &cache_object(&bench)["status"]["metadata"];
    assert_eq!(
        (&metadata["type"], &metadata["firmware"]),
        (&json!("qcow2"), &json!("bios"))
    );
    bench.placeholder_runs("vm");
    settle(&mut bench).await.ok();
    assert_eq!(bench.condition_text(CACHED), "True/Cached");
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn f1a_the_cache_is_made_when_a_node_needs_the_image() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    let spec = cache_object(&bench)["spec"].take();
    assert_eq!(spec["providerID"], json!(url_image_name(URL)));
    assert_eq!(spec["image"]["name"], "debian");
    assert_eq!(spec["image"]["namespace"], "ns");
    assert_eq!(
        spec["locations"],
        json!([{ "node": "n1", "store": "default", "format": "qcow2" }])
    );
}

#[tokio::test]
async fn f1b_what_is_wrong_with_the_source_is_in_the_cache() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    bench.edit(IMAGES, "debian", json!({ "spec": { "prePull": {} } }));
    pass(&mut bench).await.ok();
    let task = bench.task("InspectImage")["metadata"]["name"].clone();
    let failed =
        json!({ "state": "Error", "message": "answered 404", "completionTime": bench.time() });
    bench.edit(TASKS, task.as_str().unwrap(), json!({ "status": failed }));
    for _ in 0..3 {
        pass(&mut bench).await.ok();
    }
    for kind in ["ProviderReady", "HardwareReady"] {
        let found = cache_condition(&bench, &format!("VirtualMachineImageCache{kind}"));
        assert_eq!(found["status"], "False", "{found}");
        assert_eq!(found["reason"], "Failed", "{found}");
        assert!(found["message"].as_str().unwrap().contains("answered 404"));
    }
    assert_eq!(cache_condition(&bench, "Ready")["status"], "False");
    assert!(cache_object(&bench)["status"]["metadata"].is_null());
}

#[tokio::test]
async fn f1c_a_cache_of_an_earlier_source_is_made_again() {
    let mut bench = cluster().await;
    waiting(&mut bench).await;
    let first = cache_object(&bench)["metadata"]["uid"].take();
    let url = "https://images.example/other.qcow2";
    let source = json!({ "spec": { "source": { "http": { "url": url } } } });
    bench.edit(IMAGES, "debian", source);
    pass(&mut bench).await.ok();
    assert!(bench.try_get(CACHES, &name()).is_none());
    settle(&mut bench).await.ok();
    bench.placeholder_is_gone("vm");
    settle(&mut bench).await.ok();
    bench.placeholder_is_bound("vm", "n1");
    settle(&mut bench).await.ok();
    let second = cache_object(&bench);
    assert_ne!(second["metadata"]["uid"], first);
    assert_eq!(second["spec"]["providerID"], json!(url_image_name(url)));
}

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
