//! Images that nodes pull before a machine needs them.
//!
//! Invariant: nodes answer by the status of their task, as agents do.
//! Failure: none of its own.

use podspec::url_image_name;
use serde_json::{Value, json};

use super::bench::*;
use crate::flow::Outcome;

/// URL of the image `debian`.
const URL: &str = "https://images.example/debian.qcow2";

/// A cluster with these nodes, whose agents live, and the image, which a node has read.
async fn cluster(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new();
    for node in nodes {
        bench.node(node, true);
    }
    bench.agents(nodes);
    bench.image_pass("ns", "debian").await.ok();
    let name = inspection(&bench);
    let now = bench.time();
    let image = json!({ "format": "qcow2", "virtualBytes": 1, "fileBytes": 1, "bootable": true });
    let status = json!({ "state": "Success", "completionTime": now, "image": image });
    bench.edit(TASKS, &name, json!({ "status": status }));
    for _ in 0..2 {
        bench.image_pass("ns", "debian").await.ok();
    }
    bench.events();
    bench
}

fn inspection(bench: &Bench) -> String {
    let task = bench.task("InspectImage");
    task["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Changes the image, and lets a pass see it.
async fn edit(bench: &mut Bench, spec: Value) -> Outcome {
    bench.edit(IMAGES, "debian", json!({ "spec": spec }));
    bench.image_pass("ns", "debian").await
}

async fn pass(bench: &mut Bench) -> Outcome {
    bench.image_pass("ns", "debian").await
}

/// The nodes that have a task.
fn pulling(bench: &Bench) -> Vec<String> {
    let tasks = bench.tasks("PullImage").into_iter();
    let mut nodes: Vec<_> = tasks
        .map(|task| task["spec"]["nodeName"].as_str().unwrap().to_owned())
        .collect();
    nodes.sort();
    nodes
}

fn task_of(bench: &Bench, node: &str) -> Value {
    let mut tasks = bench.tasks("PullImage").into_iter();
    let found = tasks.find(|task| task["spec"]["nodeName"] == node);
    found.unwrap_or_else(|| panic!("node {node} pulls nothing"))
}

/// The task of a node ends.
fn ends(bench: &mut Bench, node: &str, state: &str) {
    let now = bench.time();
    let task = task_of(bench, node);
    let name = task["metadata"]["name"].as_str().unwrap();
    let status = json!({ "state": state, "message": "said the node", "completionTime": now });
    bench.edit(TASKS, name, json!({ "status": status }));
}

/// Desired, ready, pulling, failed and unavailable nodes.
fn counts(bench: &Bench) -> [u64; 5] {
    let status = status(bench);
    let fields = ["desired", "ready", "pulling", "failed", "unavailable"];
    fields.map(|field| status[field].as_u64().unwrap())
}

fn status(bench: &Bench) -> Value {
    bench.get(IMAGES, "debian")["status"]["prePull"].take()
}

#[tokio::test]
async fn three_nodes_at_a_time_pull_an_image_and_each_once() {
    let mut bench = cluster(&["n1", "n2", "n3", "n4"]).await;
    bench.node("old", true);
    bench.agent(
        "old",
        &json!({ "taskKinds": ["Provision", "InspectImage"] }),
    );
    bench.node("other", true);
    let waits = edit(&mut bench, json!({ "prePull": {} })).await;
    assert_eq!(seconds(&waits), Some(60));
    assert_eq!(pulling(&bench), ["n1", "n2", "n3"]);
    assert_eq!(counts(&bench), [4, 0, 3, 0, 1]);
    let task = bench.tasks("PullImage")[0].clone();
    let image = bench.get(IMAGES, "debian");
    assert_eq!(task["spec"]["vmUID"], image["metadata"]["uid"]);
    assert_eq!(task["spec"]["image"], json!(url_image_name(URL)));
    assert_eq!(task["spec"]["imageURL"], json!(URL));
    let owner = &task["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "VirtualMachineImage");
    assert_eq!(
        status(&bench)["observedGeneration"],
        image["metadata"]["generation"]
    );
    // The cache of the image, and its status.
    pass(&mut bench).await.ok();
    bench.writes();
    pass(&mut bench).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());

    ends(&mut bench, "n2", "Success");
    pass(&mut bench).await.ok();
    assert_eq!(
        pulling(&bench),
        ["n1", "n2", "n3", "n4"],
        "not on record yet"
    );
    assert_eq!(counts(&bench), [4, 1, 3, 0, 1]);
    assert_eq!(status(&bench)["nodes"], json!(["n2"]));
    pass(&mut bench).await.ok();
    assert_eq!(pulling(&bench), ["n1", "n3", "n4"]);

    for node in ["n1", "n3", "n4"] {
        ends(&mut bench, node, "Success");
    }
    pass(&mut bench).await.ok();
    assert_eq!(bench.events(), ["PrePulled"]);
    assert!(is_quiet(&pass(&mut bench).await));
    assert_eq!(counts(&bench), [4, 4, 0, 0, 1]);
    assert!(pulling(&bench).is_empty(), "each is on record");
    bench.writes();
    pass(&mut bench).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());

    bench.node("n5", true);
    bench.agent("n5", &json!({ "taskKinds": ["PullImage"] }));
    pass(&mut bench).await.ok();
    assert_eq!(pulling(&bench), ["n5"], "a node that joined");
    bench.remove(NODES, "n5");
    bench.remove(NODES, "n2");
    pass(&mut bench).await.ok();
    assert!(pulling(&bench).is_empty());
    assert_eq!(status(&bench)["nodes"], json!(["n1", "n3", "n4"]));
    assert_eq!(counts(&bench), [3, 3, 0, 0, 1]);
}

#[tokio::test]
async fn a_pull_that_failed_shows_its_node_and_is_repeated_after_those_that_were_not_tried() {
    let mut bench = cluster(&["n1", "n2", "n3", "n4", "n5"]).await;
    edit(&mut bench, json!({ "prePull": {} })).await.ok();
    ends(&mut bench, "n1", "Error");
    pass(&mut bench).await.ok();
    assert_eq!(pulling(&bench), ["n1", "n2", "n3", "n4"]);
    assert_eq!(counts(&bench), [5, 0, 3, 1, 0]);
    assert_eq!(status(&bench)["message"], "node n1: said the node");
    assert_eq!(bench.events(), ["PrePullFailed"]);
    pass(&mut bench).await.ok();
    assert_eq!(
        bench.events(),
        Vec::<String>::new(),
        "one event for one failure"
    );

    bench.forward(300);
    for node in ["n2", "n3"] {
        ends(&mut bench, node, "Success");
    }
    ends(&mut bench, "n4", "Error");
    let first = task_of(&bench, "n1")["metadata"]["uid"].clone();
    pass(&mut bench).await.ok();
    assert_eq!(counts(&bench), [5, 2, 2, 1, 0]);
    assert_eq!(status(&bench)["message"], "node n4: said the node");
    let open = |bench: &Bench| -> Vec<String> {
        let tasks = bench.tasks("PullImage").into_iter();
        let tasks = tasks.filter(|task| task["status"]["state"].is_null());
        let nodes = tasks.map(|task| task["spec"]["nodeName"].as_str().unwrap().to_owned());
        nodes.collect()
    };
    let mut nodes = open(&bench);
    nodes.sort();
    assert_eq!(
        nodes,
        ["n1", "n5"],
        "the one that failed long ago, and a new one"
    );
    let second = &task_of(&bench, "n1")["metadata"]["uid"];
    assert_ne!(*second, first);

    for node in ["n1", "n5"] {
        ends(&mut bench, node, "Success");
    }
    let waits = pass(&mut bench).await;
    assert_eq!(seconds(&waits), Some(60));
    bench.forward(300);
    pass(&mut bench).await.ok();
    assert_eq!(open(&bench), ["n4"]);
    ends(&mut bench, "n4", "Success");
    pass(&mut bench).await.ok();
    assert_eq!(counts(&bench), [5, 5, 0, 0, 0]);
    assert!(status(&bench)["message"].is_null());
}

#[tokio::test]
async fn more_nodes_than_may_pull_wait_behind_those_that_failed_last() {
    let mut bench = cluster(&["n1", "n2", "n3", "n4"]).await;
    edit(&mut bench, json!({ "prePull": {} })).await.ok();
    for node in ["n1", "n2", "n3"] {
        ends(&mut bench, node, "Error");
    }
    bench.forward(400);
    let old = bench.tasks("PullImage");
    pass(&mut bench).await.ok();
    let new = bench.tasks("PullImage");
    let fresh: Vec<_> = new.iter().filter(|task| !old.contains(task)).collect();
    let nodes: Vec<_> = fresh.iter().map(|task| &task["spec"]["nodeName"]).collect();
    assert!(nodes.contains(&&json!("n4")), "it was not tried: {nodes:?}");
    assert_eq!(nodes.len(), 3);
    assert_eq!(counts(&bench), [4, 0, 3, 0, 0]);
}

#[tokio::test]
async fn an_edited_source_is_pulled_anew_and_without_the_request_pulls_end() {
    let mut bench = cluster(&["n1", "n2"]).await;
    edit(&mut bench, json!({ "prePull": {} })).await.ok();
    ends(&mut bench, "n1", "Success");
    pass(&mut bench).await.ok();
    assert_eq!(status(&bench)["nodes"], json!(["n1"]));
    let url = "https://Other.example/D.qcow2?v=2";
    let moved = json!({ "source": { "http": { "url": url } } });
    edit(&mut bench, moved).await.ok();
    assert_eq!(pulling(&bench), ["n1", "n2"]);
    let tasks = bench.tasks("PullImage");
    assert!(
        tasks.iter().all(|task| task["spec"]["imageURL"] == url),
        "that of the old source is cancelled by its deletion"
    );
    assert!(status(&bench)["nodes"].is_null());
    edit(&mut bench, json!({ "prePull": null })).await.ok();
    assert!(pulling(&bench).is_empty());
    assert!(status(&bench).is_null());
}

#[tokio::test]
async fn a_request_for_pulls_needs_no_other_answer_about_the_image() {
    let mut bench = cluster(&["n1"]).await;
    edit(&mut bench, json!({ "prePull": {} })).await.ok();
    let image = bench.get(IMAGES, "debian");
    assert!(bench.tasks("InspectImage").is_empty());
    assert_eq!(image["status"]["type"], "qcow2");
    let ready = image["status"]["conditions"].as_array().unwrap();
    let ready = ready.iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["reason"], "Available");
    assert_eq!(ready["observedGeneration"], image["metadata"]["generation"]);
    assert_eq!(bench.events(), Vec::<String>::new());
}

