//! From nothing to a running machine, and what that costs.
//!
//! Invariant: at most five API writes for one start.
//! Failure: the writes are listed.

use http::Method;
use podspec::url_image_name;
use serde_json::{Value, json};

use super::bench::*;

fn strategy(name: &str) -> Value {
    json!({ "spec": { "runStrategy": name } })
}

#[tokio::test]
async fn a_new_machine_gets_a_node_then_a_disk_then_a_pod() {
    let mut bench = Bench::new();
    let uid = bench.machine(json!({}));
    bench.settle().await.ok();
    let provisioner = bench.placeholder("vm").unwrap();
    assert_eq!(
        provisioner["metadata"]["labels"]["vmlet.dev/role"],
        "provision"
    );
    assert_eq!(
        bench.condition_text("VirtualMachineConditionPlacementReady"),
        "False/NotReady"
    );
    assert!(bench.tasks("Provision").is_empty());

    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineConditionPlacementReady"),
        "True/Scheduled"
    );
    assert_eq!(bench.status().node_name, None, "it can still be edited");
    assert!(
        bench.tasks("Provision").is_empty(),
        "before the image is there"
    );

    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
    let task = bench.task("Provision");
    assert_eq!(task["spec"]["nodeName"], "n1");
    assert_eq!(task["spec"]["vmUID"], json!(uid));
    let url = "https://images.example/debian.qcow2";
    assert_eq!(task["spec"]["image"], json!(url_image_name(url)));
    assert_eq!(task["spec"]["imageURL"], json!(url));
    assert_eq!(task["spec"]["linked"], true);
    assert_eq!(bench.condition_text("VirtualMachineCreated"), "-");

    bench.task_ends("Provision", "Success");
    bench.pass().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineCreated"),
        "True/Provisioned"
    );
    assert!(bench.placeholder("vm").is_some(), "it is to be on");
    assert!(!bench.has_pod());

    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_none());
    let pod = bench.pod();
    assert_eq!(
        pod["metadata"]["annotations"]["vmlet.dev/vm-disk"],
        json!(uid)
    );
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Ready"), "False/NoSignOfLife");
    bench.facts(alive());
    bench.settle().await.ok();
    let status = bench.status();
    assert_eq!(status.power_state, Some(crds::PowerState::PoweredOn));
    assert_eq!(
        status.printable_status,
        Some(crds::vm::PrintableStatus::Running)
    );
    assert_eq!(bench.condition_text("Ready"), "True/PodReady");
    assert!(status.unique_id.unwrap().starts_with("n1/"));
}

#[tokio::test]
async fn a_start_takes_five_writes_at_most_until_the_machine_has_its_address() {
    let mut bench = Bench::new();
    bench.created(strategy("Halted")).await;
    bench.settle().await.ok();
    bench.placeholder_is_gone("vm");
    bench.edit(VMS, "vm", strategy("Always"));
    bench.writes();
    bench.settle().await.ok();
    bench.bind("vm", "n1");
    bench.settle().await.ok();
    bench.run("n1");
    bench.settle().await.ok();
    bench.facts(json!({ "power": "On", "agent": "Connected", "interfaces": [
        { "name": "eth0", "addresses": ["10.1.0.7/24"], "source": "GuestAgent" },
    ]}));
    bench.settle().await.ok();
    let writes = bench.writes();
    assert_eq!(
        bench.status().network.unwrap().primary_ip4.as_deref(),
        Some("10.1.0.7")
    );
    assert!(writes.len() <= 5, "{writes:#?}");
}

/// The API server has made the placeholder just now.
fn placeholder_is_new(bench: &mut Bench) {
    let placeholder = bench.placeholder("vm").unwrap();
    let name = placeholder["metadata"]["name"].as_str().unwrap();
    let made = json!({ "metadata": { "creationTimestamp": bench.time() } });
    bench.edit(PODS, name, made);
}

