//! Files on web servers that are followed by a file of checksums.
//!
//! Invariant: machines use a former version only where nodes have it.
//! Failure: none of its own.

use crds::names::IMAGE_CHECKSUM_UPDATES;

use super::*;

mod late;

const URL: &str = "https://images.example/pool/disk.img";
const LIST: &str = "https://images.example/pool/SHA256SUMS";

/// A cluster with these nodes, which read files of checksums, and an image that follows one. No node has
/// checked it.
fn published(nodes: &[&str], change: Value) -> Bench {
    let mut bench = cluster(nodes, json!(null));
    for node in nodes {
        reports(&mut bench, node, json!([IMAGE_CHECKSUM_UPDATES]));
    }
    let source = json!({ "http": { "url": URL, "digest": null }, "oci": null });
    let spec = json!({ "source": source, "update": { "checksumURL": LIST } });
    bench.edit(IMAGES, "debian", json!({ "spec": spec }));
    update(&mut bench, change);
    bench
}

fn name() -> String {
    podspec::url_image_name(URL)
}

/// Name in pods of a version.
fn file(version: char) -> String {
    format!("{}@{}", name(), digest(version))
}

/// The only check that is in progress.
fn check(bench: &Bench) -> Value {
    let all = bench.tasks("InspectImage");
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

fn lists(bench: &mut Bench, digest: &str) {
    let task = check(bench);
    assert_eq!(task["spec"]["image"], json!(name()));
    let image = json!({
        "format": "qcow2", "virtualBytes": 2_i64 << 30, "fileBytes": 700, "bootable": true,
        "firmware": "bios", "digest": digest,
    });
    ends(bench, &task, json!({ "state": "Success", "image": image }));
}

async fn publishes(bench: &mut Bench, request: &str, version: char) {
    update(bench, json!({ "checkRequest": request }));
    pass(bench).await.ok();
    lists(bench, &digest(version));
    settle(bench).await.ok();
}

/// The same with the first version, which these of the nodes have.
async fn with_first_file(nodes: &[&str], holders: &[&str]) -> Bench {
    let mut bench = published(nodes, json!({}));
    pass(&mut bench).await.ok();
    lists(&mut bench, &digest('a'));
    settle(&mut bench).await.ok();
    for node in holders {
        bench.node_has(node, &[file('a')]);
    }
    settle(&mut bench).await.ok();
    bench.events();
    bench
}

fn nodes_of_pulls(bench: &Bench, version: char) -> Vec<String> {
    let tasks = bench.tasks("PullImage").into_iter();
    let tasks = tasks.filter(|task| task["spec"]["image"] == json!(file(version)));
    let mut nodes: Vec<_> = tasks
        .map(|task| task["spec"]["nodeName"].as_str().unwrap().to_owned())
        .collect();
    nodes.sort();
    nodes
}

fn file_pull_ends(bench: &mut Bench, node: &str, version: char, state: &str) {
    let mut tasks = bench.tasks("PullImage").into_iter();
    let is_it = |task: &Value| {
        task["spec"]["nodeName"] == node && task["spec"]["image"] == json!(file(version))
    };
    let task = tasks.find(is_it).expect("no such pull");
    assert_eq!(task["spec"]["imageURL"], URL);
    assert!(task["spec"]["imageChecksumURL"].is_null(), "{task}");
    let failed = json!({ "state": state, "message": "digest mismatch" });
    ends(bench, &task, failed);
}

#[tokio::test]
async fn machines_use_a_file_by_the_digest_that_its_checksums_have() {
    let mut bench = published(&["n1"], json!({}));
    pass(&mut bench).await.ok();
    let task = check(&bench);
    assert_eq!(task["spec"]["imageURL"], URL);
    assert_eq!(task["spec"]["imageChecksumURL"], LIST);
    assert_eq!(up_to_date(&bench), "Unknown/Checking");
    assert_eq!(condition(&bench, "Ready").0, "Unknown/NoVersion");
    lists(&mut bench, &digest('a'));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "a! >a");
    assert_eq!(up_to_date(&bench), "True/UpToDate");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    assert!(bench.tasks("InspectImage").is_empty(), "read by the check");
    let status = status(&bench);
    assert_eq!(status["providerItemID"], json!(file('a')));
    assert_eq!(status["providerContentVersion"], json!(digest('a')));
    assert_eq!(status["update"]["reference"], URL);
    assert_eq!(new_machine_uses(&mut bench, "vm").await, file('a'));
    let placeholder = bench.placeholder("vm").unwrap();
    let url = &placeholder["metadata"]["annotations"]["vmlet.dev/image-url"];
    assert_eq!(*url, json!(URL));
}

