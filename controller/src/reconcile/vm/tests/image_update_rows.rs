//! Images that follow a tag or a file: which version new machines use, when, and what keeps the former one.
//!
//! Invariant: nodes answer by the status of their task, as agents do; time passes only where a test
//! says so.
//! Failure: none of its own.

use crds::names::IMAGE_UPDATES;
use serde_json::{Value, json};

use super::bench::*;
use crate::flow::Outcome;

mod disks;
mod failures;
mod files;

/// What the image follows, and its name in pods.
const TAG: &str = "r.example/d:1";
const NAME: &str = "vmlet.dev/r.example/d:1";
const HOUR: i64 = 3600;

/// A cluster with these nodes, whose agents report digests, and an image that follows a tag. No node has
/// checked it.
fn cluster(nodes: &[&str], update: Value) -> Bench {
    let mut bench = Bench::new();
    for node in nodes {
        bench.node(node, true);
    }
    bench.agents(nodes);
    for node in nodes {
        reports(&mut bench, node, json!([IMAGE_UPDATES]));
    }
    let source = json!({ "http": null, "oci": { "reference": TAG } });
    let spec = json!({ "source": source, "update": update });
    bench.edit(IMAGES, "debian", json!({ "spec": spec }));
    bench
}

fn reports(bench: &mut Bench, node: &str, features: Value) {
    let daemon = json!({ "taskKinds": ["InspectImage", "PullImage"] });
    bench.agent_reports(node, &json!({ "features": features, "daemon": daemon }));
}

/// The same with the first version.
async fn with_first(nodes: &[&str], update: Value) -> Bench {
    let mut bench = cluster(nodes, update);
    pass(&mut bench).await.ok();
    finds(&mut bench, 'a');
    settle(&mut bench).await.ok();
    bench.events();
    bench.writes();
    bench
}

async fn pass(bench: &mut Bench) -> Outcome {
    bench.image_pass("ns", "debian").await
}

/// Passes over the image until one writes nothing.
async fn settle(bench: &mut Bench) -> Outcome {
    for _ in 0..10 {
        let before = bench.server.lock().unwrap().writes.len();
        let result = pass(bench).await;
        if bench.server.lock().unwrap().writes.len() == before {
            return result;
        }
    }
    panic!("never settles: {:?}", bench.writes());
}

fn digest(version: char) -> String {
    format!("sha256:{}", version.to_string().repeat(64))
}

/// Name in pods of a version.
fn named(version: char) -> String {
    format!("{NAME}@{}", digest(version))
}

/// The only check that is in progress.
fn check(bench: &Bench) -> Value {
    let all = bench.tasks("InspectImage").into_iter();
    let mut open = all.filter(|task| task["spec"]["image"] == NAME);
    let found = open.next().expect("no node checks the tag");
    assert!(open.next().is_none(), "two checks");
    found
}

fn ends(bench: &mut Bench, task: &Value, status: Value) {
    let mut status = status;
    status["completionTime"] = json!(bench.time());
    let name = task["metadata"]["name"].as_str().unwrap();
    bench.edit(TASKS, name, json!({ "status": status }));
}

/// The node that checks the tag reports this version.
fn finds(bench: &mut Bench, version: char) {
    let task = check(bench);
    let gibibytes = if version == 'a' { 2_i64 } else { 3 };
    let image = json!({
        "format": "qcow2", "virtualBytes": gibibytes << 30, "fileBytes": 700, "bootable": true,
        "firmware": "bios", "digest": digest(version),
    });
    ends(bench, &task, json!({ "state": "Success", "image": image }));
}

fn fails(bench: &mut Bench, message: &str) {
    let task = check(bench);
    ends(
        bench,
        &task,
        json!({ "state": "Error", "message": message }),
    );
}

/// A request, its check, and what follows from it.
async fn moves_to(bench: &mut Bench, request: &str, version: char) {
    update(bench, json!({ "checkRequest": request }));
    pass(bench).await.ok();
    finds(bench, version);
    settle(bench).await.ok();
}

/// The same, and the nodes pull it.
async fn comes_into_use(bench: &mut Bench, request: &str, version: char) {
    moves_to(bench, request, version).await;
    let nodes = pulling(bench, version);
    assert!(!nodes.is_empty(), "{}", versions(bench));
    for node in nodes {
        pull_ends(bench, &node, version, "Success");
    }
    settle(bench).await.ok();
}

fn update(bench: &mut Bench, change: Value) {
    bench.edit(IMAGES, "debian", json!({ "spec": { "update": change } }));
}

