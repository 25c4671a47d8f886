//! What a machine's author may have cloned and taken over by the controller's rights.
//!
//! Invariant: an annotation in the protected domain is the record of the admission policy.
//! Failure: none of its own.

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::error::is_unwatched;

const CLONE_FROM: &str = crds::names::CLONE_FROM_NAMESPACES;
const ADOPT: &str = crds::names::ADOPT_DATA_VOLUMES;

fn filled_from(spec: &Value, annotations: &Value) -> Value {
    json!({
        "metadata": { "annotations": annotations },
        "spec": {
            "dataVolumeTemplates": [{ "name": "dv", "spec": spec }],
            "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "dv" } }],
        },
    })
}

async fn made_from(bench: &mut Bench, spec: Value, annotations: Value) {
    bench.claim("dv", "Bound");
    bench.created(filled_from(&spec, &annotations)).await;
    bench.settle().await.ok();
}

fn data_source(bench: &mut Bench, namespace: &str, source: Value) {
    let collection = format!("apis/cdi.kubevirt.io/v1beta1/namespaces/{namespace}/datasources");
    bench.put(
        &collection,
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
            "metadata": { "name": "ds", "namespace": namespace },
            "spec": { "source": source },
        }),
    );
}

#[rstest]
#[case::claim(json!({ "source": { "pvc": { "namespace": "golden", "name": "a" } } }))]
#[case::snapshot(json!({ "source": { "snapshot": { "namespace": "golden", "name": "a" } } }))]
#[case::reference(json!({ "sourceRef": { "kind": "DataSource", "namespace": "golden", "name": "ds" } }))]
#[case::of_the_claim(json!({ "pvc": { "dataSourceRef": { "namespace": "golden", "name": "a" } } }))]
#[case::of_the_storage(json!({ "storage": { "dataSourceRef": { "namespace": "golden" } } }))]
#[case::other_letters(json!({ "source": { "pvc": { "Namespace": "golden", "name": "a" } } }))]
#[tokio::test]
async fn a_source_in_another_namespace_needs_a_record(#[case] spec: Value) {
    for (annotations, is_made) in [
        (json!({}), false),
        (json!({ CLONE_FROM: "gold,goldens" }), false),
        (json!({ CLONE_FROM: "other,golden" }), true),
    ] {
        let mut bench = Bench::new();
        let source = json!({ "pvc": { "namespace": "golden", "name": "b" } });
        data_source(&mut bench, "golden", source);
        made_from(&mut bench, spec.clone(), annotations).await;
        assert_eq!(bench.try_get(DATA_VOLUMES, "dv").is_some(), is_made);
        let reason = if is_made { "NotReady" } else { "Forbidden" };
        let condition = bench.condition_text("DataVolumesReady");
        assert_eq!(condition, format!("False/{reason}"));
        assert!(!bench.has_pod());
    }
}

#[rstest]
#[case::no_namespace(json!({ "source": { "pvc": { "name": "a" } } }))]
#[case::its_own(json!({ "source": { "pvc": { "namespace": "ns", "name": "a" } } }))]
#[tokio::test]
async fn a_source_in_the_machines_namespace_needs_none(#[case] spec: Value) {
    let mut bench = Bench::new();
    made_from(&mut bench, spec.clone(), json!({})).await;
    assert_eq!(bench.get(DATA_VOLUMES, "dv")["spec"], spec);
}

#[rstest]
#[case::of_the_same("ns", json!({ "pvc": { "namespace": "ns", "name": "a" } }), Some("ns"))]
#[case::without_namespace("golden", json!({ "pvc": { "name": "a" } }), Some("golden"))]
#[case::of_its_own("golden", json!({ "snapshot": { "namespace": "golden", "name": "a" } }), Some("golden"))]
#[case::that_reaches_further("golden", json!({ "pvc": { "namespace": "secret", "name": "a" } }), None)]
#[case::that_a_tenant_wrote("ns", json!({ "pvc": { "namespace": "golden", "name": "a" } }), None)]
#[case::of_another("ns", json!({ "dataSource": { "namespace": "golden", "name": "a" } }), None)]
#[tokio::test]
async fn a_data_source_is_resolved_once(
    #[case] within: &str,
    #[case] source: Value,
    #[case] expected: Option<&str>,
) {
    let mut bench = Bench::new();
    data_source(&mut bench, within, source);
    let spec = json!({
        "sourceRef": { "kind": "DataSource", "namespace": within, "name": "ds" },
        "storage": { "resources": {} },
    });
    made_from(&mut bench, spec, json!({ CLONE_FROM: "golden" })).await;
    let made = bench.try_get(DATA_VOLUMES, "dv");
    let Some(expected) = expected else {
        assert_eq!(made, None);
        assert!(!bench.has_pod());
        return;
    };
    let spec = &made.unwrap()["spec"];
    let kinds = spec["source"].as_object().unwrap();
    let target = kinds.values().next().unwrap();
    assert_eq!(*target, json!({ "namespace": expected, "name": "a" }));
    assert_eq!(spec.get("sourceRef"), None);
    assert_eq!(spec["storage"], json!({ "resources": {} }));
}

