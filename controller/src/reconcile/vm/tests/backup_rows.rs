//! Rows U5 (b) and (c), records of earlier versions and manifests, and machines that take over the disk of
//! an earlier one.
//!
//! Invariant: one test for each case; tasks end as a test says.
//! Failure: none of its own.

use crds::backup::DiskRecord;
use crds::conditions::{BACKUP_UP_TO_DATE, CREATED};
use crds::names;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::bench::*;

const OLD: &str = "7f0f2d8e-5a1b-4c77-9d3e-766d6c657401";
const BIOS: &str = "8f0f2d8e-5a1b-4c77-9d3e-766d6c657401";
const RECORDS: [&str; 6] = [
    names::CREATED_AT_BUILD,
    names::CREATED_AT_SCHEMA,
    names::DISK_RECORD,
    names::UPGRADED_TO_BUILD,
    names::UPGRADED_TO_FEATURE,
    names::UPGRADED_TO_SCHEMA,
];

fn annotation(bench: &Bench, key: &str) -> Value {
    bench.get(VMS, "vm")["metadata"]["annotations"][key].clone()
}

fn annotate(bench: &mut Bench, key: &str, value: Value) {
    let change = json!({ "metadata": { "annotations": { key: value } } });
    bench.edit(VMS, "vm", change);
}

fn deleted(bench: &mut Bench) {
    let change = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    bench.edit(VMS, "vm", change);
}

/// A machine that runs, as an earlier version left it.
async fn of_an_earlier_version() -> Bench {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    for key in RECORDS {
        annotate(&mut bench, key, Value::Null);
    }
    bench.writes();
    bench
}

#[tokio::test]
async fn u5b_a_machine_of_an_earlier_version_is_upgraded_in_two_quiet_passes() {
    let mut bench = of_an_earlier_version().await;
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(annotation(&bench, names::UPGRADED_TO_SCHEMA), "v1alpha1");
    assert_eq!(annotation(&bench, names::UPGRADED_TO_FEATURE), Value::Null);
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(annotation(&bench, names::UPGRADED_TO_FEATURE), "1");
    let record = annotation(&bench, names::DISK_RECORD);
    let record = DiskRecord::from_json(record.as_str().unwrap()).unwrap();
    let vm = bench.vm();
    assert_eq!(Some(record.disk), vm.metadata.uid);
    assert_eq!(
        (record.node.as_str(), Some(record.bios_uuid)),
        ("n1", vm.status.unwrap().bios_uuid)
    );
    // When it was made is not known.
    assert_eq!(annotation(&bench, names::CREATED_AT_BUILD), Value::Null);
    assert_eq!(bench.writes().len(), 2);
    bench.settle().await.ok();
    assert!(bench.writes().is_empty());
}

#[tokio::test]
async fn a_new_machine_is_never_upgraded() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let build = env!("CARGO_PKG_VERSION");
    for key in [names::CREATED_AT_BUILD, names::UPGRADED_TO_BUILD] {
        assert_eq!(annotation(&bench, key), build, "{key}");
    }
    for key in RECORDS {
        assert_ne!(annotation(&bench, key), Value::Null, "{key}");
    }
    bench.passes().await;
    assert!(bench.writes().is_empty());
}

#[tokio::test]
async fn records_of_a_later_version_stay_and_deleted_ones_are_made_again() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    annotate(&mut bench, names::UPGRADED_TO_FEATURE, json!("7"));
    annotate(&mut bench, names::UPGRADED_TO_BUILD, json!("99.0.0"));
    bench.writes();
    bench.settle().await.ok();
    let build = env!("CARGO_PKG_VERSION");
    assert_eq!(annotation(&bench, names::UPGRADED_TO_BUILD), build);
    assert_eq!(annotation(&bench, names::UPGRADED_TO_FEATURE), "7");
    assert_eq!(bench.writes().len(), 1);
    for odd in [Value::Null, json!("no number"), json!("2")] {
        annotate(&mut bench, names::UPGRADED_TO_FEATURE, odd.clone());
        bench.settle().await.ok();
        let expected = if odd == "2" { "3" } else { "1" };
        assert_eq!(
            annotation(&bench, names::UPGRADED_TO_FEATURE),
            expected,
            "{odd}"
        );
    }
    annotate(&mut bench, names::DISK_RECORD, Value::Null);
    bench.settle().await.ok();
    assert_ne!(annotation(&bench, names::DISK_RECORD), Value::Null);
}