/// Two of them hand the place over: nomination and gate. The first disk of an image is one more, in
/// the image's status.
#[tokio::test]
async fn a_new_machine_takes_twelve_writes_when_each_step_follows_at_once() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.pass().await.ok();
    bench.pass().await.ok();
    placeholder_is_new(&mut bench);
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.pass().await.ok();
    bench.task_ends("Provision", "Success");
    bench.settle().await.ok();
    bench.run("n1");
    bench.settle().await.ok();
    let all: Vec<_> = bench.writes().into_iter().map(short).collect();
    let expected = [
        "PATCH virtualmachines/vm",
        "POST pods/vm-placeholder",
        "PATCH virtualmachines/vm/status",
        "PATCH virtualmachineimages/debian/status",
        "POST virtualmachinetasks/vm-provision",
        "PATCH virtualmachines/vm/status",
        "POST pods/vm",
        "PATCH pods/vm/status",
        "DELETE pods/vm-placeholder",
        "PATCH pods/vm",
        "PATCH virtualmachines/vm",
        "PATCH virtualmachines/vm/status",
        "PATCH virtualmachines/vm/status",
    ];
    assert_eq!(all, expected);
}

/// The image is pulled, and the disk takes a while: bound, recorded, created.
#[tokio::test]
async fn a_slow_new_machine_takes_three_writes_of_its_status_until_it_is_created() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.pass().await.ok();
    bench.pass().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    bench.forward(1);
    bench.settle().await.ok();
    bench.task_ends("Provision", "Success");
    bench.pass().await.ok();
    let all = bench.writes().into_iter();
    let status = all.filter(|write| write == "PATCH virtualmachines/vm/status");
    assert_eq!(status.count(), 3);
}

/// Whatever happens then, the machine knows where a disk may lie.
#[tokio::test]
async fn the_node_is_on_record_before_a_task_is_made_there() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.writes();
    bench.refuse(Method::POST, "virtualmachinetasks", 500, 1);
    failure(&bench.pass().await);
    assert_eq!(bench.status().node_name.as_deref(), Some("n1"));
    bench.settle().await.ok();
    assert_eq!(bench.task("Provision")["spec"]["nodeName"], "n1");
}

/// A write without UIDs and hashes.
fn short(write: String) -> String {
    let ends = ["-of-virtual-machine-", "-provision-"];
    let cut = ends.iter().find_map(|end| write.find(end));
    let end = cut.map_or(write.len(), |at| match &write[at..] {
        rest if rest.starts_with("-provision-") => at + "-provision".len(),
        _ => at,
    });
    write[..end].to_owned()
}

/// Nothing shows for a second at most, or three where the node may have the image.
#[tokio::test]
async fn a_status_that_waits_for_the_next_step_does_not_wait_for_long() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.pass().await.ok();
    assert_eq!(seconds(&bench.pass().await), Some(1));
    assert!(bench.get(VMS, "vm")["status"].is_null());
    bench.pass().await.ok();
    let placed = bench.condition_text("VirtualMachineConditionPlacementReady");
    assert_eq!(placed, "False/NotReady");
    placeholder_is_new(&mut bench);
    bench.placeholder_is_bound("vm", "n1");
    bench.forward(1);
    assert_eq!(seconds(&bench.pass().await), Some(2));
    let placed = bench.condition_text("VirtualMachineConditionPlacementReady");
    assert_eq!(placed, "False/NotReady");
    bench.forward(2);
    bench.pass().await.ok();
    let placed = bench.condition_text("VirtualMachineConditionPlacementReady");
    assert_eq!(placed, "True/Scheduled");
    bench.placeholder_runs("vm");
    let made = bench.pass().await;
    assert_eq!(seconds(&made), Some(1));
    let cached = bench.condition_text("VirtualMachineConditionImageCacheReady");
    assert_eq!(cached, "True/Cached");
    bench.writes();
    bench.pass().await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn nothing_is_written_when_nothing_changed() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.forward(300);
    let result = bench.pass().await;
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert!(is_quiet(&result), "{result:?}");
    assert_eq!(bench.events(), Vec::<String>::new());
}

#[tokio::test]
async fn a_machine_starts_from_its_disk_when_its_image_is_gone() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    let name = url_image_name("https://images.example/debian.qcow2");
    assert_eq!(bench.status().image.as_ref(), Some(&name));
    bench.remove(IMAGES, "debian");
    bench.settle().await.ok();
    assert_eq!(bench.pod()["spec"]["containers"][0]["image"], json!(name));
}