#[tokio::test]
async fn a_new_file_is_pulled_first_and_the_former_one_serves_where_nodes_have_it() {
    let mut bench = with_first_file(&["n1", "n2"], &["n1"]).await;
    publishes(&mut bench, "1", 'b').await;
    assert_eq!(versions(&bench), "b a! >a");
    assert_eq!(nodes_of_pulls(&bench, 'b'), ["n1"]);
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/Pulling");
    assert!(
        message.contains("which nodes without it cannot pull"),
        "{message}"
    );
    assert_eq!(new_machine_uses(&mut bench, "early").await, file('a'));
    file_pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
    assert_eq!(up_to_date(&bench), "True/UpToDate");
    assert_eq!(new_machine_uses(&mut bench, "late").await, file('b'));

    bench.node_has("n1", &[file('a')]);
    update(&mut bench, json!({ "digest": digest('a') }));
    let waits = settle(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60), "the node may lose it");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/Pinned");
    assert!(
        message.contains("which nodes without it cannot pull"),
        "{message}"
    );
    assert!(bench.tasks("InspectImage").is_empty());
    assert_eq!(new_machine_uses(&mut bench, "pinned").await, file('a'));
}

#[tokio::test]
async fn a_former_file_that_no_node_has_is_refused_in_words() {
    let mut bench = with_first_file(&["n1"], &["n1"]).await;
    publishes(&mut bench, "1", 'b').await;
    file_pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    bench.node_has("n1", &[file('b')]);
    update(&mut bench, json!({ "digest": digest('a') }));
    let waits = settle(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60));
    let (says, message) = condition(&bench, "Ready");
    assert_eq!(says, "False/VersionGone");
    assert!(
        message.starts_with("no node has version sha256:a") && message.contains("remove the field"),
        "{message}"
    );
    assert!(
        bench.tasks("InspectImage").is_empty(),
        "what the server has says nothing about it"
    );
    bench.machine(json!({}));
    bench.settle().await.ok();
    let image = bench.condition("VirtualMachineImageReady").unwrap();
    assert!(image.message.contains(&message), "{}", image.message);
    assert!(bench.placeholder("vm").is_none());

    update(&mut bench, json!({ "digest": digest('e') }));
    settle(&mut bench).await.ok();
    let (says, message) = condition(&bench, "Ready");
    assert_eq!(says, "False/VersionGone");
    assert!(message.contains("none of status.versions"), "{message}");
    bench.node_has("n1", &[file('a'), file('b')]);
    update(&mut bench, json!({ "digest": digest('a') }));
    settle(&mut bench).await.ok();
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    update(&mut bench, json!({ "digest": null }));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
}

#[tokio::test]
async fn a_pin_before_the_first_check_waits_for_it() {
    let mut bench = published(&["n1"], json!({ "digest": digest('a') }));
    pass(&mut bench).await.ok();
    assert_eq!(versions(&bench), ">-");
    assert_eq!(condition(&bench, "Ready").0, "Unknown/NoVersion");
    lists(&mut bench, &digest('a'));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "a! >a");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
}

#[tokio::test]
async fn a_file_that_is_gone_before_nodes_have_it_is_followed_by_the_next_one_without_a_request() {
    let mut bench = with_first_file(&["n1"], &["n1"]).await;
    publishes(&mut bench, "1", 'b').await;
    file_pull_ends(&mut bench, "n1", 'b', "Error");
    let waits = settle(&mut bench).await;
    assert!(seconds(&waits).is_some_and(|s| s <= 300), "{waits:?}");
    assert_eq!(up_to_date(&bench), "False/PullFailed");
    assert_eq!(new_machine_uses(&mut bench, "early").await, file('a'));
    bench.forward(299);
    settle(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty());
    bench.forward(1);
    settle(&mut bench).await.ok();
    lists(&mut bench, &digest('c'));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "c a! >a");
    assert_eq!(nodes_of_pulls(&bench, 'c'), ["n1"]);
    assert!(nodes_of_pulls(&bench, 'b').is_empty());
    file_pull_ends(&mut bench, "n1", 'c', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "c! a! >c");
}

