//! Rows T1: snapshots are taken and deleted, one at a time.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

mod deletions;

const FINALIZER: &str = "vmlet.dev/virtualmachinesnapshot";

async fn with_machine(changes: Value) -> Bench {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.running(changes).await;
    bench
}

fn status(bench: &Bench, name: &str) -> Value {
    bench.get(SNAPSHOTS, name)["status"].clone()
}

fn current(bench: &Bench) -> String {
    let current = bench.status().current_snapshot;
    current.map_or("-".to_owned(), |current| current.name)
}

fn roots(bench: &Bench) -> Vec<String> {
    let roots = bench.status().root_snapshots.into_iter();
    roots.map(|one| one.name).collect()
}

fn children(bench: &Bench, name: &str) -> Vec<String> {
    let status = status(bench, name);
    let all = status["children"].as_array().into_iter().flatten();
    let names = all.map(|one| one["name"].as_str().unwrap_or_default().to_owned());
    names.collect()
}

fn node_fails(bench: &mut Bench, kind: &str, transient: bool) {
    let now = bench.time();
    let task = bench.task(kind)["metadata"]["name"].clone();
    let failed = json!({
        "state": "Error", "transient": transient, "message": "said the node", "completionTime": now,
    });
    bench.edit(TASKS, task.as_str().unwrap(), json!({ "status": failed }));
}

#[tokio::test]
async fn t1a_two_snapshots_are_taken_in_their_order() {
    let mut bench = with_machine(json!({})).await;
    let first = bench.snapshot("b-first", json!({ "quiesce": { "timeout": "1500ms" } }));
    let second = bench.snapshot("a-second", json!({}));
    let earlier = json!({ "metadata": { "creationTimestamp": "2025-12-31T00:00:00Z" } });
    bench.edit(SNAPSHOTS, "b-first", earlier);
    bench.settles().await;
    let task = bench.task("Snapshot");
    assert_eq!(
        task["spec"]["snapshot"],
        json!({ "uid": first, "quiesceSeconds": 2 })
    );
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("b-first", "Created"), waits);
    assert_eq!(bench.snapshot_condition("a-second", "Created"), waits);
    let message = bench.snapshot_message("a-second", "Created");
    assert!(message.contains("older snapshot"), "{message}");
    let text = "False/WaitingForCreation";
    assert_eq!(bench.snapshot_condition("a-second", "Ready"), text);

    bench.events();
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("b-first", "Ready"), "True/Ready");
    let message = bench.snapshot_message("b-first", "Created");
    assert!(message.starts_with("consistency: "), "{message}");
    let taken = status(&bench, "b-first");
    assert_eq!(taken["powerState"], "PoweredOn");
    assert_eq!(taken["uniqueID"], json!(first));
    assert_eq!(
        taken["storage"],
        json!({ "requested": "10Mi", "used": "3Mi" })
    );
    assert_eq!(taken["manifest"]["spec"]["className"], "small");
    assert!(bench.events().contains(&"SnapshotCreated".to_owned()));
    let meta = bench.get(SNAPSHOTS, "b-first")["metadata"].clone();
    assert_eq!(meta["labels"]["snapshot.vmlet.dev/vm-name"], "vm");
    let vm = bench.get(VMS, "vm")["metadata"]["uid"].clone();
    assert_eq!(meta["ownerReferences"][0]["uid"], vm);
    assert!(meta["ownerReferences"][0]["controller"].is_null());

    let tasks = bench.tasks("Snapshot");
    assert_eq!(tasks.len(), 2);
    assert!(
        tasks
            .iter()
            .any(|task| task["spec"]["snapshot"]["uid"] == second)
    );
    bench.node_takes(false);
    bench.settles().await;
    let taken = status(&bench, "a-second");
    assert_eq!(taken["powerState"], "PoweredOff");
    assert_eq!(taken["parent"]["name"], "b-first");
    assert_eq!(current(&bench), "a-second");
    assert_eq!(roots(&bench), ["b-first"]);
    assert_eq!(children(&bench, "b-first"), ["a-second"]);
    // A controller that starts again has nothing to write.
    bench.ctx.shared = crate::shared::Shared::default();
    bench.writes();
    bench.passes().await;
    assert_eq!(bench.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn t1b_a_snapshot_waits_until_the_disk_is_flattened() {
    let mut bench = Bench::new();
    bench.off("Offline").await;
    let kinds = json!({ "taskKinds": ["Snapshot"] });
    let facts = json!({ "daemon": kinds, "features": [crds::names::DISK_PROMOTION] });
    bench.agent_reports("n1", &facts);
    bench.task("Promote");
    bench.snapshot("s", json!({}));
    bench.settles().await;
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("promoteDisksMode: Disabled"), "{message}");
    assert!(bench.tasks("Snapshot").is_empty());
    bench.task_ends("Promote", "Success");
    bench.settles().await;
    bench.task("Snapshot");
}

