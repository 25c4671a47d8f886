//! Machines that are edited while their memory is saved.
//!
//! Invariant: QEMU takes memory back only with the devices that it was saved with.
//! Failure: none of its own.

use serde_json::{Value, json};

use super::bench::*;
use crate::reconcile::vm::act::pod::NETWORKS;

fn volumes(names: &[&str]) -> Value {
    let volume =
        |name: &&str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
    names.iter().map(volume).collect()
}

fn claims(bench: &Bench) -> Vec<Value> {
    let volumes = bench.pod()["spec"]["volumes"].clone();
    let all = volumes.as_array().cloned().unwrap_or_default();
    let name = |volume: &Value| volume["persistentVolumeClaim"]["claimName"].clone();
    all.iter()
        .map(name)
        .filter(|name| !name.is_null())
        .collect()
}

fn power(state: &str) -> Value {
    json!({ "spec": { "powerState": state } })
}

/// A machine with one volume whose memory is saved.
async fn suspended() -> Bench {
    let mut bench = Bench::new();
    bench.claim("data", "Bound");
    bench
        .running(json!({ "spec": {
            "runStrategy": null, "powerState": "PoweredOn", "volumes": volumes(&["data"]),
        }}))
        .await;
    bench.edit(VMS, "vm", power("Suspended"));
    bench.settle().await.ok();
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
    bench
}

#[tokio::test]
async fn edits_take_effect_at_the_next_boot_and_not_when_the_machine_resumes() {
    let mut bench = suspended().await;
    let saved = bench.status().saved_devices.unwrap().fields().unwrap();
    assert_eq!(
        saved["volumes"],
        json!([
            { "name": "data", "persistentVolumeClaim": { "claimName": "data", "readOnly": false, "root": false } },
        ])
    );
    // A volume whose claim does not exist, a network that does not exist, another one gone.
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": {
            "volumes": volumes(&["more"]),
            "network": { "interfaces": [{ "name": "blue", "networkRef": "blue" }] },
        }}),
    );
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    let annotations = bench.pod()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmlet.dev/restore"], "true");
    assert!(annotations["k8s.v1.cni.cncf.io/networks"].is_null());
    assert_eq!(claims(&bench), ["data"]);
    bench.run("n1");
    bench.facts(alive());
    bench.settle().await.ok();
    assert_eq!(bench.status().saved_devices, None);
    assert_eq!(
        bench.condition_text("RestartRequired").split('/').next(),
        Some("True")
    );
    let spec = bench.get(VMS, "vm")["spec"]["volumes"].clone();
    assert_eq!(spec, volumes(&["more"]), "the specification is its owner's");

    // A second suspension has the devices of this pod, too.
    bench.edit(VMS, "vm", power("Suspended"));
    bench.settle().await.ok();
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    let again = bench.status().saved_devices.unwrap().fields().unwrap();
    assert_eq!(again, saved);
}

fn template(annotations: &Value) -> Value {
    json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })
}

/// `vmlet-guest` has a port, a NIC may come from Multus: devices that the template decides.
#[tokio::test]
async fn the_template_of_a_suspended_machine_changes_no_device_of_its_memory() {
    let mut bench = suspended().await;
    let off = json!({
        "vmlet.dev/guest-agent": "off", "vmlet.dev/cloud-init": "off",
        "k8s.v1.cni.cncf.io/networks": "blue", "team": "b",
    });
    bench.edit(VMS, "vm", template(&off));
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    let annotations = bench.pod()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmlet.dev/restore"], "true");
    for key in ["vmlet.dev/guest-agent", "vmlet.dev/cloud-init", NETWORKS] {
        assert!(annotations[key].is_null(), "{annotations}");
    }
    assert_eq!(annotations["team"], "b", "it makes no device");
    bench.run("n1");
    bench.facts(alive());
    bench.settle().await.ok();
    let required = bench.condition_text("RestartRequired");
    assert!(required.starts_with("True/"), "{required}");

    // The next boot has them; what is taken out of the template while that memory is saved stays.
    bench.edit(VMS, "vm", power("PoweredOff"));
    bench.settle().await.ok();
    bench.end("vm", 0, "Stopped");
    bench.settle().await.ok();
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    let annotations = bench.pod()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmlet.dev/guest-agent"], "off");
    bench.run("n1");
    bench.facts(alive());
    bench.settle().await.ok();
    bench.edit(VMS, "vm", power("Suspended"));
    bench.settle().await.ok();
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    bench.edit(VMS, "vm", json!({ "spec": { "template": null } }));
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    let annotations = bench.pod()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmlet.dev/guest-agent"], "off");
    assert_eq!(annotations[NETWORKS], "blue");
    assert!(annotations["team"].is_null(), "{annotations}");
}

/// A record of an earlier version has no annotations.
#[tokio::test]
async fn without_a_record_of_it_the_template_is_that_of_the_specification() {
    let mut bench = suspended().await;
    let mut saved = bench.status().saved_devices.unwrap().fields().unwrap();
    saved.remove("annotations");
    bench.edit(VMS, "vm", json!({ "status": { "savedDevices": null } }));
    bench.edit(VMS, "vm", json!({ "status": { "savedDevices": saved } }));
    bench.edit(
        VMS,
        "vm",
        template(&json!({ "vmlet.dev/guest-agent": "off" })),
    );
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    let annotations = bench.pod()["metadata"]["annotations"].clone();
    assert_eq!(annotations["vmlet.dev/guest-agent"], "off");
}

