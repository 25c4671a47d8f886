//! Images: what is asked of nodes, what is recorded, and how machines follow.
//!
//! Invariant: nodes answer by the status of their task, as agents do.
//! Failure: none of its own.

use podspec::url_image_name;
use serde_json::{Value, json};

use super::bench::*;
use crate::flow::Outcome;

/// URL of the image `debian`.
const URL: &str = "https://images.example/debian.qcow2";

/// The image's `Ready`, as status and reason, and its message.
fn ready(bench: &Bench) -> (String, String) {
    condition(bench, "Ready").unwrap_or_default()
}

fn condition(bench: &Bench, kind: &str) -> Option<(String, String)> {
    let all = bench.get(IMAGES, "debian")["status"]["conditions"].take();
    let found = all.as_array()?.iter().find(|c| c["type"] == kind)?.clone();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((
        format!("{}/{}", text("status"), text("reason")),
        text("message"),
    ))
}

async fn passes(bench: &mut Bench, count: usize) -> Outcome {
    for _ in 1..count {
        bench.image_pass("ns", "debian").await.ok();
    }
    bench.image_pass("ns", "debian").await
}

/// The node has read it.
fn answers(bench: &mut Bench, image: Value) {
    let now = bench.time();
    for task in bench.tasks("InspectImage") {
        let name = task["metadata"]["name"].as_str().unwrap().to_owned();
        let status = json!({ "state": "Success", "completionTime": now, "image": image });
        bench.edit(TASKS, &name, json!({ "status": status }));
    }
}

fn qcow2() -> Value {
    json!({ "format": "qcow2", "virtualBytes": 2_147_483_648_i64, "fileBytes": 700, "bootable": true })
}

fn moved() -> Value {
    json!({ "spec": { "source": { "http": { "url": "https://Other.example/D.qcow2?v=2" } } } })
}

/// The placeholder has the image of this URL.
fn assert_placeholder_names(bench: &Bench, url: &str) {
    let placeholder = bench.placeholder("vm").unwrap();
    let image = &placeholder["spec"]["containers"][0]["image"];
    assert_eq!(*image, json!(url_image_name(url)));
    let named = &placeholder["metadata"]["annotations"]["vmlet.dev/image-url"];
    assert_eq!(*named, json!(url));
}

#[tokio::test]
async fn a_node_reads_a_new_image_and_the_answer_is_recorded_once() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    let waits = passes(&mut bench, 1).await;
    assert_eq!(seconds(&waits), Some(60));
    let task = bench.task("InspectImage");
    let image = bench.get(IMAGES, "debian");
    let spec = &task["spec"];
    assert_eq!(
        (&spec["nodeName"], &spec["vmName"]),
        (&json!("n1"), &json!("debian"))
    );
    assert_eq!(spec["vmUID"], image["metadata"]["uid"]);
    assert_eq!(spec["image"], json!(url_image_name(URL)));
    assert_eq!(spec["imageURL"], json!(URL));
    let owner = &task["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("VirtualMachineImage"), &image["metadata"]["uid"])
    );
    assert_eq!(ready(&bench).0, "Unknown/Inspecting");
    bench.writes();
    passes(&mut bench, 2).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());

    answers(&mut bench, qcow2());
    let done = passes(&mut bench, 2).await;
    assert!(is_quiet(&done), "{done:?}");
    assert_eq!(ready(&bench), ("True/Available".to_owned(), String::new()));
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert_eq!(
        (&status["type"], &status["nodeCount"]),
        (&json!("qcow2"), &json!(0))
    );
    assert_eq!(
        status["disks"],
        json!([{ "name": "root", "limit": "2Gi", "requested": "700" }])
    );
    assert_eq!(status["providerItemID"], json!(url_image_name(URL)));
    assert!(
        bench.tasks("InspectImage").is_empty(),
        "its answer is on record"
    );
    assert_eq!(bench.events(), ["Available"]);
    bench.writes();
    passes(&mut bench, 2).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_node_cannot_read_shows_on_the_image_and_on_machines_and_is_tried_again_elsewhere() {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bench.agents(&["n1", "n2"]);
    passes(&mut bench, 1).await.ok();
    let first = bench.task("InspectImage")["spec"]["nodeName"].clone();
    bench.task_ends("InspectImage", "Error");
    let waits = passes(&mut bench, 2).await;
    assert_eq!(seconds(&waits), Some(300));
    assert_eq!(
        ready(&bench),
        ("False/NotReady".to_owned(), "said the node".to_owned())
    );
    assert_eq!(bench.events(), ["NotReady"]);

    bench.machine(json!({}));
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineImageReady"),
        "False/NotReady"
    );
    let message = bench.condition("VirtualMachineImageReady").unwrap().message;
    assert_eq!(message, "image debian is not ready: said the node");
    assert!(bench.placeholder("vm").is_none(), "before any pod");

    bench.forward(300);
    passes(&mut bench, 1).await.ok();
    let second = bench.task("InspectImage");
    assert_ne!(second["spec"]["nodeName"], first, "another node");
    assert_eq!(
        ready(&bench).0,
        "False/NotReady",
        "until there is another answer"
    );
    answers(&mut bench, qcow2());
    passes(&mut bench, 2).await.ok();
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineImageReady"),
        "True/Resolved"
    );
    assert!(bench.placeholder("vm").is_some());
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_after_a_minute() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    bench.task_ends("InspectImage", "Error");
    let task = bench.task("InspectImage");
    let name = task["metadata"]["name"].as_str().unwrap();
    bench.edit(TASKS, name, json!({ "status": { "transient": true } }));
    assert_eq!(seconds(&passes(&mut bench, 1).await), Some(60));
    bench.forward(60);
    passes(&mut bench, 1).await.ok();
    let again = bench.task("InspectImage");
    assert_ne!(again["metadata"]["uid"], task["metadata"]["uid"]);
}

