//! When a snapshot is taken, and what a machine gets back.
//!
//! Invariant: each fact alone decides in its place of the order.
//! Failure: the case.

#![allow(
    clippy::needless_pass_by_value,
    reason = "tests write values where they are used"
)]

use crds::{PowerState, VirtualMachine, VirtualMachineSnapshotSpec, VirtualMachineSpec};
use lifecycle::snapshot::manifest::{needs_start, record, restored};
use lifecycle::snapshot::{Ability, Facts, Verdict, quiesce_seconds, verdict};
use rstest::rstest;
use serde_json::{Value, json};

const READY: Facts<'_> = Facts {
    has_disk: true,
    is_claim: false,
    claims: "",
    unbound: "",
    power_state: Some(PowerState::PoweredOn),
    is_promoting: false,
    reverts: false,
    is_busy: false,
    count: 0,
    node: "n1",
    ability: Ability::Able,
    saves_memory: true,
    freezes: Ability::Able,
};

fn spec(fields: Value) -> VirtualMachineSpec {
    let mut spec = json!({ "className": "small", "imageName": "i", "runStrategy": "Always" });
    spec.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn snapshot(fields: Value) -> VirtualMachineSnapshotSpec {
    let mut spec = json!({ "vmName": "vm" });
    spec.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

/// What the verdict is, and a word of its text.
fn said(found: Verdict) -> (&'static str, String) {
    match found {
        Verdict::Take => ("take", String::new()),
        Verdict::WaitForDisk(why) => ("disk", why.to_owned()),
        Verdict::Wait(why) => ("wait", why),
        Verdict::Refuse(why) => ("refuse", why),
    }
}

#[rstest]
#[case::ready(json!({}), json!({}), READY, "take", "")]
#[case::off(json!({}), json!({}), Facts { power_state: Some(PowerState::PoweredOff), ..READY }, "take", "")]
#[case::no_disk(json!({}), json!({}), Facts { has_disk: false, ability: Ability::Unable, ..READY }, "disk", "no disk")]
#[case::memory(json!({ "memory": true }), json!({}), READY, "take", "")]
#[case::memory_before_the_disk(json!({ "memory": true }), json!({}), Facts { has_disk: false, power_state: None, ..READY }, "disk", "no disk")]
#[case::memory_of_a_machine_that_is_off(json!({ "memory": true }), json!({}), Facts { power_state: Some(PowerState::PoweredOff), ..READY }, "refuse", "does not run")]
#[case::memory_of_a_machine_that_reverts(json!({ "memory": true }), json!({}), Facts { power_state: Some(PowerState::PoweredOff), reverts: true, ..READY }, "wait", "reverts")]
#[case::memory_of_a_suspended_one(json!({ "memory": true }), json!({}), Facts { power_state: Some(PowerState::Suspended), ..READY }, "refuse", "suspended")]
#[case::memory_and_quiesce(json!({ "memory": true, "quiesce": {} }), json!({}), READY, "refuse", "remove quiesce")]
#[case::memory_with_a_claim(json!({ "memory": true }), json!({}), Facts { claims: "c, d", ..READY }, "refuse", "c, d")]
#[case::memory_on_a_claim(json!({ "memory": true }), json!({}), Facts { is_claim: true, claims: "c", ..READY }, "refuse", "claims")]
#[case::memory_on_an_old_node(json!({ "memory": true }), json!({}), Facts { saves_memory: false, ..READY }, "refuse", "with memory")]
#[case::memory_without_an_agent(json!({ "memory": true }), json!({}), Facts { ability: Ability::Unknown, saves_memory: false, ..READY }, "wait", "node n1")]
#[case::no_memory_on_an_old_node(json!({}), json!({}), Facts { saves_memory: false, ..READY }, "take", "")]
#[case::claim(json!({}), json!({}), Facts { is_claim: true, claims: "c", ability: Ability::Unable, ..READY }, "take", "")]
#[case::claim_of_a_silent_node(json!({}), json!({}), Facts { is_claim: true, claims: "c", ability: Ability::Unknown, ..READY }, "take", "")]
#[case::volumes(json!({}), json!({}), Facts { claims: "c", ..READY }, "take", "")]
#[case::unbound(json!({}), json!({}), Facts { claims: "c, d", unbound: "d", reverts: true, ..READY }, "wait", "not bound: d")]
#[case::frozen_claim(json!({ "quiesce": {} }), json!({}), Facts { claims: "c, d", ..READY }, "take", "")]
#[case::frozen_claim_on_an_old_node(json!({ "quiesce": {} }), json!({}), Facts { claims: "c, d", freezes: Ability::Unable, ..READY }, "refuse", "c, d; upgrade")]
#[case::frozen_claim_of_a_silent_node(json!({ "quiesce": {} }), json!({}), Facts { is_claim: true, claims: "c", freezes: Ability::Unknown, ..READY }, "wait", "node n1")]
#[case::frozen_claim_of_one_that_is_off(json!({ "quiesce": {} }), json!({}), Facts { claims: "c", power_state: Some(PowerState::PoweredOff), freezes: Ability::Unable, ..READY }, "take", "")]
#[case::frozen(json!({ "quiesce": {} }), json!({}), READY, "take", "")]
#[case::suspended(json!({}), json!({}), Facts { power_state: Some(PowerState::Suspended), ..READY }, "refuse", "suspended")]
#[case::about_to_be(json!({}), json!({ "runStrategy": null, "powerState": "Suspended" }), READY, "refuse", "suspended")]
#[case::most(json!({}), json!({}), Facts { count: 32, ..READY }, "refuse", "32")]
#[case::one_less(json!({}), json!({}), Facts { count: 31, ..READY }, "take", "")]
#[case::old_node(json!({}), json!({}), Facts { ability: Ability::Unable, ..READY }, "refuse", "node n1")]
#[case::no_agent(json!({}), json!({}), Facts { ability: Ability::Unknown, ..READY }, "wait", "node n1")]
#[case::reverts(json!({}), json!({}), Facts { reverts: true, is_busy: true, ..READY }, "wait", "reverts")]
#[case::busy(json!({}), json!({}), Facts { is_busy: true, ..READY }, "wait", "another task")]
#[case::promotion_ends(json!({}), json!({}), Facts { is_promoting: true, ..READY }, "wait", "another task")]
#[case::promotion(json!({}), json!({ "promoteDisksMode": "Offline" }), Facts { is_promoting: true, ..READY }, "wait", "Disabled")]
fn a_snapshot_is_taken_delayed_or_refused(
    #[case] of: Value,
    #[case] machine: Value,
    #[case] facts: Facts<'_>,
    #[case] what: &str,
    #[case] word: &str,
) {
    let mut machine = machine;
    machine.as_object_mut().unwrap().retain(|_, v| !v.is_null());
    let mut spec = spec(machine);
    if spec.power_state.is_some() {
        spec.run_strategy = None;
    }
    let found = said(verdict(&snapshot(of), &spec, &facts));
    assert!(found.0 == what && found.1.contains(word), "{found:?}");
}

#[rstest]
#[case(json!({}), None)]
#[case(json!({ "quiesce": {} }), Some(300))]
#[case(json!({ "quiesce": { "timeout": "30s" } }), Some(30))]
#[case(json!({ "quiesce": { "timeout": "1100ms" } }), Some(2))]
#[case(json!({ "quiesce": { "timeout": "0s" } }), Some(1))]
#[case(json!({ "quiesce": { "timeout": "9999h" } }), Some(600))]
fn a_guest_has_whole_seconds_within_bounds(#[case] of: Value, #[case] seconds: Option<u32>) {
    assert_eq!(quiesce_seconds(&snapshot(of)), seconds);
}

fn vm(metadata: Value, fields: Value) -> VirtualMachine {
    let spec = serde_json::to_value(spec(fields)).unwrap();
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

#[test]
fn a_machine_gets_back_what_its_owner_may_set() {
    let old = vm(
        json!({
            "labels": { "app": "old", "vmlet.dev/paused": "admin" },
            "annotations": {
                "note": "old", "a.protected/x": "1", "vmlet.dev.protected/admin-paused": "",
                "delete.check.vmlet.dev/a": "", "poweron.check.vmlet.dev/a": "",
                "vmlet.dev/leave-disk": "", "vmlet.dev/disk-record": "x", "vmlet.dev/fast-deploy": "linked", "vmlet.dev/resume-state": "running=true",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        }),
        json!({ "powerOffTimeout": "1s", "minMachineType": "pc-q35-7.2", "currentSnapshotName": "b",
            "bootDiskCapacity": "1Gi", "instanceUUID": "old" }),
    );
    let manifest = record(&old);
    let manifest = manifest.as_object().unwrap().clone();
    assert_eq!(manifest["labels"], json!({ "app": "old" }));
    assert_eq!(
        manifest["annotations"],
        json!({ "note": "old", "vmlet.dev/fast-deploy": "linked" })
    );
    assert!(manifest["spec"]["currentSnapshotName"].is_null());

    let now = vm(
        json!({
            "labels": { "app": "new", "more": "1", "vmlet.dev/paused": "devops" },
            "annotations": { "vmlet.dev.protected/reconcile-priority": "1", "more": "1" },
        }),
        json!({
            "className": "large", "imageName": "j", "minMachineType": "pc-q35-9.0",
            "bootDiskCapacity": "2Gi", "instanceUUID": "new", "currentSnapshotName": "a",
            "nextRestartTime": "2026-01-01T00:00:00Z", "storageClass": "s",
            "source": { "snapshot": { "name": "n" } },
            "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "c" } }],
            "dataVolumeTemplates": [{ "name": "c", "spec": {} }],
        }),
    );
    let back = restored(&now, &manifest, "a").unwrap();
    let json = serde_json::to_value(&back.spec).unwrap();
    assert_eq!(json["className"], "small");
    assert_eq!(json["powerOffTimeout"], "1s");
    for (field, value) in [
        ("imageName", "j"),
        ("minMachineType", "pc-q35-9.0"),
        ("bootDiskCapacity", "2Gi"),
        ("instanceUUID", "new"),
        ("nextRestartTime", "2026-01-01T00:00:00Z"),
        ("storageClass", "s"),
    ] {
        assert_eq!(json[field], value, "{field}");
    }
    for field in ["currentSnapshotName", "volumes", "dataVolumeTemplates"] {
        assert!(json[field].is_null(), "{field}: {json}");
    }
    // It cannot change.
    assert_eq!(json["source"], json!({ "snapshot": { "name": "n" } }));
    let map = |all: &std::collections::BTreeMap<String, String>| json!(all);
    assert_eq!(
        map(&back.labels),
        json!({ "app": "old", "vmlet.dev/paused": "devops" })
    );
    assert_eq!(
        map(&back.annotations),
        json!({
            "note": "old", "vmlet.dev.protected/reconcile-priority": "1",
            "vmlet.dev/fast-deploy": "linked",
        })
    );
    let other = restored(&now, &manifest, "z").unwrap().spec;
    assert_eq!(other.current_snapshot_name.as_deref(), Some("a"));
}

#[test]
fn a_manifest_cannot_bring_what_the_controller_keeps_for_privileged_users() {
    let manifest = json!({
        "spec": { "runStrategy": "Halted", "instanceUUID": "x", "biosUUID": "y" },
        "labels": { "vmlet.dev/paused": "admin", "x.protected/y": "1" },
        "annotations": { "vmlet.dev.protected/skip-delete-platform-resource": "" },
    });
    let back = restored(
        &vm(json!({}), json!({})),
        manifest.as_object().unwrap(),
        "a",
    )
    .unwrap();
    assert!(back.labels.is_empty() && back.annotations.is_empty());
    assert_eq!((back.spec.instance_uuid, back.spec.bios_uuid), (None, None));
    for bad in [
        json!({ "spec": { "runStrategy": 1 } }),
        json!({ "spec": {}, "labels": [] }),
        json!({ "spec": { "powerState": "Suspended" } }),
    ] {
        let bad = bad.as_object().unwrap();
        assert!(
            restored(&vm(json!({}), json!({})), bad, "a").is_err(),
            "{bad:?}"
        );
    }
}

#[rstest]
#[case("Manual", Some(PowerState::PoweredOn), true)]
#[case("Manual", Some(PowerState::PoweredOff), false)]
#[case("Manual", None, false)]
#[case("Always", Some(PowerState::PoweredOn), false)]
fn only_a_machine_that_starts_on_request_needs_one(
    #[case] strategy: &str,
    #[case] state: Option<PowerState>,
    #[case] needs: bool,
) {
    let spec = spec(json!({ "runStrategy": strategy }));
    assert_eq!(needs_start(&spec, state), needs);
}

#[test]
fn the_provider_of_the_first_boot_stays() {
    let cloud_init = json!({ "bootstrap": { "cloudInit": { "inlineUserData": "a" } } });
    let other = json!({ "bootstrap": { "cloudInit": { "inlineUserData": "b" } } });
    let record = |fields: Value| {
        let manifest = record(&vm(json!({}), fields));
        manifest.as_object().unwrap().clone()
    };
    let now = vm(json!({}), cloud_init.clone());
    let back = restored(&now, &record(other.clone()), "a").unwrap();
    assert_eq!(back.spec, spec(other));
    let back = restored(&now, &record(json!({})), "a").unwrap();
    assert_eq!(back.spec, spec(cloud_init));
}