#[tokio::test]
async fn a_template_that_is_too_large_is_refused_in_words() {
    let mut bench = Bench::new();
    let spec = json!({ "source": { "http": { "url": "a".repeat(20_000) } } });
    made_from(&mut bench, spec, json!({})).await;
    assert_eq!(bench.condition_text("DataVolumesReady"), "False/Invalid");
    let condition = bench.condition("DataVolumesReady").unwrap();
    assert!(condition.message.contains("16 KiB"), "{condition:?}");
    assert_eq!(bench.try_get(DATA_VOLUMES, "dv"), None);
}

#[tokio::test]
async fn a_data_source_that_does_not_exist_shows() {
    let mut bench = Bench::new();
    let spec = json!({ "sourceRef": { "kind": "DataSource", "name": "ds" } });
    made_from(&mut bench, spec, json!({})).await;
    assert_eq!(bench.condition_text("DataVolumesReady"), "False/NotFound");
}

/// Nothing watches DataSources.
#[tokio::test]
async fn a_machine_with_a_disk_looks_for_its_data_source_again_by_time() {
    let mut bench = Bench::new();
    let spec = json!({ "sourceRef": { "kind": "DataSource", "name": "ds" } });
    made_from(&mut bench, spec, json!({})).await;
    assert!(
        bench
            .status()
            .conditions
            .iter()
            .all(|c| c.type_ != "Failure")
    );
    assert_eq!(seconds(&bench.settle().await), Some(90));
    data_source(&mut bench, "ns", json!({ "pvc": {} }));
    assert_eq!(seconds(&bench.settle().await), Some(90));
    assert_eq!(bench.condition_text("DataVolumesReady"), "False/Invalid");
    let source = json!({ "pvc": { "name": "a" } });
    let collection = "apis/cdi.kubevirt.io/v1beta1/namespaces/ns/datasources";
    bench.edit(collection, "ds", json!({ "spec": { "source": source } }));
    bench.settle().await.ok();
    assert!(bench.try_get(DATA_VOLUMES, "dv").is_some());
}

#[tokio::test]
async fn s56_an_unowned_data_volume_is_adopted_where_its_author_may_delete_it() {
    for (annotations, is_adopted) in [
        (json!({}), false),
        (json!({ ADOPT: "other" }), false),
        (json!({ ADOPT: "other,dv" }), true),
    ] {
        let mut bench = Bench::new();
        bench.put(
            DATA_VOLUMES,
            json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "metadata": { "name": "dv", "namespace": "ns" }, "spec": {},
                "status": { "phase": "Succeeded" },
            }),
        );
        made_from(&mut bench, json!({}), annotations).await;
        let owners = bench.get(DATA_VOLUMES, "dv")["metadata"]["ownerReferences"].clone();
        assert_eq!(owners[0]["name"] == "vm", is_adopted, "{owners}");
        assert_eq!(bench.has_pod(), is_adopted);
        if !is_adopted {
            assert_eq!(bench.condition_text("DataVolumesReady"), "False/NotOwned");
        }
    }
}

fn without_cdi(bench: &Bench) {
    let mut server = bench.server.lock().unwrap();
    server.unknown.push("cdi.kubevirt.io".to_owned());
}

#[rstest]
#[case::on_a_node(None)]
#[case::in_a_claim(Some("sc"))]
#[tokio::test]
async fn a_machine_says_that_its_cluster_has_no_cdi(#[case] class: Option<&str>) {
    let mut bench = Bench::new();
    bench.put(
        STORAGE_CLASSES,
        json!({ "metadata": { "name": "sc" }, "provisioner": "p" }),
    );
    without_cdi(&bench);
    let mut machine = filled_from(&json!({}), &json!({}));
    machine["spec"]["storageClass"] = json!(class);
    machine["spec"]["bootDiskCapacity"] = json!("1Gi");
    bench.machine(machine);
    bench.settle().await.ok();
    if class.is_some() {
        bench.edit(CLAIMS, "vm-root", json!({ "status": { "phase": "Bound" } }));
        bench.settle().await.ok();
    }
    let words = "the cluster does not serve cdi.kubevirt.io/v1beta1: install CDI";
    assert_eq!(bench.status().message.as_deref(), Some(words));
}

#[rstest]
#[case::of_a_new_machine_on_a_node(false, "claim dv does not exist")]
#[case::of_a_root_disk(true, "volumes are not attached: d (claim dv does not exist)")]
#[tokio::test]
async fn a_machine_names_a_claim_that_does_not_exist(#[case] is_root: bool, #[case] words: &str) {
    let mut bench = Bench::new();
    let claim = json!({ "claimName": "dv", "root": is_root });
    let volumes = json!([{ "name": "d", "persistentVolumeClaim": claim }]);
    bench.machine(json!({ "spec": { "volumes": volumes } }));
    bench.settle().await.ok();
    assert_eq!(bench.status().message.as_deref(), Some(words));
    bench.claim("dv", "Bound");
    bench.settle().await.ok();
    assert_ne!(bench.status().message.as_deref(), Some(words));
}

