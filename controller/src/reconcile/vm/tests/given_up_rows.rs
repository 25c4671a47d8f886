//! Nodes that are given up before the root disk of a new machine is there.
//!
//! Invariant: a node is given up only while nothing of the machine can be there.
//! Failure: none of its own.

use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;

/// Seconds that a task which failed for good is kept.
const HOLD: i64 = 300;

fn node(bench: &Bench) -> Option<String> {
    bench.status().node_name
}

/// The node that the placeholder is bound to.
fn held(bench: &Bench) -> Value {
    bench.placeholder("vm").unwrap()["spec"]["nodeName"].clone()
}

fn avoided(bench: &Bench) -> Value {
    let placeholder = bench.placeholder("vm").unwrap();
    let affinity = &placeholder["spec"]["affinity"]["nodeAffinity"];
    affinity["preferredDuringSchedulingIgnoredDuringExecution"][0].clone()
}

/// A placeholder that is bound to n1, in this state of its container. Earlier versions put its node on
/// record at once.
async fn bound(waiting: &Value, recorded: Option<&str>) -> Bench {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bind(&mut bench, waiting, recorded).await;
    bench
}

/// The same of a new machine in a cluster.
async fn bind(bench: &mut Bench, waiting: &Value, recorded: Option<&str>) {
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    assert_eq!(node(bench), None);
    // The controller's next write has all of it.
    let record = json!({ "nodeName": recorded, "printableStatus": "Stopped" });
    bench.edit(VMS, "vm", json!({ "status": record }));
    let placeholder = bench.placeholder("vm").unwrap();
    let name = placeholder["metadata"]["name"].as_str().unwrap();
    bench.edit(
        PODS,
        name,
        json!({
            "metadata": { "creationTimestamp": bench.time() },
            "status": { "containerStatuses": [{
                "name": "vm", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": waiting },
            }]},
        }),
    );
}

#[tokio::test]
async fn a_node_that_could_not_make_the_disk_is_avoided() {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bench.provisioning(json!({})).await;
    bench.task_ends("Provision", "Error");
    bench.settle().await.ok();
    assert_eq!(node(&bench).as_deref(), Some("n1"), "the back-off");
    bench.forward(HOLD);
    bench.settle().await.ok();
    assert!(bench.tasks("Provision").is_empty());
    assert_eq!(node(&bench), None);
    let elsewhere = avoided(&bench);
    let field = &elsewhere["preference"]["matchFields"][0];
    assert_eq!(field["operator"], "NotIn");
    assert_eq!(field["values"], json!(["n1"]));

    bench.placeholder_is_bound("vm", "n2");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n2");
}

#[rstest]
#[case::of_the_placeholder(None)]
#[case::on_record(Some("n1"))]
#[tokio::test]
async fn a_node_that_cannot_pull_the_image_is_given_up_after_a_while(
    #[case] recorded: Option<&str>,
) {
    let reason = json!({ "reason": "ImagePullBackOff", "message": "no route" });
    let mut bench = bound(&reason, recorded).await;
    bench.settle().await.ok();
    assert_eq!(held(&bench), "n1");
    bench.forward(299);
    bench.settle().await.ok();
    assert_eq!(held(&bench), "n1");
    assert_eq!(node(&bench).as_deref(), recorded);
    bench.forward(1);
    bench.settle().await.ok();
    assert_eq!(node(&bench), None);
    assert!(held(&bench).is_null());
    assert_eq!(
        avoided(&bench)["preference"]["matchFields"][0]["values"],
        json!(["n1"])
    );
}

/// The image is uploaded, and these nodes have it.
async fn uploaded_to(nodes: &[String]) -> Bench {
    let uploaded = "vmlet.dev/upload.invalid/ns/debian:abc";
    let mut bench = Bench::new();
    for node in nodes {
        bench.node(node, true);
        bench.node_has(node, &[uploaded.to_owned()]);
    }
    let source = json!({ "http": null, "oci": { "reference": uploaded } });
    bench.edit(IMAGES, "debian", json!({ "spec": { "source": source } }));
    bench.agents(&["n1"]);
    for _ in 0..3 {
        bench.image_pass("ns", "debian").await.ok();
    }
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert_eq!(status["nodeNames"], json!(nodes), "{status}");
    bench
}

#[tokio::test]
async fn a_node_without_an_uploaded_image_is_given_up_at_once_but_once() {
    let reason = json!({ "reason": "ErrImagePull", "message": "it was uploaded to other nodes" });
    let mut bench = uploaded_to(&["n2".to_owned()]).await;
    bind(&mut bench, &reason, None).await;
    bench.settle().await.ok();
    assert!(
        held(&bench).is_null(),
        "n1 does not have it: {}",
        bench.placeholder("vm").unwrap()
    );
    let values = &avoided(&bench)["preference"]["matchFields"][0]["values"];
    assert_eq!(*values, json!(["n1"]));

    // The scheduler has no other place.
    bench.placeholder_is_bound("vm", "n1");
    let placeholder = bench.placeholder("vm").unwrap();
    let name = placeholder["metadata"]["name"].as_str().unwrap();
    let waits = json!({
        "metadata": { "creationTimestamp": bench.time() },
        "status": { "containerStatuses": [{
            "name": "vm", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": reason },
        }]},
    });
    bench.edit(PODS, name, waits);
    bench.settle().await.ok();
    assert_eq!(held(&bench), "n1", "as long as for any image");
}