#[tokio::test]
async fn the_selector_cordons_and_what_nodes_have_decide_who_pulls() {
    let mut bench = cluster(&["n1", "n2", "n3", "n4"]).await;
    for node in ["n1", "n2", "n3"] {
        let labels = json!({ "metadata": { "labels": { "pool": "db" } } });
        bench.edit(NODES, node, labels);
    }
    bench.edit(NODES, "n2", json!({ "spec": { "unschedulable": true } }));
    let name = url_image_name(URL);
    bench.node_has("n3", &[format!("{name}:latest")]);
    let selector = |pool: &str| json!({ "prePull": { "nodeSelector": { "pool": pool } } });
    edit(&mut bench, selector("db")).await.ok();
    assert_eq!(pulling(&bench), ["n1"]);
    assert_eq!(counts(&bench), [2, 1, 1, 0, 1]);
    assert!(status(&bench)["nodes"].is_null(), "kubelet knows of n3");

    bench.edit(NODES, "n2", json!({ "spec": { "unschedulable": null } }));
    pass(&mut bench).await.ok();
    assert_eq!(pulling(&bench), ["n1", "n2"]);
    bench.agents(&["n2", "n3", "n4"]);
    pass(&mut bench).await.ok();
    assert_eq!(counts(&bench), [2, 1, 1, 0, 0], "n1 has no agent any more");

    edit(&mut bench, selector("web")).await.ok();
    assert!(pulling(&bench).is_empty(), "cancelled by their deletion");
    assert_eq!(counts(&bench), [0; 5]);
    let message = status(&bench)["message"].take();
    assert_eq!(
        message,
        "no node has the labels of spec.prePull.nodeSelector"
    );
    bench.agents(&[]);
    edit(&mut bench, selector("db")).await.ok();
    let message = status(&bench)["message"].take();
    assert!(message.is_null(), "n3 has it: {message}");
    bench.node_has("n3", &[]);
    pass(&mut bench).await.ok();
    let message = status(&bench)["message"].take();
    assert!(
        message.as_str().unwrap().starts_with("no node of"),
        "{message}"
    );
}