fn phase(bench: &mut Bench, phase: &str) {
    bench.edit(DATA_VOLUMES, "dv", json!({ "status": { "phase": phase } }));
}

/// Its own pod would be the first consumer, and CDI would fill the disk of a guest that runs.
#[tokio::test]
async fn a_machine_in_a_claim_gets_a_first_consumer_until_cdi_has_begun() {
    let mut bench = Bench::new();
    bench.put(
        STORAGE_CLASSES,
        json!({ "metadata": { "name": "sc" }, "provisioner": "p" }),
    );
    bench.claim("dv", "Bound");
    let mut machine = filled_from(&json!({}), &json!({}));
    machine["spec"]["storageClass"] = json!("sc");
    machine["spec"]["bootDiskCapacity"] = json!("1Gi");
    bench.machine(machine);
    bench.settle().await.ok();
    bench.edit(CLAIMS, "vm-root", json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_none() && !bench.has_pod());

    phase(&mut bench, "WaitForFirstConsumer");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let consumer = bench.placeholder("vm").unwrap();
    let volumes = consumer["spec"]["volumes"].to_string();
    assert!(volumes.contains("\"dv\""), "{volumes}");
    assert_eq!(bench.condition_text("DataVolumesReady"), "False/NotReady");
    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_some() && !bench.has_pod());

    phase(&mut bench, "ImportInProgress");
    bench.settle().await.ok();
    let consumer = bench.placeholder("vm").unwrap();
    assert!(!consumer["metadata"]["deletionTimestamp"].is_null());
    assert!(!bench.has_pod());
    bench.placeholder_is_gone("vm");
    phase(&mut bench, "Succeeded");
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_none() && bench.has_pod());
}

#[tokio::test]
async fn a_template_that_is_added_later_gets_a_first_consumer_on_the_node_of_the_disk() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.placeholder_is_gone("vm");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    bench.claim("dv", "Pending");
    bench.edit(VMS, "vm", filled_from(&json!({}), &json!({})));
    bench.settle().await.ok();
    phase(&mut bench, "WaitForFirstConsumer");
    bench.settle().await.ok();
    assert!(bench.placeholder("vm").is_none(), "it is to be off");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    let consumer = bench.placeholder("vm").unwrap();
    let affinity = consumer["spec"]["affinity"].to_string();
    assert!(affinity.contains("n1"), "{affinity}");

    bench.placeholder_is_bound("vm", "n1");
    bench.placeholder_runs("vm");
    phase(&mut bench, "Succeeded");
    bench.edit(CLAIMS, "dv", json!({ "status": { "phase": "Bound" } }));
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

/// CDI begins only when the machine is off: a restart that waited for it would wait without end.
#[tokio::test]
async fn a_restart_does_not_wait_for_a_data_volume_that_waits_for_its_first_consumer() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.claim("dv", "Pending");
    bench.edit(VMS, "vm", filled_from(&json!({}), &json!({})));
    bench.settle().await.ok();
    let uid = bench.pod()["metadata"]["uid"].clone();
    let stop = json!({ "stateChangeRequests": [{ "action": "Stop", "uid": uid }] });
    bench.edit(VMS, "vm", json!({ "status": stop }));
    phase(&mut bench, "ImportInProgress");
    bench.settle().await.ok();
    assert!(bench.pod()["metadata"]["deletionTimestamp"].is_null());
    phase(&mut bench, "WaitForFirstConsumer");
    let volumes = bench.get(VMS, "vm")["spec"]["volumes"].clone();
    let mut more = volumes.as_array().unwrap().clone();
    more.push(json!({ "name": "more", "persistentVolumeClaim": { "claimName": "missing" } }));
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": more } }));
    bench.settle().await.ok();
    assert!(
        bench.pod()["metadata"]["deletionTimestamp"].is_null(),
        "a claim is missing"
    );
    bench.edit(VMS, "vm", json!({ "spec": { "volumes": volumes } }));
    bench.settle().await.ok();
    assert!(!bench.pod()["metadata"]["deletionTimestamp"].is_null());
}

/// What CDI's populators do: the claim binds when it is filled, which the machine's pod waits for.
#[tokio::test]
async fn a_claim_that_is_filled_before_it_is_bound_needs_no_other_pod() {
    let mut bench = Bench::new();
    made_from(&mut bench, json!({}), json!({})).await;
    phase(&mut bench, "PendingPopulation");
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

#[tokio::test]
async fn a_data_volume_that_the_api_server_refuses_is_reported_in_its_words() {
    let mut bench = Bench::new();
    bench.refuse(Method::POST, "datavolumes", 403, usize::MAX);
    bench.claim("dv", "Bound");
    bench.machine(filled_from(&json!({}), &json!({})));
    let ended = bench.settle().await;
    assert!(is_unwatched(&ended.unwrap_err()));
    let words = "prepare data volume dv: refused by the test";
    assert_eq!(bench.condition("Failure").unwrap().message, words);
}