#[tokio::test]
async fn an_edited_source_is_read_again_and_a_machine_without_a_disk_follows_it() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    answers(&mut bench, qcow2());
    passes(&mut bench, 2).await.ok();
    bench.machine(json!({}));
    bench.settle().await.ok();
    assert_placeholder_names(&bench, URL);

    bench.edit(IMAGES, "debian", moved());
    passes(&mut bench, 1).await.ok();
    assert_eq!(ready(&bench).0, "Unknown/Inspecting");
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert!(
        status["type"].is_null() && status["disks"].is_null(),
        "{status}"
    );
    let url = "https://Other.example/D.qcow2?v=2";
    assert_eq!(bench.task("InspectImage")["spec"]["imageURL"], json!(url));

    bench.settle().await.ok();
    assert_placeholder_names(&bench, url);
}

#[tokio::test]
async fn the_nodes_that_have_an_image_are_on_record_and_serve_while_its_source_does_not() {
    let mut bench = Bench::new();
    bench.node("n2", true);
    bench.agents(&["n1"]);
    let name = url_image_name(URL);
    bench.node_has(
        "n2",
        &[format!("{name}:latest"), format!("{name}@sha256:aa")],
    );
    passes(&mut bench, 1).await.ok();
    bench.task_ends("InspectImage", "Error");
    passes(&mut bench, 1).await.ok();
    let message = "said the node; one node has it".to_owned();
    assert_eq!(ready(&bench), ("True/OnNodes".to_owned(), message));
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert_eq!(
        (&status["nodeNames"], &status["nodeCount"]),
        (&json!(["n2"]), &json!(1))
    );
    assert_eq!(status["providerContentVersion"], "sha256:aa");

    bench.node_has(
        "n1",
        &[format!("{name}:latest"), format!("{name}@sha256:bb")],
    );
    answers(&mut bench, qcow2());
    passes(&mut bench, 1).await.ok();
    let (says, message) = ready(&bench);
    assert_eq!(says, "True/Available");
    assert!(message.contains("2 different contents"), "{message}");
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert!(status["providerContentVersion"].is_null(), "{status}");
}

#[tokio::test]
async fn a_raw_disk_without_a_boot_sector_is_reported() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    let text =
        json!({ "format": "raw", "virtualBytes": 1024, "fileBytes": 1024, "bootable": false });
    answers(&mut bench, text);
    passes(&mut bench, 1).await.ok();
    assert_eq!(ready(&bench).0, "True/Available");
    let (says, message) = condition(&bench, "Bootable").unwrap();
    assert_eq!(says, "False/NoBootSector");
    assert!(message.contains("without a boot sector"), "{message}");
    assert_eq!(bench.events(), ["Available", "NoBootSector"]);
}