/// Where the node's daemon allows it, no server of images is asked at a start from a disk.
#[tokio::test]
async fn a_pod_on_a_complete_disk_has_no_image_where_the_node_allows_it() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    let name = url_image_name("https://images.example/debian.qcow2");
    bench.agent("n1", &json!({ "features": ["DiskWithoutImage"] }));
    bench.settle().await.ok();
    let pod = bench.pod();
    assert_eq!(pod["spec"]["containers"][0]["image"], "vmlet.dev/none");
    assert_eq!(pod["metadata"]["annotations"]["vmlet.dev/disk-image"], name);
    assert_eq!(pod["spec"]["imagePullSecrets"], Value::Null);
    bench.run("n1");
    bench.settle().await.ok();
    assert_eq!(bench.status().image.as_ref(), Some(&name));
}

/// A URL of an object store and a digest: longer than names of objects ever are.
#[tokio::test]
async fn an_image_with_a_long_name_and_a_digest_makes_a_machine() {
    let mut bench = Bench::new();
    let url = format!("https://images.example/{}/debian.qcow2", "a".repeat(200));
    let http = json!({ "url": url, "digest": format!("sha256:{}", "0".repeat(64)) });
    bench.edit(
        IMAGES,
        "debian",
        json!({ "spec": { "source": { "http": http } } }),
    );
    bench.created(json!({})).await;
    assert_eq!(
        bench.condition_text("VirtualMachineCreated"),
        "True/Provisioned"
    );
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

/// A node may report the reason of an end at any length.
#[tokio::test]
async fn an_end_with_a_long_reason_is_recorded() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let story = json!({ "phase": "Failed", "reason": "Evicted", "message": "ä".repeat(9000) });
    bench.edit(PODS, "vm", json!({ "status": story }));
    bench.pass().await.ok();
    let reported = bench.status().instance.unwrap();
    assert_eq!(reported.phase.as_deref(), Some("Failed"));
    assert!(reported.message.unwrap().starts_with('ä'));
}

/// A node that refuses every pod must not be queried again as fast as it refuses.
#[tokio::test]
async fn a_failed_placeholder_pod_is_not_recreated_at_once() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    let made = json!({ "creationTimestamp": bench.time() });
    let refused = json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "no room" });
    let name = bench.placeholder("vm").unwrap()["metadata"]["name"].clone();
    bench.edit(
        PODS,
        name.as_str().unwrap(),
        json!({ "metadata": made, "status": refused }),
    );
    bench.writes();
    bench.forward(10);
    let delay = seconds(&bench.settle().await);
    assert_eq!(delay, Some(20));
    let first = bench.placeholder("vm").unwrap()["metadata"]["uid"].clone();
    let placed = bench
        .condition("VirtualMachineConditionPlacementReady")
        .unwrap();
    assert_eq!((&*placed.status, &*placed.reason), ("False", "Error"));
    assert!(
        placed.message.contains("OutOfcpu: no room"),
        "{}",
        placed.message
    );
    bench.forward(20);
    bench.settle().await.ok();
    let second = bench.placeholder("vm").unwrap();
    assert_ne!(second["metadata"]["uid"], first);
    assert!(second["spec"]["affinity"].is_null(), "any node may do");
    let full = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "it is full",
    });
    bench.edit(
        PODS,
        name.as_str().unwrap(),
        json!({ "status": { "conditions": [full] } }),
    );
    bench.settle().await.ok();
    let placed = bench.condition("VirtualMachineConditionPlacementReady");
    assert_eq!(placed.unwrap().message, "it is full");
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    let says = bench.condition_text("VirtualMachineConditionPlacementReady");
    assert_eq!(says, "True/Scheduled");
}

#[tokio::test]
async fn a_disk_on_a_lost_node_has_a_condition() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    bench.remove(NODES, "n1");
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineLocationValid"),
        "False/NodeLost"
    );
    assert_eq!(bench.tasks("Provision").len(), 1);
}
