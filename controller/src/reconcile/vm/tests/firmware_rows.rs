//! Machines that boot by UEFI: which nodes they get, and what their pods request.
//!
//! Invariant: the image, the status and the label of the node are what the real ones are.
//! Failure: a row names the pod that a BIOS would boot.

use crds::names;
use serde_json::{Value, json};

use super::bench::*;

/// Only UEFI boots the image, as a node reported it.
fn efi_image(bench: &mut Bench) {
    bench.edit(IMAGES, "debian", json!({ "status": { "firmware": "efi" } }));
}

fn selects_uefi(pod: &Value) -> bool {
    pod["spec"]["nodeSelector"][names::NODE_UEFI] == "true"
}

fn requested(pod: &Value) -> &Value {
    &pod["metadata"]["annotations"][names::FIRMWARE]
}

fn label_node(bench: &mut Bench) {
    let label = json!({ names::NODE_UEFI: names::UEFI_VALUE });
    bench.edit(NODES, "n1", json!({ "metadata": { "labels": label } }));
}

#[tokio::test]
async fn the_first_node_of_a_machine_boots_its_image() {
    for (firmware, image, is_selected) in [
        (Value::Null, "efi", true),
        (json!("BIOS"), "efi", false),
        (json!("UEFI"), "bios", true),
        (Value::Null, "bios", false),
    ] {
        let mut bench = Bench::new();
        bench.edit(IMAGES, "debian", json!({ "status": { "firmware": image } }));
        bench.machine(json!({ "spec": { "firmware": firmware } }));
        bench.settle().await.ok();
        let placeholder = bench.placeholder("vm").unwrap();
        assert_eq!(
            selects_uefi(&placeholder),
            is_selected,
            "{firmware} {image}"
        );
    }
}

/// From the second start on its pod has no image that shows the firmware.
#[tokio::test]
async fn a_machine_in_a_claim_keeps_its_firmware_as_long_as_the_claim() {
    let mut bench = Bench::new();
    let class = json!({ "metadata": { "name": "sc" }, "provisioner": "p" });
    bench.put(STORAGE_CLASSES, class);
    efi_image(&mut bench);
    let spec =
        json!({ "runStrategy": "Always", "storageClass": "sc", "bootDiskCapacity": "945Mi" });
    bench.machine(json!({ "spec": spec }));
    bench.settle().await.ok();
    let bound = json!({ "status": { "phase": "Bound" } });
    bench.edit(CLAIMS, "vm-root", bound.clone());
    bench.settle().await.ok();
    let first = bench.pod();
    assert!(selects_uefi(&first));
    assert!(requested(&first).is_null(), "the node reads the image");
    bench.run("n1");
    let mut facts = alive();
    facts["firmware"] = json!("uefi");
    bench.facts(facts);
    bench.settle().await.ok();
    assert_eq!(bench.status().firmware.as_deref(), Some("uefi"));
    let starts = |strategy: &str| json!({ "spec": { "runStrategy": strategy } });
    let off = async |bench: &mut Bench| {
        bench.edit(VMS, "vm", starts("Halted"));
        bench.settle().await.ok();
        bench.end("vm", 0, "Stopped");
        bench.settle().await.ok();
        assert!(!bench.has_pod());
    };
    off(&mut bench).await;
    bench.remove(IMAGES, "debian");
    bench.edit(VMS, "vm", starts("Always"));
    bench.settle().await.ok();
    let second = bench.pod();
    assert_eq!(second["spec"]["containers"][0]["image"], "vmlet.dev/none");
    assert!(selects_uefi(&second));
    assert_eq!(requested(&second), "uefi");

    bench.run("n1");
    bench.settle().await.ok();
    off(&mut bench).await;
    let template = json!({ "metadata": { "annotations": { names::FIRMWARE: "bios" } } });
    bench.edit(VMS, "vm", json!({ "spec": { "template": template } }));
    bench.edit(VMS, "vm", starts("Always"));
    bench.settle().await.ok();
    assert_eq!(requested(&bench.pod()), "bios", "its owner requests it");
    assert!(!selects_uefi(&bench.pod()));

    bench.run("n1");
    bench.settle().await.ok();
    off(&mut bench).await;
    bench.remove(CLAIMS, "vm-root");
    bench.edit(VMS, "vm", starts("Always"));
    bench.settle().await.ok();
    assert_eq!(bench.status().firmware, None, "the new claim is empty");
}

/// A daemon of an earlier version does not know the request.
#[tokio::test]
async fn no_machine_starts_by_uefi_on_a_node_that_has_none() {
    let mut bench = Bench::new();
    bench.off("Online").await;
    let change = json!({ "spec": { "firmware": "UEFI", "runStrategy": "Always" } });
    bench.edit(VMS, "vm", change);
    let ended = bench.settle().await;
    let words = failure(&ended);
    assert!(
        words.starts_with("firmware: the root disk is on node n1"),
        "{words}"
    );
    assert!(!bench.has_pod());
    assert_eq!(bench.condition_text("Failure"), "True/FailedCreate");
    label_node(&mut bench);
    bench.settle().await.ok();
    assert_eq!(requested(&bench.pod()), "uefi");
}