#[tokio::test]
async fn a_machine_without_its_saved_memory_boots_with_what_it_specifies() {
    let mut bench = suspended().await;
    bench.claim("more", "Bound");
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "volumes": volumes(&["data", "more"]) } }),
    );
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "powerState": "PoweredOff", "powerOffMode": "Hard" } }),
    );
    bench.settle().await.ok();
    bench.task_ends("Restore", "Success");
    bench.settle().await.ok();
    assert_eq!(bench.status().saved_devices, None);
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    assert_eq!(claims(&bench), ["data", "more"]);
}

/// A suspended machine of an earlier version has no record.
#[tokio::test]
async fn without_a_record_a_machine_resumes_with_what_it_specifies() {
    let mut bench = suspended().await;
    bench.edit(VMS, "vm", json!({ "status": { "savedDevices": null } }));
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    assert_eq!(claims(&bench), ["data"]);
}

/// As long as the API server takes them.
fn long_texts(comment: &str) -> Value {
    json!({ "cloudInit": {
        "inlineUserData": format!("#cloud-config\n# {comment}{}\n", "x".repeat(16_000)),
        "inlineNetworkData": format!("version: 2\n# {}\n", "y".repeat(16_000)),
        "sshKeys": [format!("ssh-ed25519 {}", "A".repeat(8_000))],
    }})
}

/// A machine with one volume and such texts whose memory is saved.
async fn suspended_with_long_texts() -> Bench {
    let mut bench = Bench::new();
    bench.claim("data", "Bound");
    bench
        .running(json!({ "spec": {
            "runStrategy": null, "powerState": "PoweredOn", "volumes": volumes(&["data"]),
            "bootstrap": long_texts("old"),
        }}))
        .await;
    suspend(&mut bench).await;
    bench
}

async fn suspend(bench: &mut Bench) {
    bench.edit(VMS, "vm", power("Suspended"));
    bench.settle().await.ok();
    bench.task_ends("Save", "Success");
    bench.end("vm", 0, "Saved");
    bench.settle().await.ok();
    assert!(!bench.has_pod());
}

const USER_DATA: &str = "vmlet.dev/cloud-init-user-data-script";

#[tokio::test]
async fn a_machine_with_long_texts_for_its_first_boot_resumes_with_its_devices() {
    let mut bench = suspended_with_long_texts().await;
    let saved = bench.status().saved_devices.unwrap().fields().unwrap();
    assert_eq!(saved["volumes"][0]["name"], "data");
    assert_eq!(saved["bootstrap"], json!({ "cloudInit": {} }));
    bench.edit(
        VMS,
        "vm",
        json!({ "spec": { "volumes": volumes(&["more"]) } }),
    );
    bench.edit(VMS, "vm", power("PoweredOn"));
    bench.settle().await.ok();
    assert_eq!(claims(&bench), ["data"]);
    let texts = long_texts("old");
    let given = bench.pod()["metadata"]["annotations"][USER_DATA].clone();
    assert_eq!(given, texts["cloudInit"]["inlineUserData"]);
}

#[tokio::test]
async fn texts_that_were_edited_meanwhile_wait_for_the_next_boot() {
    for (bootstrap, required) in [(long_texts("old"), "-"), (long_texts("new"), "True")] {
        let mut bench = suspended_with_long_texts().await;
        bench.edit(VMS, "vm", json!({ "spec": { "bootstrap": bootstrap } }));
        bench.edit(VMS, "vm", power("PoweredOn"));
        bench.settle().await.ok();
        let given = bench.pod()["metadata"]["annotations"][USER_DATA].clone();
        assert_eq!(given.is_null(), required == "True");
        bench.run("n1");
        bench.facts(alive());
        bench.settle().await.ok();
        let shown = bench.condition_text("RestartRequired");
        assert_eq!(shown.split('/').next(), Some(required));
    }
}

/// The pod is of a version that had no record for it.
async fn without_copy(edit: Value) -> Bench {
    let mut bench = Bench::new();
    bench.claim("data", "Bound");
    bench
        .running(json!({ "spec": {
            "runStrategy": null, "powerState": "PoweredOn", "volumes": volumes(&["data"]),
        }}))
        .await;
    let none = json!({ "metadata": { "annotations": { "vmlet.dev/devices": null } } });
    bench.edit(PODS, "vm", none);
    bench.edit(VMS, "vm", json!({ "spec": edit }));
    suspend(&mut bench).await;
    bench
}

#[tokio::test]
async fn a_pod_without_a_copy_has_the_devices_of_a_specification_that_was_not_edited() {
    let mut bench = without_copy(json!({})).await;
    let saved = bench.status().saved_devices.unwrap().fields().unwrap();
    assert_eq!(saved["volumes"][0]["name"], "data");
    assert!(!bench.events().contains(&"DevicesNotRecorded".to_owned()));
}

#[tokio::test]
async fn devices_that_cannot_be_recorded_are_an_event_once() {
    let mut bench = without_copy(json!({ "volumes": [] })).await;
    assert_eq!(bench.status().saved_devices, None);
    let is_it = |reason: &String| reason == "DevicesNotRecorded";
    assert_eq!(bench.events().iter().filter(|r| is_it(r)).count(), 1);
    bench.settle().await.ok();
    assert!(!bench.events().iter().any(is_it));
}