#[tokio::test]
async fn a_disk_that_only_uefi_boots_is_reported() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    let found = json!({
        "format": "raw", "virtualBytes": 1024, "fileBytes": 1024, "bootable": false, "firmware": "efi",
    });
    answers(&mut bench, found);
    passes(&mut bench, 1).await.ok();
    assert_eq!(ready(&bench).0, "True/Available");
    let (says, message) = condition(&bench, "Bootable").unwrap();
    assert_eq!(says, "True/BootsByUEFI");
    assert!(message.contains("only UEFI boots it"), "{message}");
    assert_eq!(bench.get(IMAGES, "debian")["status"]["firmware"], "efi");
}

#[tokio::test]
async fn a_qcow2_boots_as_far_as_its_boot_sector_is_known() {
    for (firmware, bootable, expected) in [
        (None, true, "Unknown/BootSectorNotSeen"),
        (Some("bios"), true, "True/BootSectorFound"),
        (Some("efi"), false, "True/BootsByUEFI"),
    ] {
        let mut bench = Bench::new();
        bench.agents(&["n1"]);
        passes(&mut bench, 1).await.ok();
        let found = json!({
            "format": "qcow2", "virtualBytes": 1024, "fileBytes": 1024, "bootable": bootable,
            "firmware": firmware,
        });
        answers(&mut bench, found);
        passes(&mut bench, 1).await.ok();
        assert_eq!(ready(&bench).0, "True/Available");
        assert_eq!(condition(&bench, "Bootable").unwrap().0, expected);
        assert_eq!(
            bench.get(IMAGES, "debian")["status"]["firmware"],
            json!(firmware)
        );
    }
}

#[tokio::test]
async fn an_image_that_only_a_pull_shows_is_available() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    let found = json!({ "format": "", "virtualBytes": 0, "fileBytes": 7, "bootable": true });
    answers(&mut bench, found);
    passes(&mut bench, 1).await.ok();
    let (says, message) = ready(&bench);
    assert_eq!(says, "True/Available");
    assert!(message.contains("a pull does"), "{message}");
    assert!(condition(&bench, "Bootable").is_none());
    assert!(bench.get(IMAGES, "debian")["status"]["type"].is_null());
}

#[tokio::test]
async fn without_a_node_that_can_read_it_an_image_is_unknown_and_used_all_the_same() {
    let mut bench = Bench::new();
    assert!(
        is_quiet(&passes(&mut bench, 1).await),
        "agents are not listed yet"
    );
    bench.agents(&[]);
    bench.agent("n1", &json!({ "taskKinds": ["Provision"] }));
    assert_eq!(seconds(&passes(&mut bench, 1).await), Some(60));
    assert_eq!(ready(&bench).0, "Unknown/NoNode");
    assert!(bench.tasks("InspectImage").is_empty());
    bench.machine(json!({}));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_some());
}

#[tokio::test]
async fn an_image_in_a_claim_is_ready_once_the_claim_is_bound_and_no_node_reads_it() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    assert_eq!(bench.tasks("InspectImage").len(), 1, "of the first source");
    let claim = json!({ "spec": { "source": { "http": null, "pvc": { "name": "disk" } } } });
    bench.edit(IMAGES, "debian", claim);
    assert!(is_quiet(&passes(&mut bench, 2).await));
    let (says, message) = ready(&bench);
    assert_eq!(
        (says.as_str(), message.as_str()),
        ("False/NotReady", "claim disk does not exist")
    );
    assert!(bench.tasks("InspectImage").is_empty());
    bench.claim("disk", "Pending");
    passes(&mut bench, 1).await.ok();
    assert!(ready(&bench).1.starts_with("claim disk is not bound"));

    let bound = json!({
        "spec": { "volumeMode": "Filesystem" },
        "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } },
    });
    bench.edit(CLAIMS, "disk", bound);
    passes(&mut bench, 1).await.ok();
    assert_eq!(ready(&bench), ("True/Available".to_owned(), String::new()));
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert_eq!(status["providerItemID"], "pvc/disk");
    // What the tables of a file system leave of 2 GiB.
    assert_eq!(
        status["disks"][0],
        json!({ "name": "root", "limit": "1935Mi" })
    );
    assert_eq!(status["type"], "raw");
    bench.edit(CLAIMS, "disk", json!({ "spec": { "volumeMode": "Block" } }));
    passes(&mut bench, 1).await.ok();
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert_eq!(status["disks"][0]["limit"], "2Gi");
    bench.writes();
    passes(&mut bench, 1).await.ok();
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn an_image_of_the_cluster_is_read_by_a_task_in_the_controllers_namespace() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    let mut image = image("shared");
    image["kind"] = json!("ClusterVirtualMachineImage");
    image["metadata"] = json!({ "name": "shared" });
    bench.put(CLUSTER_IMAGES, image);
    bench.sync();
    bench.image_pass("", "shared").await.ok();
    let task = bench.task("InspectImage");
    assert_eq!(task["metadata"]["namespace"], "vmlet-system");
    let owner = &task["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("ClusterVirtualMachineImage"), &json!("shared"))
    );
    bench.task_ends("InspectImage", "Error");
    bench.image_pass("", "shared").await.ok();
    let ready = bench.get(CLUSTER_IMAGES, "shared")["status"]["conditions"][0].take();
    assert_eq!(
        (&ready["type"], &ready["reason"]),
        (&json!("Ready"), &json!("NotReady"))
    );
}