/// The nodes that pull a version, in alphabetical order.
fn pulling(bench: &Bench, version: char) -> Vec<String> {
    let tasks = bench.tasks("PullImage").into_iter();
    let tasks = tasks.filter(|task| task["spec"]["image"] == json!(named(version)));
    let mut nodes: Vec<_> = tasks
        .map(|task| task["spec"]["nodeName"].as_str().unwrap().to_owned())
        .collect();
    nodes.sort();
    nodes
}

fn pull_ends(bench: &mut Bench, node: &str, version: char, state: &str) {
    let tasks = bench.tasks("PullImage").into_iter();
    let mut tasks = tasks.filter(|task| task["spec"]["nodeName"] == node);
    let task = tasks.find(|task| task["spec"]["image"] == json!(named(version)));
    let task = task.unwrap_or_else(|| panic!("{node} does not pull {version}"));
    ends(
        bench,
        &task,
        json!({ "state": state, "message": "said the node" }),
    );
}

fn status(bench: &Bench) -> Value {
    bench.get(IMAGES, "debian")["status"].take()
}

/// The versions as `a!` for one that is ready, the newest first, and the current one behind `>`.
fn versions(bench: &Bench) -> String {
    let status = status(bench);
    let letter = |digest: &Value| digest.as_str().unwrap_or("sha256:-")[7..8].to_owned();
    let all = status["versions"].as_array().cloned().unwrap_or_default();
    let mut words: Vec<_> = all
        .iter()
        .map(|version| match version["state"].as_str() {
            Some("Ready") => format!("{}!", letter(&version["digest"])),
            _ => letter(&version["digest"]),
        })
        .collect();
    words.push(format!(">{}", letter(&status["update"]["current"])));
    words.join(" ")
}

fn condition(bench: &Bench, kind: &str) -> (String, String) {
    let all = status(bench)["conditions"].take();
    let all = all.as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|one| one["type"] == kind);
    let found = found.unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
    (
        format!("{}/{}", text("status"), text("reason")),
        text("message"),
    )
}

/// What is recorded of the size of the machine's disk.
fn size(bench: &Bench) -> Value {
    let storage = bench.status().storage;
    json!(storage.and_then(|storage| storage.requested))
}

fn up_to_date(bench: &Bench) -> String {
    condition(bench, "UpToDate").0
}

/// The image of the placeholder of a new machine.
async fn new_machine_uses(bench: &mut Bench, name: &str) -> String {
    bench.machine_named(name, json!({}));
    bench.key = crate::context::Key::new("ns", name);
    bench.settle().await.ok();
    let placeholder = bench.placeholder(name).expect("no placeholder");
    let image = placeholder["spec"]["containers"][0]["image"].as_str();
    image.unwrap().to_owned()
}

#[tokio::test]
async fn machines_wait_for_the_first_version_and_use_it_by_its_digest() {
    let mut bench = cluster(&["n1"], json!({}));
    let waits = pass(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60));
    let task = check(&bench);
    assert_eq!(task["spec"]["imageURL"], json!(format!("oci://{TAG}")));
    assert_eq!(up_to_date(&bench), "Unknown/Checking");
    assert_eq!(condition(&bench, "Ready").0, "Unknown/NoVersion");
    bench.machine(json!({}));
    bench.settle().await.ok();
    let image = bench.condition("VirtualMachineImageReady").unwrap();
    assert_eq!(image.reason, "NotReady");
    assert_eq!(
        image.message,
        "image debian has no version yet: node n1 checks which version the source has"
    );
    assert!(bench.placeholder("vm").is_none());
    bench.writes();
    bench.events();
    settle(&mut bench).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());

    finds(&mut bench, 'a');
    let done = settle(&mut bench).await;
    assert!(is_quiet(&done), "{done:?}");
    assert_eq!(versions(&bench), "a! >a");
    assert_eq!(up_to_date(&bench), "True/UpToDate");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    assert_eq!(
        bench.events(),
        ["VersionFound", "VersionChanged", "Available"]
    );
    let status = status(&bench);
    assert_eq!(status["providerItemID"], json!(named('a')));
    assert_eq!(status["providerContentVersion"], json!(digest('a')));
    assert_eq!(status["disks"][0]["limit"], "2Gi");
    assert!(
        bench.tasks("InspectImage").is_empty(),
        "read once, by the check"
    );
    bench.settle().await.ok();
    let placeholder = bench.placeholder("vm").unwrap();
    let image = &placeholder["spec"]["containers"][0]["image"];
    assert_eq!(*image, json!(named('a')));
    let url = &placeholder["metadata"]["annotations"]["vmlet.dev/image-url"];
    assert_eq!(*url, json!(format!("oci://{TAG}@{}", digest('a'))));
}

