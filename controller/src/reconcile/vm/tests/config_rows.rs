//! Rows G: size and virtual hardware.
//!
//! Invariant: one test for each case, named by it.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;

mod class_edits;

const SYNCED: &str = "VirtualMachineClassConfigurationSynced";

async fn off(bench: &mut Bench) {
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
}

async fn on(bench: &mut Bench) {
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    bench.settle().await.ok();
}

fn cpus(bench: &Bench) -> Value {
    bench.pod()["metadata"]["annotations"]["vmlet.dev/vcpu-count"].clone()
}

#[tokio::test]
async fn g1a_a_lost_node_is_waited_for_and_nothing_is_created_again() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.remove(NODES, "n1");
    bench.remove(PODS, "vm");
    for _ in 0..3 {
        assert!(is_wait(&bench.pass().await));
    }
    assert_eq!(
        bench.condition_text("VirtualMachineLocationValid"),
        "False/NodeLost"
    );
    assert_eq!(
        bench.condition_text("VirtualMachineCreated"),
        "True/Provisioned"
    );
    assert!(!bench.has_pod() && bench.placeholder("vm").is_none());
    bench.node("n1", true);
    bench.settle().await.ok();
    assert!(bench.has_pod());
}

const NETWORKS: &str = "apis/k8s.cni.cncf.io/v1/namespaces/ns/network-attachment-definitions";

#[tokio::test]
async fn g1b_a_network_that_is_missing_is_waited_for() {
    let mut bench = Bench::new();
    bench.put(
        NETWORKS,
        json!({ "metadata": { "name": "blue", "namespace": "ns" } }),
    );
    let interfaces = json!([{ "name": "a" }, { "name": "b", "networkRef": "blue" }]);
    bench
        .created(json!({ "spec": { "network": { "interfaces": interfaces } } }))
        .await;
    bench.remove(NETWORKS, "blue");
    assert_eq!(seconds(&bench.pass().await), Some(60));
    assert_eq!(
        bench.condition_text("VirtualMachineNetworkReady"),
        "False/NotReady"
    );
    bench.put(
        NETWORKS,
        json!({ "metadata": { "name": "blue", "namespace": "ns" } }),
    );
    bench.settle().await.ok();
    let pod = bench.pod();
    let text = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
        .as_str()
        .unwrap();
    assert!(text.contains("blue"), "{text}");
}

#[tokio::test]
async fn a_cluster_without_multus_differs_from_one_without_the_network() {
    let mut bench = Bench::new();
    bench.server.lock().unwrap().unknown = vec!["k8s.cni".to_owned()];
    let interfaces = json!([{ "name": "a", "networkRef": "blue" }]);
    bench.machine(json!({ "spec": { "network": { "interfaces": interfaces } } }));
    bench.pass().await.ok();
    assert!(failure(&bench.pass().await).contains("install Multus"));
    bench.server.lock().unwrap().unknown.clear();
    assert!(failure(&bench.pass().await).contains("ns/blue does not exist"));
}

async fn resized_while(change: Value) -> Bench {
    let mut bench = Bench::new();
    bench.put(CLASSES, class("big", 4));
    bench.sync();
    bench.running(json!({})).await;
    let mut all = json!({ "spec": { "className": "big" } });
    json_patch::merge(&mut all, &change);
    bench.edit(VMS, "vm", all);
    bench.settle().await.ok();
    bench
}

#[tokio::test]
async fn g2a_a_suspended_machine_is_not_resized() {
    let mut bench = Bench::new();
    bench.put(CLASSES, class("big", 4));
    bench
        .running(json!({ "spec": { "runStrategy": null, "powerState": "PoweredOn" } }))
        .await;
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "Suspended" } }));
    bench.settle().await.ok();
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "className": "big" } }));
    bench.settle().await.ok();
    assert_eq!(bench.status().class.as_deref(), Some("small"));
    // Nor does it become larger when it is resumed.
    bench.edit(VMS, "vm", json!({ "spec": { "powerState": "PoweredOn" } }));
    bench.settle().await.ok();
    assert_eq!(cpus(&bench), "1");
    assert_eq!(bench.condition_text(SYNCED), "False/ClassNameChanged");
}

#[tokio::test]
async fn g2b_nor_one_in_the_hands_of_a_task() {
    let mut bench = Bench::new();
    bench.put(CLASSES, class("big", 4));
    let uid = bench.running(json!({})).await;
    off(&mut bench).await;
    bench.put(
        TASKS,
        json!({
            "metadata": { "name": "s", "namespace": "ns" },
            "spec": { "nodeName": "n1", "vmName": "vm", "vmUID": uid, "kind": "Snapshot" },
        }),
    );
    bench.edit(VMS, "vm", json!({ "spec": { "className": "big" } }));
    bench.settle().await.ok();
    assert_eq!(bench.status().class.as_deref(), Some("small"));
    bench.task_ends("Snapshot", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.status().class.as_deref(), Some("big"));
}

#[tokio::test]
async fn g2c_nor_a_paused_one_which_is_labelled() {
    let paused =
        json!({ "metadata": { "annotations": { "vmlet.dev.protected/admin-paused": "" } } });
    let bench = resized_while(paused).await;
    assert_eq!(
        bench.get(VMS, "vm")["metadata"]["labels"]["vmlet.dev/paused"],
        "admin"
    );
    assert_eq!(bench.condition_text(SYNCED), "True/Synced");
}