#[tokio::test]
async fn a_power_off_does_not_wait_for_an_upgrade() {
    let mut bench = of_an_earlier_version().await;
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.passes().await;
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(annotation(&bench, names::UPGRADED_TO_SCHEMA), "v1alpha1");
}

/// The agent of the node reports these failures; it keeps manifests.
fn reports(bench: &Bench, second: u32, failures: Option<Value>) {
    let facts = json!({ "daemon": { "reachable": true }, "features": [names::MACHINE_BACKUP] });
    let mut annotations = json!({ names::NODE_FACTS: facts.to_string() });
    if let Some(failures) = failures {
        annotations[names::BACKUP_FAILURES] = json!(failures.to_string());
    }
    let lease = json!({
        "metadata": { "name": "vmlet-node-n1", "annotations": annotations },
        "spec": { "renewTime": format!("2027-01-01T00:00:{second:02}.000000Z") },
    });
    let lease = serde_json::from_value(lease).unwrap();
    bench.ctx.stores.agents.apply(&Event::Apply(lease));
}

#[tokio::test]
async fn u5c_a_manifest_that_is_written_is_no_end_of_a_pass_and_one_that_is_not_shows() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    let uid = bench.running(json!({})).await;
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), "-");
    reports(&bench, 1, None);
    bench.passes().await;
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), "True/BackedUp");
    assert_eq!(bench.writes().len(), 1);
    reports(&bench, 2, Some(json!({ "another": "no space" })));
    bench.passes().await;
    assert!(bench.writes().is_empty());
    reports(&bench, 3, Some(json!({ uid: "no space" })));
    bench.passes().await;
    let failed = "False/VirtualMachineBackupFailed";
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), failed);
    let message = bench.condition(BACKUP_UP_TO_DATE).unwrap().message;
    assert_eq!(message, "no space");
    bench.writes();
    bench.passes().await;
    assert!(bench.writes().is_empty(), "the node tries again, not we");
    reports(&bench, 4, Some(json!({ "*": "all of them" })));
    bench.passes().await;
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), failed);
    reports(&bench, 5, Some(json!("no map")));
    bench.passes().await;
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), "True/BackedUp");
}

fn record(node: &str, disk: &str) -> Value {
    let record = DiskRecord {
        node: node.to_owned(),
        disk: disk.to_owned(),
        bios_uuid: BIOS.to_owned(),
        instance_uuid: BIOS.to_owned(),
        image: Some("registry.example/old:1".to_owned()),
        machine_type: Some("pc-q35-7.2".to_owned()),
        ..DiskRecord::default()
    };
    json!(record.to_json())
}

/// A machine that is to take over this disk, on a node that can hand it over.
async fn adopting(record: Value) -> Bench {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    reports(&bench, 1, None);
    let annotations = json!({ names::ADOPT_DISK: "", names::DISK_RECORD: record });
    bench.machine(json!({ "metadata": { "annotations": annotations } }));
    bench.settle().await.ok();
    bench
}

fn is_without_disk(bench: &Bench) -> bool {
    bench.status().disk_uid.is_none() && bench.status().node_name.is_none()
}

#[tokio::test]
async fn a_machine_takes_over_the_disk_that_its_node_confirms() {
    let mut bench = adopting(record("n1", OLD)).await;
    let task = bench.task("Adopt");
    assert_eq!(
        (&task["spec"]["vmUID"], &task["spec"]["nodeName"]),
        (&json!(OLD), &json!("n1"))
    );
    assert_eq!(task["spec"]["vmName"], "vm");
    assert!(is_without_disk(&bench));
    let paused = "False/VirtualMachineBackupPaused";
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), paused);
    bench.task_ends("Adopt", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CREATED), "True/Provisioned");
    let status = bench.status();
    assert_eq!(status.disk_uid.as_deref(), Some(OLD));
    assert_eq!(status.node_name.as_deref(), Some("n1"));
    // The guest knows itself by these.
    assert_eq!(status.bios_uuid.as_deref(), Some(BIOS));
    assert_eq!(status.instance_uuid.as_deref(), Some(BIOS));
    assert_eq!(status.image.as_deref(), Some("registry.example/old:1"));
    assert_eq!(annotation(&bench, names::ADOPT_DISK), Value::Null);
    assert!(bench.tasks("Provision").is_empty());
    assert!(bench.has_pod(), "{:#?}", bench.status());
    let pod = &bench.pod()["metadata"]["annotations"];
    assert_eq!(pod[names::VM_DISK], OLD);
    assert_eq!(bench.condition_text(BACKUP_UP_TO_DATE), "True/BackedUp");
    // Its own disk is the one that goes with it.
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    assert!(!bench.has_pod(), "no node had it");
    deleted(&mut bench);
    bench.settle().await.ok();
    assert_eq!(bench.task("DeleteDisk")["spec"]["vmUID"], OLD);
}