#[tokio::test]
async fn a_new_version_is_on_all_nodes_before_new_machines_use_it_and_old_ones_keep_theirs() {
    let mut bench = with_first(&["n1", "n2", "n3"], json!({})).await;
    Box::pin(bench.created(json!({}))).await;
    for node in ["n1", "n3"] {
        bench.node_has(node, &[format!("vmlet.dev/r.example/d@{}", digest('a'))]);
    }
    assert_eq!(bench.vm().status.unwrap().image, Some(named('a')));
    settle(&mut bench).await.ok();
    bench.events();

    moves_to(&mut bench, "1", 'b').await;
    assert_eq!(versions(&bench), "b a! >a");
    assert_eq!(pulling(&bench, 'b'), ["n1", "n3"]);
    assert_eq!(up_to_date(&bench), "False/Pulling");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    assert_eq!(bench.events(), ["VersionFound"]);
    assert_eq!(new_machine_uses(&mut bench, "early").await, named('a'));

    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b a! >a");
    assert!(condition(&bench, "UpToDate").1.starts_with("1 of 2 nodes"));
    bench.writes();
    settle(&mut bench).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());
    pull_ends(&mut bench, "n3", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
    assert_eq!(up_to_date(&bench), "True/UpToDate");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    let status = status(&bench);
    assert_eq!(status["versions"][0]["readyNodes"], 2);
    assert_eq!(status["providerItemID"], json!(named('b')));
    assert_eq!(bench.events(), ["VersionChanged"]);
    assert!(bench.tasks("PullImage").is_empty());
    assert_eq!(new_machine_uses(&mut bench, "late").await, named('b'));

    bench.key = crate::context::Key::new("ns", "vm");
    bench.settle().await.ok();
    assert_eq!(bench.vm().status.unwrap().image, Some(named('a')));
    let image = bench.pod()["spec"]["containers"][0]["image"].take();
    assert_ne!(
        image,
        json!(named('b')),
        "its disk is of the former version"
    );
}

#[tokio::test]
async fn a_machine_without_a_disk_follows_the_image_and_one_whose_disk_is_being_made_does_not() {
    let mut bench = with_first(&["n1"], json!({})).await;
    bench.machine(json!({}));
    bench.settle().await.ok();
    moves_to(&mut bench, "1", 'b').await;
    assert_eq!(versions(&bench), "b a! >a");
    assert_eq!(
        pulling(&bench, 'b'),
        ["n1"],
        "no node has the former version"
    );
    pull_ends(&mut bench, "n1", 'b', "Success");
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >b");
    bench.settle().await.ok();
    let placeholder = bench.placeholder("vm").unwrap();
    let image = &placeholder["spec"]["containers"][0]["image"];
    assert_eq!(*image, json!(named('b')));

    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    let task = bench.task("Provision");
    assert_eq!(task["spec"]["image"], json!(named('b')));
    update(&mut bench, json!({ "digest": digest('a') }));
    settle(&mut bench).await.ok();
    bench.settle().await.ok();
    let same = bench.task("Provision");
    assert_eq!(same["metadata"]["uid"], task["metadata"]["uid"]);
    bench.task_ends("Provision", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.vm().status.unwrap().image, Some(named('b')));
    assert_eq!(size(&bench), json!("3Gi"), "that of its version");
}

#[tokio::test]
async fn the_schedule_causes_one_check_at_a_time_and_an_unchanged_tag_one_write() {
    let mut bench = with_first(&["n1"], json!({ "schedule": "0 * * * *" })).await;
    let waits = pass(&mut bench).await;
    assert_eq!(seconds(&waits), Some(u64::try_from(HOUR).unwrap()));
    assert_eq!(bench.writes(), Vec::<String>::new());
    bench.forward(HOUR - 1);
    assert_eq!(seconds(&pass(&mut bench).await), Some(1));
    assert!(bench.tasks("InspectImage").is_empty());
    // A controller that was away for days makes up for it by one check.
    bench.forward(100 * HOUR + 1);
    settle(&mut bench).await.ok();
    let task = check(&bench);
    finds(&mut bench, 'a');
    bench.writes();
    settle(&mut bench).await.ok();
    let writes = bench.writes();
    assert_eq!(
        writes.len(),
        2,
        "its status, and the end of the task: {writes:?}"
    );
    settle(&mut bench).await.ok();
    assert!(bench.tasks("InspectImage").is_empty());
    bench.forward(HOUR);
    settle(&mut bench).await.ok();
    let next = check(&bench);
    assert_ne!(
        next["metadata"]["name"], task["metadata"]["name"],
        "a check of its own"
    );
}

