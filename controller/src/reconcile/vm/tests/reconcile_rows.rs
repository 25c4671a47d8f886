//! Rows R: how a pass is read, ended and requeued.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use http::Method;
use serde_json::json;

use super::bench::*;
use crate::config::Config;
use crate::flow::Flow;
use crate::reconcile::vm::observe::mode;
use crate::reconcile::vm::observe::mode::Mode;
use crate::reconcile::vm::reconcile;

/// What the rows were written for: every delay is ten seconds, where ours is a minute.
fn quick() -> Config {
    let mut config = Config::default();
    config.machines.signals = false;
    config.runner.recheck = service::settings::Timespan::from_secs(10);
    config
}

#[tokio::test]
async fn r1a_a_machine_that_is_not_there_is_forgotten() {
    let mut bench = Bench::new();
    assert_eq!(bench.pass().await.unwrap(), Flow::Continue);
    assert_eq!(bench.writes(), Vec::<String>::new());
}

/// What a pass reads before its steps comes from watches: no such read can fail.
#[tokio::test]
async fn r1b_a_pass_reads_no_storage_class_and_no_data_volume_and_a_deletion_ends() {
    let mut bench = Bench::new();
    for kind in ["storageclasses", "datavolumes"] {
        bench.refuse(Method::GET, kind, 500, usize::MAX);
    }
    bench.machine(json!({ "spec": {
        "storageClass": "fast", "dataVolumeTemplates": [{ "name": "dv", "spec": {} }],
    }}));
    bench.settle().await.ok();
    assert_eq!(
        bench.condition_text("VirtualMachineStorageReady"),
        "False/NotFound"
    );
    let now = json!({ "metadata": { "deletionTimestamp": bench.time() } });
    bench.edit(VMS, "vm", now);
    bench.settle().await.ok();
    assert!(bench.try_get(VMS, "vm").is_none());
}

async fn mode_of(annotations: serde_json::Value, class: Option<serde_json::Value>) -> Mode {
    let mut bench = Bench::new();
    let mut changes = json!({ "metadata": { "annotations": annotations } });
    if let Some(parameters) = class {
        changes["spec"] = json!({ "storageClass": "sc" });
        bench.put(
            STORAGE_CLASSES,
            json!({
                "metadata": { "name": "sc" }, "provisioner": "p", "parameters": parameters,
            }),
        );
    }
    bench.machine(changes);
    let vm = bench.vm();
    mode::resolve(&bench.ctx, &vm)
}

#[tokio::test]
async fn r2a_the_mode_is_read_without_regard_to_case() {
    assert_eq!(
        mode_of(json!({ "vmlet.dev/fast-deploy": "LINKED" }), None).await,
        Mode::Linked
    );
    assert_eq!(
        mode_of(json!({ "vmlet.dev/fast-deploy": "Direct" }), None).await,
        Mode::Direct
    );
    assert_eq!(mode_of(json!({}), None).await, Mode::Linked);
}

#[tokio::test]
async fn r2b_an_unknown_mode_is_the_default() {
    assert_eq!(
        mode_of(json!({ "vmlet.dev/fast-deploy": "off" }), None).await,
        Mode::Plain
    );
}

#[tokio::test]
async fn r2c_instance_storage_and_encryption_are_the_plain_way() {
    let instance = json!({ "vmlet.dev/instance-storage": "true" });
    assert_eq!(mode_of(json!({}), Some(instance)).await, Mode::Plain);
    let encrypted = json!({ "vmlet.dev/encrypted": "true" });
    assert_eq!(mode_of(json!({}), Some(encrypted)).await, Mode::Plain);
    assert_eq!(mode_of(json!({}), Some(json!({}))).await, Mode::Linked);
}

#[tokio::test]
async fn r3a_a_write_that_fails_is_the_result_of_a_pass_that_went_well() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.refuse(Method::PATCH, "virtualmachines/vm", 500, 1);
    assert!(failure(&bench.pass().await).contains("write the machine's metadata"));
}

#[tokio::test]
async fn r3b_a_failed_pass_keeps_its_error_when_the_write_fails_too() {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": { "className": "none" } }));
    bench.pass().await.ok();
    let says = |bench: &Bench| {
        let conditions = bench.status().conditions;
        let ready = conditions
            .iter()
            .find(|c| c.type_ == "VirtualMachineClassReady");
        ready.map(|c| c.message.clone()).unwrap_or_default()
    };
    bench.edit(VMS, "vm", json!({ "spec": { "className": "other" } }));
    bench.refuse(Method::PATCH, "virtualmachines/vm/status", 500, 1);
    assert!(failure(&bench.pass().await).contains("VirtualMachineClass other"));
    assert!(!says(&bench).contains("other"), "the write was refused");
    assert!(failure(&bench.pass().await).contains("VirtualMachineClass other"));
    assert!(says(&bench).contains("other"));
}