#[tokio::test]
async fn the_first_disk_makes_the_source_immutable_before_its_task_exists() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.settle().await.ok();
    bench.writes();
    bench.placeholder_runs("vm");
    bench.edit_unseen(IMAGES, "debian", moved());
    let result = Box::pin(bench.pass()).await;
    assert!(is_conflict(&result), "{result:?}");
    assert!(
        bench.tasks("Provision").is_empty(),
        "of the source that was edited away"
    );

    bench.settle().await.ok();
    bench.placeholder_is_gone("vm");
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    let task = bench.task("Provision");
    assert_eq!(
        task["spec"]["imageURL"],
        "https://Other.example/D.qcow2?v=2"
    );
    assert!(bench.get(IMAGES, "debian")["status"]["usedSince"].is_string());
    let writes = bench.writes();
    let at = |part: &str| {
        writes
            .iter()
            .position(|write| write.contains(part))
            .unwrap()
    };
    assert!(
        at("virtualmachineimages/debian/status") < at("POST virtualmachinetasks"),
        "{writes:?}"
    );

    bench.task_ends("Provision", "Success");
    bench.settle().await.ok();
    assert_eq!(
        bench.status().image_url.as_deref(),
        Some("https://Other.example/D.qcow2?v=2")
    );
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    let status = bench.get(IMAGES, "debian")["status"].take();
    assert!(
        status["usedSince"].is_string(),
        "a later write keeps it: {status}"
    );
    bench.remove(IMAGES, "debian");
    bench.settle().await.ok();
    let pod = bench.pod();
    let annotation = &pod["metadata"]["annotations"]["vmlet.dev/image-url"];
    assert_eq!(
        annotation, "https://Other.example/D.qcow2?v=2",
        "also without the image"
    );
}

#[tokio::test]
async fn an_image_that_is_made_again_after_a_failed_provision_is_followed() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    let failed = bench.task("Provision")["metadata"]["uid"].clone();
    bench.task_ends("Provision", "Error");
    bench.settle().await.ok();
    bench.remove(IMAGES, "debian");
    bench.settle().await.ok();
    let mut again = image("debian");
    json_patch::merge(&mut again, &moved());
    bench.put(IMAGES, again);
    bench.sync();
    bench.settle().await.ok();
    bench.placeholder_is_gone("vm");
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineCreated"),
        "-",
        "the failure is over"
    );
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    let task = bench.task("Provision");
    assert_ne!(task["metadata"]["uid"], failed);
    assert_eq!(
        task["spec"]["imageURL"],
        "https://Other.example/D.qcow2?v=2"
    );
    assert_eq!(task["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn tasks_and_pods_name_the_secret_of_the_images_server() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    passes(&mut bench, 1).await.ok();
    let before = bench.task("InspectImage");
    assert!(before["spec"]["imageTLSSecret"].is_null());
    // What failed without certificates does not delay what has them.
    let secret = json!({ "spec": { "source": { "http": { "tlsSecret": "images-tls" } } } });
    bench.edit(IMAGES, "debian", secret);
    passes(&mut bench, 2).await.ok();
    let task = bench.task("InspectImage");
    assert_ne!(task["metadata"]["name"], before["metadata"]["name"]);
    assert_eq!(task["spec"]["imageTLSSecret"], "images-tls");
    answers(&mut bench, qcow2());
    passes(&mut bench, 2).await.ok();
    bench.machine(json!({}));
    bench.settle().await.ok();
    let placeholder = bench.placeholder("vm").unwrap();
    assert_eq!(
        placeholder["metadata"]["annotations"]["vmlet.dev/image-tls-secret"],
        "images-tls"
    );
    assert_eq!(bench.condition_text("UnsupportedFeatures"), "-");
}