#[tokio::test]
async fn an_image_of_the_cluster_is_pulled_by_tasks_in_the_controllers_namespace() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    let mut image = image("shared");
    image["kind"] = json!("ClusterVirtualMachineImage");
    image["metadata"] = json!({ "name": "shared" });
    image["spec"]["prePull"] = json!({});
    bench.put(CLUSTER_IMAGES, image);
    bench.sync();
    bench.image_pass("", "shared").await.ok();
    let task = bench.task("PullImage");
    assert_eq!(task["metadata"]["namespace"], "vmlet-system");
    let owner = &task["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "ClusterVirtualMachineImage");
    assert_eq!(bench.task("InspectImage")["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn what_nodes_cannot_pull_is_refused_in_words() {
    let mut bench = cluster(&["n1"]).await;
    let private = json!({
        "source": { "http": null, "oci": { "reference": "r.example/d:1", "pullSecret": "s" } },
        "prePull": {},
    });
    edit(&mut bench, private).await.ok();
    assert!(pulling(&bench).is_empty());
    let message = status(&bench)["message"].take();
    assert!(
        message.as_str().unwrap().contains("credentials"),
        "{message}"
    );
}

#[tokio::test]
async fn a_full_record_keeps_further_nodes_from_pulling() {
    let mut bench = Bench::new();
    let names: Vec<_> = (0..1001).map(|n| format!("n{n:04}")).collect();
    bench.remove(NODES, "n1");
    for name in &names {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        bench.put(NODES, node);
    }
    let agents: Vec<_> = names.iter().map(String::as_str).collect();
    bench.agents(&agents);
    let status_of = |nodes: &[String]| {
        let pulls = json!({ "desired": 0, "nodes": nodes });
        json!({ "providerItemID": url_image_name(URL), "prePull": pulls })
    };
    let change = json!({ "spec": { "prePull": {} }, "status": status_of(&names[..999]) });
    bench.edit(IMAGES, "debian", change);
    pass(&mut bench).await.ok();
    assert_eq!(pulling(&bench), ["n0999"], "one place is free");
    ends(&mut bench, "n0999", "Success");
    pass(&mut bench).await.ok();
    pass(&mut bench).await.ok();
    assert!(pulling(&bench).is_empty());
    assert_eq!(counts(&bench), [1000, 1000, 0, 0, 1]);
    let message = status(&bench)["message"].take();
    assert!(message.as_str().unwrap().contains("is full"), "{message}");
}