/// A placeholder prefers none of so many.
#[tokio::test]
async fn a_node_without_an_image_that_many_have_is_given_up_at_once_too() {
    let nodes: Vec<_> = (20..37).map(|number| format!("n{number}")).collect();
    let mut bench = uploaded_to(&nodes).await;
    bind(&mut bench, &json!({ "reason": "ErrImagePull" }), None).await;
    bench.settle().await.ok();
    assert!(held(&bench).is_null(), "n1 does not have it");
}

#[rstest]
#[case::of_the_placeholder(None)]
#[case::on_record(Some("n1"))]
#[tokio::test]
async fn a_node_that_does_not_report_is_given_up_before_a_task_is_there(
    #[case] recorded: Option<&str>,
) {
    let mut bench = bound(&json!({ "reason": "ContainerCreating" }), recorded).await;
    bench.forward(10);
    bench.settle().await.ok();
    assert_eq!(held(&bench), "n1");
    bench.node("n1", false);
    bench.settle().await.ok();
    assert_eq!(node(&bench), None);
    assert!(held(&bench).is_null());
    assert!(!avoided(&bench).is_null());
}

/// Its pod stays `Running` until the node is taken for lost.
#[tokio::test]
async fn a_node_that_stops_to_report_while_the_placeholder_runs_gets_no_task() {
    let mut bench = bound(&json!({ "reason": "ContainerCreating" }), None).await;
    bench.placeholder_runs("vm");
    bench.node("n1", false);
    bench.settle().await.ok();
    assert!(bench.tasks("Provision").is_empty());
    assert_eq!(node(&bench), None);
    assert!(held(&bench).is_null());
}

/// A drain evicted it, say, and no kubelet is left to confirm its end.
#[tokio::test]
async fn a_placeholder_that_is_deleted_on_a_lost_node_is_made_again_elsewhere() {
    let mut bench = bound(&json!({ "reason": "ContainerCreating" }), None).await;
    bench.placeholder_runs("vm");
    let placeholder = bench.placeholder("vm").unwrap();
    let name = placeholder["metadata"]["name"].as_str().unwrap();
    let deleted = json!({
        "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30,
    });
    bench.edit(PODS, name, json!({ "metadata": deleted }));
    bench.settle().await.ok();
    assert_eq!(held(&bench), "n1", "its end is waited for");
    bench.node("n1", false);
    bench.settle().await.ok();
    assert!(held(&bench).is_null());
    assert!(bench.tasks("Provision").is_empty());
    assert_eq!(node(&bench), None);
}

/// The pass that recorded the node came to no end.
#[tokio::test]
async fn a_machine_of_an_earlier_version_gets_its_disk_on_the_node_on_record() {
    let mut bench = bound(&json!({ "reason": "ContainerCreating" }), Some("n1")).await;
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n1");
    assert_eq!(node(&bench).as_deref(), Some("n1"));
}

/// The watch of tasks may be behind: the disk may be on its way there.
#[tokio::test]
async fn a_node_with_a_task_that_the_store_does_not_show_is_kept() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.node("n1", false);
    let task = bench.task("Provision");
    let name = task["metadata"]["name"].as_str().unwrap().to_owned();
    let placeholder = bench.placeholder("vm").unwrap();
    bench.remove(PODS, placeholder["metadata"]["name"].as_str().unwrap());
    bench.remove(TASKS, &name);
    let place = (TASKS.to_owned(), name);
    bench.server.lock().unwrap().objects.insert(place, task);
    bench.pass().await.ok();
    assert_eq!(node(&bench).as_deref(), Some("n1"));
}

/// A node without space for the disk, say.
#[rstest]
#[case::for_another_one(json!({}), None)]
#[case::not_for_a_cordoned_one(json!({ "spec": { "unschedulable": true } }), Some("n1"))]
#[case::not_for_one_that_does_not_report(json!({ "status": { "conditions": null } }), Some("n1"))]
#[tokio::test]
async fn a_node_whose_failures_do_not_pass_is_given_up_after_a_while(
    #[case] other: Value,
    #[case] expected: Option<&str>,
) {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bench.edit(NODES, "n2", other);
    bench.provisioning(json!({})).await;
    let attempt = async |bench: &mut Bench| {
        bench.task_ends("Provision", "Error");
        let task = bench.task("Provision");
        let name = task["metadata"]["name"].as_str().unwrap();
        bench.edit(TASKS, name, json!({ "status": { "transient": true } }));
        bench.forward(60);
        bench.settle().await.ok();
    };
    for _ in 0..5 {
        attempt(&mut bench).await;
        assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n1");
    }
    attempt(&mut bench).await;
    assert_eq!(node(&bench).as_deref(), expected);
    assert_eq!(bench.tasks("Provision").is_empty(), expected.is_none());
    if expected.is_none() {
        let elsewhere = avoided(&bench);
        let field = &elsewhere["preference"]["matchFields"][0];
        assert_eq!(field["values"], json!(["n1"]));
    }
}