#[tokio::test]
async fn a_disk_that_the_node_does_not_give_is_neither_made_nor_deleted() {
    let mut bench = adopting(record("n1", OLD)).await;
    let name = bench.task("Adopt")["metadata"]["name"].clone();
    let status = json!({ "status": {
        "state": "Error", "message": "disk is that of other/vm", "completionTime": bench.time(),
    } });
    bench.edit(TASKS, name.as_str().unwrap(), status);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text(CREATED), "False/Error");
    let message = bench.condition(CREATED).unwrap().message;
    assert!(message.contains("that of other/vm"), "{message}");
    assert!(is_without_disk(&bench) && bench.tasks("Provision").is_empty());
    deleted(&mut bench);
    bench.settle().await.ok();
    assert!(bench.tasks("DeleteDisk").is_empty());
    assert!(
        bench.try_get(VMS, "vm").is_none(),
        "it goes without the disk"
    );
}

#[tokio::test]
async fn a_record_that_is_none_or_of_another_machine_or_node_is_refused_in_words() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    reports(&bench, 1, None);
    let other = bench.machine_named("other", json!({}));
    for (record, words) in [
        (Value::Null, "names no disk without"),
        (json!("no json"), "not the JSON"),
        (record("../n1", OLD), "field node"),
        (record("n2", OLD), "node n2"),
        (record("n1", &other), "that of machine ns/other"),
    ] {
        let annotations = json!({ names::ADOPT_DISK: "", names::DISK_RECORD: record });
        bench.machine(json!({ "metadata": { "annotations": annotations } }));
        bench.settle().await.ok();
        let message = bench.condition(CREATED).unwrap().message;
        assert!(message.contains(words), "{words}: {message}");
        assert!(bench.tasks("Adopt").is_empty() && is_without_disk(&bench));
        bench.remove(VMS, "vm");
    }
}

#[tokio::test]
async fn a_node_of_an_earlier_version_gets_no_task_that_it_does_not_know() {
    let mut bench = Bench::new();
    bench.agents(&["n1"]);
    let annotations = json!({ names::ADOPT_DISK: "", names::DISK_RECORD: record("n1", OLD) });
    bench.machine(json!({ "metadata": { "annotations": annotations } }));
    bench.settle().await.ok();
    let message = bench.condition(CREATED).unwrap().message;
    assert!(message.contains("upgrade them"), "{message}");
    assert!(bench.tasks("Adopt").is_empty());
    reports(&bench, 1, None);
    bench.settle().await.ok();
    bench.task("Adopt");
}

#[tokio::test]
async fn a_copied_record_alone_gives_a_machine_a_disk_of_its_own() {
    let mut bench = Bench::new();
    let annotations = json!({ names::DISK_RECORD: record("n1", OLD) });
    let changes = json!({ "metadata": { "annotations": annotations } });
    let uid = bench.running(changes).await;
    assert!(bench.tasks("Adopt").is_empty());
    let status = bench.status();
    assert_ne!(status.bios_uuid.as_deref(), Some(BIOS));
    let record = annotation(&bench, names::DISK_RECORD);
    let record = DiskRecord::from_json(record.as_str().unwrap()).unwrap();
    assert_eq!(record.disk, uid);
}

#[tokio::test]
async fn a_request_of_a_machine_that_has_another_disk_is_dropped_in_words() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.events();
    annotate(&mut bench, names::DISK_RECORD, record("n1", OLD));
    annotate(&mut bench, names::ADOPT_DISK, json!(""));
    bench.settle().await.ok();
    assert_eq!(annotation(&bench, names::ADOPT_DISK), Value::Null);
    let events = bench.events();
    assert!(events.contains(&"DiskNotAdopted".to_owned()), "{events:?}");
    annotate(&mut bench, names::ADOPT_DISK, json!(""));
    bench.settle().await.ok();
    assert_eq!(bench.events(), Vec::<String>::new(), "the disk is its own");
}

/// A task that is restored would be run again.
#[tokio::test]
async fn backup_tools_leave_tasks_out() {
    let mut bench = Bench::new();
    let uid = bench.provisioning(json!({})).await;
    let labels = &bench.task("Provision")["metadata"]["labels"];
    assert_eq!(labels[names::EXCLUDE_FROM_BACKUP], "true");
    assert_eq!(labels[names::VM_UID_LABEL], uid);
}