#[tokio::test]
async fn a_linked_disk_is_snapshotted_and_then_not_flattened() {
    for mode in ["Online", "Disabled"] {
        let mut bench = Bench::new();
        bench.off(mode).await;
        let facts = json!({
            "daemon": { "taskKinds": ["Snapshot"] }, "features": [crds::names::DISK_PROMOTION],
        });
        bench.agent_reports("n1", &facts);
        bench.taken("s").await;
        let offline = json!({ "spec": { "promoteDisksMode": "Offline" } });
        bench.edit(VMS, "vm", offline);
        bench.settles().await;
        assert!(bench.tasks("Promote").is_empty(), "{mode}");
        let synced = crds::conditions::DISK_PROMOTION_SYNCED;
        assert_eq!(bench.condition_text(synced), "True/StaysLinked");
        let text = bench.condition(synced).unwrap().message;
        assert!(text.contains("snapshots"), "{text}");
    }
}

#[tokio::test]
async fn a_later_machine_of_the_name_has_none_of_the_snapshots() {
    let mut bench = with_machine(json!({})).await;
    bench.taken("s").await;
    bench.edit(
        SNAPSHOTS,
        "s",
        json!({ "status": { "diskUID": "earlier" } }),
    );
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Ready"), "False/DiskGone");
    assert_eq!(roots(&bench), Vec::<String>::new());
    assert_eq!(current(&bench), "-");
    bench.delete_snapshot("s");
    bench.passes().await;
    assert!(bench.try_get(SNAPSHOTS, "s").is_none());
    assert!(bench.tasks("DeleteSnapshot").is_empty());
}

#[tokio::test]
async fn a_snapshot_that_a_backup_tool_restored_is_not_taken_anew() {
    let mut bench = with_machine(json!({})).await;
    let own = bench.taken("own").await;
    let key = "vmlet.dev/snapshot-uid";
    let recorded = |name: &str, bench: &Bench| {
        let annotations = &bench.get(SNAPSHOTS, name)["metadata"]["annotations"];
        annotations[key].as_str().map(str::to_owned)
    };
    assert_eq!(recorded("own", &bench), Some(own));
    let tasks = bench.tasks("Snapshot").len();
    bench.snapshot("restored", json!({}));
    let restored = json!({ "metadata": { "annotations": { key: "of-the-earlier-object" } } });
    bench.edit(SNAPSHOTS, "restored", restored);
    bench.settles().await;
    let failed = "False/CreationFailed";
    assert_eq!(bench.snapshot_condition("restored", "Created"), failed);
    let message = bench.snapshot_message("restored", "Created");
    assert!(message.contains("restored from a backup"), "{message}");
    assert_eq!(bench.tasks("Snapshot").len(), tasks);
}

#[tokio::test]
async fn what_a_snapshot_would_not_contain_is_refused_by_name_and_the_next_one_is_taken() {
    let mut bench = with_machine(json!({})).await;
    bench.snapshot("a", json!({ "memory": true }));
    bench.snapshot("b", json!({}));
    bench.settles().await;
    let failed = "False/CreationFailed";
    assert_eq!(bench.snapshot_condition("a", "Created"), failed);
    let message = bench.snapshot_message("a", "Created");
    assert!(message.contains("with memory: upgrade"), "{message}");
    let finalizers = &bench.get(SNAPSHOTS, "a")["metadata"]["finalizers"];
    assert!(finalizers.is_null(), "no node has it");
    assert_eq!(bench.task("Snapshot")["metadata"]["namespace"], "ns");
    bench.node_takes(true);
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("b", "Created"), "True/Created");

    let mut bench = Bench::new();
    let unknown = "snapshot.storage.k8s.io".to_owned();
    bench.server.lock().unwrap().unknown.push(unknown.clone());
    bench.snapshotting();
    bench.claim("data", "Bound");
    let volumes = json!([{ "name": "disk2", "persistentVolumeClaim": { "claimName": "data" } }]);
    bench
        .running(json!({ "spec": { "volumes": volumes } }))
        .await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), failed);
    let message = bench.snapshot_message("s", "Created");
    assert!(
        message.contains("data") && message.contains(&unknown),
        "{message}"
    );
    // It failed for good: what is taken later would be of another time.
    bench.server.lock().unwrap().unknown.clear();
    bench.settles().await;
    assert!(bench.tasks("Snapshot").is_empty());
}