#[tokio::test]
async fn a_pin_counts_at_once_and_its_end_leads_to_the_newest_version() {
    let mut bench = with_first(&["n1"], json!({})).await;
    bench.node_has("n1", &[format!("vmlet.dev/r.example/d@{}", digest('a'))]);
    comes_into_use(&mut bench, "1", 'b').await;
    assert_eq!(versions(&bench), "b! a! >b");
    bench.events();
    update(&mut bench, json!({ "digest": digest('a') }));
    // Before any pass over the image.
    assert_eq!(new_machine_uses(&mut bench, "vm").await, named('a'));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! a! >a");
    assert_eq!(up_to_date(&bench), "False/Pinned");
    assert_eq!(condition(&bench, "Ready").0, "True/Available");
    assert_eq!(bench.events(), ["VersionChanged"]);
    assert!(bench.tasks("InspectImage").is_empty(), "its disk is known");

    // Checks continue, and nodes pull what they find.
    comes_into_use(&mut bench, "2", 'c').await;
    assert_eq!(versions(&bench), "c! b! a! >a");
    update(&mut bench, json!({ "digest": null }));
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "c! b! a! >c");
    assert_eq!(up_to_date(&bench), "True/UpToDate");
}

#[tokio::test]
async fn a_version_that_another_follows_before_it_is_ready_is_never_used() {
    let mut bench = with_first(&["n1"], json!({})).await;
    bench.node_has("n1", &[format!("vmlet.dev/r.example/d@{}", digest('a'))]);
    moves_to(&mut bench, "1", 'b').await;
    assert_eq!(pulling(&bench, 'b'), ["n1"]);
    moves_to(&mut bench, "2", 'c').await;
    assert_eq!(versions(&bench), "c a! >a");
    assert!(pulling(&bench, 'b').is_empty(), "its pull is cancelled");
    assert_eq!(pulling(&bench, 'c'), ["n1"]);
    // The tag was moved back.
    moves_to(&mut bench, "3", 'a').await;
    assert_eq!(versions(&bench), "a! >a");
    assert!(bench.tasks("PullImage").is_empty());
    assert_eq!(up_to_date(&bench), "True/UpToDate");
}

#[tokio::test]
async fn an_image_that_was_made_again_knows_nothing_of_the_former_one() {
    let mut bench = with_first(&["n1"], json!({})).await;
    let old = bench.get(IMAGES, "debian");
    bench.remove(IMAGES, "debian");
    let mut new = old.clone();
    new["metadata"] = json!({ "name": "debian", "namespace": "ns" });
    new.as_object_mut().unwrap().remove("status");
    bench.put(IMAGES, new);
    bench.sync();
    assert_ne!(
        bench.get(IMAGES, "debian")["metadata"]["uid"],
        old["metadata"]["uid"]
    );
    pass(&mut bench).await.ok();
    finds(&mut bench, 'b');
    settle(&mut bench).await.ok();
    assert_eq!(versions(&bench), "b! >b");
}

#[tokio::test]
async fn another_tag_has_versions_of_its_own_and_an_image_that_follows_none_has_none() {
    let mut bench = with_first(&["n1"], json!({})).await;
    let other = json!({ "source": { "oci": { "reference": "r.example/other:1" } } });
    bench.edit(IMAGES, "debian", json!({ "spec": other }));
    pass(&mut bench).await.ok();
    assert_eq!(versions(&bench), ">-", "{}", status(&bench));
    assert_eq!(condition(&bench, "Ready").0, "Unknown/NoVersion");
    let task = bench.task("InspectImage");
    assert_eq!(task["spec"]["image"], "vmlet.dev/r.example/other:1");

    bench.edit(IMAGES, "debian", json!({ "spec": { "update": null } }));
    settle(&mut bench).await.ok();
    let status = status(&bench);
    assert!(
        status["update"].is_null() && status["versions"].is_null(),
        "{status}"
    );
    assert_eq!(up_to_date(&bench), "-/-");
    let task = bench.task("InspectImage");
    assert_eq!(task["spec"]["image"], "vmlet.dev/r.example/other:1");
    assert_eq!(condition(&bench, "Ready").0, "Unknown/Inspecting");
}
