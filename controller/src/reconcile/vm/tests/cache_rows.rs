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

mod disk;
mod locations;
mod pulls;

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