#[tokio::test]
async fn a_node_of_an_earlier_version_is_named_and_one_without_an_agent_is_waited_for() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    bench.running(json!({})).await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    let failed = "False/CreationFailed";
    assert_eq!(bench.snapshot_condition("s", "Created"), failed);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("node n1 cannot"), "{message}");

    let mut bench = Bench::new();
    bench.agents(&[]);
    bench.running(json!({})).await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    bench.snapshotting();
    bench.settles().await;
    bench.task("Snapshot");
}

#[tokio::test]
async fn a_snapshot_waits_for_its_machine_and_for_the_disk() {
    let mut bench = Bench::new();
    bench.snapshotting();
    bench.snapshot("s", json!({}));
    bench.passes().await;
    let waits = "False/WaitingForDiskRegistration";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("does not exist"), "{message}");
    bench.provisioning(json!({})).await;
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("no disk"), "{message}");
    bench.task_ends("Provision", "Success");
    bench.settles().await;
    bench.run("n1");
    bench.facts(alive());
    bench.settles().await;
    bench.task("Snapshot");
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_and_another_is_final() {
    let mut bench = with_machine(json!({})).await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    let first = bench.task("Snapshot")["metadata"]["uid"].clone();
    node_fails(&mut bench, "Snapshot", true);
    assert_eq!(seconds(&bench.settle().await), Some(30));
    let waits = "False/CreationInProgress";
    assert_eq!(bench.snapshot_condition("s", "Created"), waits);
    let message = bench.snapshot_message("s", "Created");
    assert!(message.ends_with("tries again: said the node"), "{message}");
    bench.forward(30);
    bench.settles().await;
    assert_ne!(bench.task("Snapshot")["metadata"]["uid"], first);
    node_fails(&mut bench, "Snapshot", false);
    bench.settles().await;
    let failed = "False/CreationFailed";
    assert_eq!(bench.snapshot_condition("s", "Created"), failed);
    assert_eq!(bench.snapshot_message("s", "Created"), "said the node");
    assert_eq!(bench.condition_text("Failure"), "-", "the machine is well");
    bench.forward(601);
    bench.settles().await;
    assert!(
        bench.tasks("Snapshot").is_empty(),
        "swept, and not repeated"
    );
    assert_eq!(bench.snapshot_condition("s", "Created"), failed);
}

#[tokio::test]
async fn a_machine_of_which_the_manifest_is_too_large_is_not_snapshotted() {
    let annotations = json!({ "note": "x".repeat(70_000) });
    let mut bench = with_machine(json!({ "metadata": { "annotations": annotations } })).await;
    bench.snapshot("s", json!({}));
    bench.settles().await;
    let message = bench.snapshot_message("s", "Created");
    assert!(message.contains("64 KiB"), "{message}");
    assert!(bench.tasks("Snapshot").is_empty());
}

#[tokio::test]
async fn a_crash_before_the_task_or_before_the_result_is_made_up_for() {
    let mut bench = with_machine(json!({})).await;
    bench.refuse(http::Method::POST, "virtualmachinetasks", 500, 1);
    bench.snapshot("s", json!({}));
    bench.pass().await.unwrap_err();
    let meta = bench.get(SNAPSHOTS, "s")["metadata"].clone();
    assert_eq!(meta["finalizers"], json!([FINALIZER]), "before the task");
    assert!(!status(&bench, "s")["manifest"].is_null());
    bench.settles().await;
    bench.node_takes(true);
    bench.refuse(
        http::Method::PATCH,
        "virtualmachinesnapshots/s/status",
        500,
        1,
    );
    bench.pass().await.unwrap_err();
    assert_eq!(current(&bench), "s", "the machine names it first");
    bench.settles().await;
    assert_eq!(bench.snapshot_condition("s", "Created"), "True/Created");
    assert_eq!(current(&bench), "s");
    assert!(status(&bench, "s")["parent"].is_null());
}