#[tokio::test]
async fn a_write_that_fails_turns_a_quiet_end_into_a_retry() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    bench.refuse(Method::PATCH, "virtualmachines/vm/status", 500, 1);
    assert!(failure(&bench.pass().await).contains("write the machine's status"));
    bench.settle().await.ok();
    assert!(bench.has_pod());
    assert_eq!(
        bench.status().printable_status,
        Some(crds::vm::PrintableStatus::Starting)
    );
}

#[tokio::test]
async fn r4a_a_machine_that_waits_for_a_cache_is_woken_by_it() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    bench.settle().await.ok();
    bench.placeholder_is_bound("vm", "n1");
    assert_eq!(seconds(&bench.settle().await), None);
}

#[tokio::test]
async fn r4b_a_machine_beyond_the_create_slots_is_requeued_after_ten_seconds() {
    let mut config = quick();
    config.machines.creates = 1;
    let mut bench = Bench::with(config);
    bench.provisioning(json!({})).await;
    bench.machine_named("two", json!({}));
    bench.key.name = "two".to_owned();
    bench.pass().await.ok();
    for _ in 0..2 {
        assert_eq!(seconds(&bench.pass().await), Some(10));
        assert!(bench.placeholder("two").is_none());
    }
}

#[tokio::test]
async fn r4c_a_machine_that_is_not_created_is_requeued_after_ten_seconds() {
    let mut bench = Bench::with(quick());
    bench.machine(json!({}));
    assert_eq!(seconds(&bench.pass().await), Some(10));
    // The placeholder was made; a status that shows it waits a second for its node.
    assert_eq!(seconds(&bench.pass().await), Some(1));
    assert_eq!(seconds(&bench.pass().await), Some(10));
    assert_eq!(seconds(&bench.pass().await), Some(10));
}

#[tokio::test]
async fn a_machine_that_waits_for_an_event_is_requeued_after_a_minute() {
    let mut bench = Bench::new();
    bench.machine(json!({}));
    assert_eq!(seconds(&bench.pass().await), Some(60));
}

#[tokio::test]
async fn r4d_without_signals_a_machine_without_address_is_requeued() {
    let mut bench = Bench::with(quick());
    bench.running(json!({})).await;
    assert_eq!(seconds(&bench.pass().await), Some(10));
    bench.facts(json!({ "power": "On", "interfaces": [{ "addresses": ["10.1.0.7/24"] }] }));
    bench.settle().await.ok();
    assert_eq!(seconds(&bench.pass().await), None);
}

#[tokio::test]
async fn r4e_with_signals_it_is_woken_by_them() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    assert_eq!(seconds(&bench.pass().await), None);
}

#[tokio::test]
async fn r5a_a_pass_that_changed_something_ends_quietly() {
    let mut bench = Bench::new();
    bench.created(json!({})).await;
    let result = bench.pass().await;
    assert!(matches!(result, Ok(Flow::Done(_))), "{result:?}");
}

#[tokio::test]
async fn r5b_a_pass_that_can_do_nothing_waits_for_an_event() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.node("n1", false);
    assert!(is_wait(&bench.pass().await));
}

#[tokio::test]
async fn r5c_a_later_due_time_is_the_requeue_time() {
    let mut bench = Bench::new();
    let at = "2027-01-15T08:00:05Z";
    let key = "vmlet.dev.protected/apply-power-state-time";
    bench
        .created(json!({ "metadata": { "annotations": { key: at } } }))
        .await;
    assert_eq!(seconds(&bench.pass().await), Some(5));
}

#[tokio::test]
async fn r5d_a_delay_wins_over_an_earlier_failure_and_over_nothing_to_do() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let facts = json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "no json" } } });
    bench.edit(PODS, "vm", facts);
    assert!(failure(&bench.pass().await).contains("guest facts"));
    let key = "vmlet.dev.protected/apply-power-state-time";
    let later = json!({
        "metadata": { "annotations": { key: "2027-01-15T08:00:05Z" } },
        "spec": { "runStrategy": "Halted" },
    });
    bench.edit(VMS, "vm", later);
    assert_eq!(seconds(&bench.pass().await), Some(5));
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn r5e_an_ordinary_failure_is_returned_as_one() {
    let mut bench = Bench::new();
    bench.machine(json!({ "spec": { "imageName": "none" } }));
    bench.pass().await.ok();
    let result = reconcile(&bench.ctx, &bench.key).await;
    assert!(failure(&result).contains("image none does not exist: there is neither"));
}
