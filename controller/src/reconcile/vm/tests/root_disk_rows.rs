//! What the pods of a machine request for its root disk.
//!
//! Invariant: placeholder and instance request the same, and neither has a limit.
//! Failure: the request that differs.

use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::config::Config;

/// The request of a pod for ephemeral storage.
fn request(pod: &Value) -> &Value {
    let resources = &pod["spec"]["containers"][0]["resources"];
    let limit = &resources["limits"]["ephemeral-storage"];
    assert!(limit.is_null(), "kubelet would end the pod: {limit}");
    &resources["requests"]["ephemeral-storage"]
}

/// What the status says about the disk's size.
fn size(bench: &Bench) -> Value {
    let storage = bench.status().storage;
    json!(storage.and_then(|storage| storage.requested))
}

/// A node has read the image: its virtual size.
fn image_has(bench: &mut Bench, size: &str) {
    let generation = bench.get(IMAGES, "debian")["metadata"]["generation"].clone();
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Available", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
    });
    let disk = json!({ "name": "root", "limit": size });
    let status = json!({ "status": { "conditions": [ready], "disks": [disk] } });
    bench.edit(IMAGES, "debian", status);
}

fn bench(percent: u32) -> Bench {
    let mut config = Config::default();
    config.machines.disk_request_percent = percent;
    Bench::with(config)
}

async fn stops(bench: &mut Bench) {
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
}

async fn starts(bench: &mut Bench) {
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
}

#[rstest]
#[case::of_the_image(json!(null), Some("2Gi"), 100, json!("2Gi"), json!("2Gi"))]
#[case::larger_than_the_image(json!("20Gi"), Some("2Gi"), 100, json!("20Gi"), json!("20Gi"))]
#[case::smaller_than_the_image(json!("1Gi"), Some("2Gi"), 100, json!("2Gi"), json!("2Gi"))]
#[case::of_an_image_that_no_node_has_read(json!("20Gi"), None, 100, json!("20Gi"), json!(null))]
#[case::not_known(json!(null), None, 100, json!(null), json!(null))]
#[case::a_part_of_it(json!("20Gi"), Some("2Gi"), 30, json!("6Gi"), json!("20Gi"))]
#[case::nothing_of_it(json!("20Gi"), Some("2Gi"), 0, json!(null), json!("20Gi"))]
#[tokio::test]
async fn pods_request_the_size_of_the_disk(
    #[case] capacity: Value,
    #[case] image: Option<&str>,
    #[case] percent: u32,
    #[case] requested: Value,
    #[case] recorded: Value,
) {
    let mut bench = bench(percent);
    if let Some(size) = image {
        image_has(&mut bench, size);
    }
    bench
        .created(json!({ "spec": { "bootDiskCapacity": capacity } }))
        .await;
    let placeholder = bench.placeholder("vm").unwrap();
    assert_eq!(*request(&placeholder), requested, "placeholder");
    bench.settle().await.ok();
    assert_eq!(*request(&bench.pod()), requested, "instance");
    assert_eq!(size(&bench), recorded);
}

#[tokio::test]
async fn a_size_that_was_not_known_counts_from_the_next_start_on() {
    let mut bench = bench(100);
    bench.running(json!({})).await;
    assert_eq!(*request(&bench.pod()), json!(null));
    image_has(&mut bench, "2Gi");
    bench.settle().await.ok();
    assert_eq!(size(&bench), "2Gi");
    assert_eq!(*request(&bench.pod()), json!(null));
    stops(&mut bench).await;
    starts(&mut bench).await;
    assert_eq!(*request(&bench.pod()), "2Gi");
}

#[tokio::test]
async fn a_running_machine_keeps_its_pod_when_its_request_would_be_another() {
    let mut bench = bench(0);
    image_has(&mut bench, "2Gi");
    bench.running(json!({})).await;
    let pod = bench.pod()["metadata"]["uid"].clone();
    bench.ctx.config = Config::default().into();
    bench.edit(VMS, "vm", json!({ "spec": { "bootDiskCapacity": "20Gi" } }));
    bench.settle().await.ok();
    let writes = bench.writes();
    assert!(!writes.iter().any(|w| w.contains("pods/")), "{writes:?}");
    assert_eq!(bench.pod()["metadata"]["uid"], pod);
    assert_eq!(size(&bench), "2Gi", "the disk grows at the next start");
    stops(&mut bench).await;
    starts(&mut bench).await;
    assert_eq!(*request(&bench.pod()), "20Gi");
    assert_eq!(size(&bench), "20Gi");
}

/// The disk stays as it was made, whatever becomes of its image.
#[rstest]
#[case::is_deleted(None)]
#[case::has_another_source(Some("https://images.example/larger.qcow2"))]
#[tokio::test]
async fn the_size_of_a_disk_is_known_when_its_image(#[case] url: Option<&str>) {
    let mut bench = bench(100);
    image_has(&mut bench, "2Gi");
    bench.running(json!({})).await;
    match url {
        None => bench.remove(IMAGES, "debian"),
        Some(url) => {
            let source = json!({ "spec": { "source": { "http": { "url": url } } } });
            bench.edit(IMAGES, "debian", source);
            image_has(&mut bench, "50Gi");
        }
    }
    stops(&mut bench).await;
    starts(&mut bench).await;
    assert_eq!(*request(&bench.pod()), "2Gi");
    assert_eq!(size(&bench), "2Gi");
}

/// Otherwise a machine would request the size of a disk that it does not have.
#[tokio::test]
async fn the_size_of_another_source_of_the_image_is_not_that_of_the_disk() {
    let mut bench = bench(100);
    bench.running(json!({})).await;
    let url = "https://images.example/larger.qcow2";
    let source = json!({ "spec": { "source": { "http": { "url": url } } } });
    bench.edit(IMAGES, "debian", source);
    image_has(&mut bench, "50Gi");
    stops(&mut bench).await;
    starts(&mut bench).await;
    assert_eq!(*request(&bench.pod()), json!(null));
    assert_eq!(size(&bench), json!(null));
}

#[tokio::test]
async fn a_root_disk_in_a_claim_takes_nothing_of_the_node() {
    let mut bench = bench(100);
    image_has(&mut bench, "2Gi");
    bench.claim("data", "Bound");
    let root =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data", "root": true } });
    bench.machine(json!({ "spec": { "volumes": [root] } }));
    bench.settle().await.ok();
    assert_eq!(*request(&bench.pod()), json!(null));
    assert_eq!(size(&bench), json!(null));
}