/// kubelet reports so many images of a node that it may have others.
fn lists_a_part(bench: &mut Bench, node: &str, has: &[String]) {
    let images = json!([{ "names": has, "sizeBytes": 1 }, {}]);
    bench.edit(NODES, node, json!({ "status": { "images": images } }));
}

#[tokio::test]
async fn a_node_whose_list_of_images_is_not_whole_may_have_a_former_file() {
    let mut bench = with_first_file(&["n1"], &["n1"]).await;
    publishes(&mut bench, "1", 'b').await;
    file_pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    lists_a_part(&mut bench, "n1", &[file('b')]);
    // It runs no machines.
    bench.node("n2", true);
    lists_a_part(&mut bench, "n2", &[]);
    update(&mut bench, json!({ "digest": digest('a') }));
    let waits = settle(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60), "the lists change");
    let (says, message) = condition(&bench, "Ready");
    assert_eq!(says, "Unknown/VersionNotSeen");
    assert!(message.ends_with(": n1"), "{message}");
    assert_eq!(status(&bench)["type"], "qcow2");
    assert!(bench.tasks("InspectImage").is_empty());
    assert_eq!(new_machine_uses(&mut bench, "vm").await, file('a'));
    bench.writes();
    settle(&mut bench).await.ok();
    assert!(bench.writes().is_empty());
    bench.node_has("n1", &[file('b')]);
    settle(&mut bench).await.ok();
    assert_eq!(condition(&bench, "Ready").0, "False/VersionGone");
}

#[tokio::test]
async fn a_former_file_is_not_pulled_for_a_pre_pull() {
    let mut bench = with_first_file(&["n1", "n2"], &["n1"]).await;
    publishes(&mut bench, "1", 'b').await;
    bench.edit(IMAGES, "debian", json!({ "spec": { "prePull": {} } }));
    settle(&mut bench).await.ok();
    assert_eq!(nodes_of_pulls(&bench, 'b'), ["n1", "n2"]);
    assert!(nodes_of_pulls(&bench, 'a').is_empty());
    let status = status(&bench);
    assert_eq!(status["prePull"]["desired"], 1, "{status}");
    let message = status["prePull"]["message"].as_str().unwrap();
    assert!(message.contains("cannot pull it"), "{message}");
}

#[tokio::test]
async fn nodes_that_read_no_checksums_are_not_asked_and_an_edited_list_is_read() {
    let mut bench = published(&["n1"], json!({}));
    reports(&mut bench, "n1", json!([IMAGE_UPDATES]));
    pass(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty());
    assert_eq!(up_to_date(&bench), "Unknown/NoNode");
    reports(
        &mut bench,
        "n1",
        json!([IMAGE_UPDATES, IMAGE_CHECKSUM_UPDATES]),
    );
    pass(&mut bench).await.ok();
    let first = check(&bench);
    let other = "https://images.example/pool/SHA512SUMS";
    update(&mut bench, json!({ "checksumURL": other }));
    settle(&mut bench).await.ok();
    let second = check(&bench);
    assert_ne!(first["metadata"]["name"], second["metadata"]["name"]);
    assert_eq!(second["spec"]["imageChecksumURL"], other);
    let long = format!("sha512:{}", "d".repeat(128));
    lists(&mut bench, &long);
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "d! >d");
    let used = new_machine_uses(&mut bench, "vm").await;
    assert_eq!(used, format!("{}@{long}", name()));
    // A daemon that says nothing of the file.
    update(&mut bench, json!({ "checkRequest": "1" }));
    pass(&mut bench).await.ok();
    let task = check(&bench);
    let image = json!({ "format": "qcow2", "bootable": true });
    ends(
        &mut bench,
        &task,
        json!({ "state": "Success", "image": image }),
    );
    settle(&mut bench).await.ok();
    let (says, message) = condition(&bench, "UpToDate");
    assert_eq!(says, "False/CheckFailed");
    assert!(
        message.starts_with("node n1 reports no checksum"),
        "{message}"
    );
}