#[tokio::test]
async fn g3a_another_class_waits_while_the_machine_is_on() {
    let bench = resized_while(json!({})).await;
    assert_eq!(bench.condition_text(SYNCED), "False/ClassNameChanged");
    assert_eq!(bench.status().class.as_deref(), Some("small"));
    assert_eq!(
        bench.condition_text("RestartRequired"),
        "True/SpecificationChanged"
    );
}

#[tokio::test]
async fn g3b_a_machine_that_is_off_takes_it_over() {
    let mut bench = Bench::new();
    bench.put(CLASSES, class("big", 4));
    bench.running(json!({})).await;
    off(&mut bench).await;
    bench.events();
    bench.edit(VMS, "vm", json!({ "spec": { "className": "big" } }));
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(bench.status().class.as_deref(), Some("big"));
    assert_eq!(bench.status().hardware.unwrap().cpus, 4);
    assert_eq!(bench.events(), ["UpdateSuccess"]);
}

#[tokio::test]
async fn g3c_a_machine_that_starts_takes_it_over_before() {
    let mut bench = Bench::new();
    bench.put(CLASSES, class("big", 4));
    bench.running(json!({})).await;
    off(&mut bench).await;
    let both = json!({ "className": "big", "runStrategy": "Always" });
    bench.edit(VMS, "vm", json!({ "spec": both }));
    bench.settle().await.ok();
    assert_eq!(cpus(&bench), "4");
    assert_eq!(bench.status().class.as_deref(), Some("big"));
}

#[tokio::test]
async fn g4a_a_machine_type_is_not_raised_while_the_machine_is_on() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.facts(json!({ "power": "On", "machineType": "pc-q35-7.2" }));
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "minMachineType": "pc-q35-9.0" } }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.status().machine_type.as_deref(), Some("pc-q35-7.2"));
}

#[tokio::test]
async fn g4b_it_is_while_the_machine_is_off_and_never_lowered() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.facts(json!({ "power": "On", "machineType": "pc-q35-7.2" }));
    bench.settle().await.ok();
    off(&mut bench).await;
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "minMachineType": "pc-q35-9.0" } }),
    );
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(bench.status().machine_type.as_deref(), Some("pc-q35-9.0"));
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "minMachineType": "pc-q35-8.0" } }),
    );
    bench.settle().await.ok();
    assert_eq!(bench.status().machine_type.as_deref(), Some("pc-q35-9.0"));
    on(&mut bench).await;
    let pod = bench.pod();
    assert_eq!(
        pod["metadata"]["annotations"]["vmlet.dev/machine-type"],
        "pc-q35-9.0"
    );
}

#[tokio::test]
async fn a_machine_type_that_its_node_does_not_have_is_refused_and_can_be_corrected() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    bench.facts(json!({ "power": "On", "machineType": "pc-q35-7.2" }));
    bench.settle().await.ok();
    off(&mut bench).await;
    bench.agent(
        "n1",
        &json!({ "machineTypes": ["pc-q35-7.2", "pc-q35-8.0"] }),
    );
    let least = |version: &str| json!({ "spec": { "minMachineType": version } });
    bench.edit(VMS, "vm", least("pc-q35-99.0"));
    let words = "node n1 does not have pc-q35-99.0; its newest is pc-q35-8.0";
    assert!(failure(&bench.pass().await).contains(words));
    assert_eq!(bench.status().machine_type.as_deref(), Some("pc-q35-7.2"));
    bench.edit(VMS, "vm", least("pc-q35-8.0"));
    bench.settle().await.ok();
    assert_eq!(bench.status().machine_type.as_deref(), Some("pc-q35-8.0"));
}

#[tokio::test]
async fn g5a_without_a_difference_the_next_step_runs() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    off(&mut bench).await;
    on(&mut bench).await;
    assert!(bench.has_pod());
}

#[tokio::test]
async fn g5b_a_difference_is_applied_and_ends_the_pass_quietly() {
    let mut bench = Bench::new();
    let own = json!({ "className": null, "hardware": { "cpus": 1, "memory": "512Mi" } });
    bench.running(json!({ "spec": own })).await;
    off(&mut bench).await;
    bench.edit(VMS, "vm", json!({ "spec": { "hardware": { "cpus": 2 } } }));
    assert!(is_quiet(&bench.pass().await));
    assert_eq!(bench.status().hardware.unwrap().cpus, 2);
}

#[tokio::test]
async fn g5c_a_configuration_that_fails_is_tried_again() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    off(&mut bench).await;
    bench.edit(VMS, "vm", json!({ "spec": { "minMachineType": "q35" } }));
    assert!(failure(&bench.pass().await).contains("no versioned machine type"));
}

#[tokio::test]
async fn g5d_a_volume_that_is_missing_is_named_and_nothing_starts() {
    let mut bench = Bench::new();
    bench.claim("data", "Bound");
    let volumes = json!([{ "name": "d", "persistentVolumeClaim": { "claimName": "data" } }]);
    bench
        .running(json!({ "spec": { "volumes": volumes } }))
        .await;
    off(&mut bench).await;
    bench.remove(CLAIMS, "data");
    bench.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Always" } }));
    assert!(failure(&bench.pass().await).contains("volumes are not attached: d (claim "));
    assert!(!bench.has_pod());
    let shown = bench.status().printable_status;
    assert_eq!(shown, Some(crds::vm::PrintableStatus::ErrorPvcNotFound));
    bench.claim("data", "Bound");
    bench.settle().await.ok();
    assert!(bench.has_pod());
}
