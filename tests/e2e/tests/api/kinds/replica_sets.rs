//! What the real API server makes of replica sets.
//!
//! Invariant: as for the other kinds; an edit that a machine refuses is allowed in a template.
//! Failure: a table of all cases that had another result.

use e2e::Case;
use serde_json::{Value, json};

const KIND: &str = "VirtualMachineReplicaSet";

/// A set with these changes in its specification.
fn set(change: &Value) -> Value {
    let labels = json!({ "app": "web" });
    let mut spec = json!({
        "selector": { "matchLabels": labels },
        "template": {
            "metadata": { "labels": labels },
            "spec": { "className": "small", "imageName": "debian", "runStrategy": "Always" },
        },
    });
    merge(&mut spec, change);
    spec
}

/// As a merge patch; the cases need no more.
fn merge(old: &mut Value, change: &Value) {
    match change.as_object() {
        Some(fields) if old.is_object() => {
            for (name, value) in fields {
                if value.is_null() {
                    old.as_object_mut().and_then(|old| old.remove(name));
                } else {
                    merge(&mut old[name], value);
                }
            }
        }
        _ => *old = change.clone(),
    }
}

fn create(change: &Value) -> Case {
    Case::create(KIND, set(change))
}

fn of_machine(change: &Value) -> Case {
    create(&json!({ "template": { "spec": change } }))
}

fn edit(before: &Value, after: &Value) -> Case {
    Case::edit(KIND, set(before), set(after))
}

pub(super) fn replica_sets() -> Vec<Case> {
    let metadata = |part: &str, key: &str| {
        create(&json!({ "template": { "metadata": { part: { key: "x" } } } }))
    };
    let rolling = |change: Value| {
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": change });
        create(&json!({ "updateStrategy": strategy }))
    };
    let data = |root: bool| {
        let claim = json!({ "claimName": "data", "root": root });
        json!({ "volumes": [{ "name": "data", "persistentVolumeClaim": claim }] })
    };
    let claims = json!([{ "name": "data", "size": "1Gi" }]);
    let with_claims = |change: Value| {
        let mut all =
            json!({ "template": { "spec": data(false) }, "volumeClaimTemplates": claims });
        merge(&mut all, &change);
        all
    };
    vec![
        create(&json!({})),
        create(&json!({})).named("a".repeat(58)),
        create(&json!({}))
            .named("a".repeat(59))
            .refused("has at most 58 characters"),
        create(&json!({ "replicas": 1000 })),
        create(&json!({ "replicas": 1001 })).refused("less than or equal to 1000"),
        create(&json!({ "replicas": -1 })).refused("greater than or equal to 0"),
        create(&json!({ "selector": { "matchLabels": { "app": "other" } } }))
            .refused("must be labels of template.metadata"),
        create(&json!({ "selector": { "matchLabels": { "app": null } } }))
            .refused("should have at least 1 properties"),
        edit(
            &json!({}),
            &json!({
                "selector": { "matchLabels": { "tier": "x" } },
                "template": { "metadata": { "labels": { "tier": "x" } } },
            }),
        )
        .refused("selector is immutable"),
        // What a template may not set, since the controller sets it or may do more than the author.
        metadata("labels", "vmlet.dev/replica-set").refused("cannot set labels of vmlet.dev"),
        metadata("labels", "a.vmlet.dev/b").refused("cannot set labels of vmlet.dev"),
        metadata("labels", "vmlet.dev.protected/group").refused("cannot set labels of vmlet.dev"),
        metadata("labels", "no key").refused("valid keys and values"),
        metadata("annotations", "vmlet.dev.protected/admin-paused")
            .refused("in domains that end in .protected"),
        metadata("annotations", "other.protected/x").refused("in domains that end in .protected"),
        metadata("annotations", "delete.check.vmlet.dev/x").refused("no checks of power-on"),
        metadata("annotations", "vmlet.dev/paused"),
        of_machine(&json!({ "biosUUID": "0f0f0f0f-0000-4000-8000-000000000001" }))
            .refused("each machine has its own"),
        of_machine(&json!({ "instanceUUID": "0f0f0f0f-0000-4000-8000-000000000001" }))
            .refused("each machine has its own"),
        of_machine(&json!({ "currentSnapshotName": "x" }))
            .refused("nextRestartTime cannot be set in a template"),
        of_machine(&json!({ "nextRestartTime": "2026-01-01T00:00:00Z" }))
            .refused("nextRestartTime cannot be set in a template"),
        of_machine(&json!({ "dataVolumeTemplates": [{ "name": "data", "spec": {} }] }))
            .refused("use volumeClaimTemplates"),
        of_machine(&json!({ "network": { "interfaces": [{ "name": "a", "macAddr": "52:54:00:12:34:56" }] } }))
            .refused("macAddr and addresses cannot be set in a template"),
        of_machine(&json!({ "network": { "interfaces": [{ "name": "a", "addresses": ["10.0.0.5/24"] }] } }))
            .refused("macAddr and addresses cannot be set in a template"),
        of_machine(&json!({ "runStrategy": null, "powerState": "Suspended" }))
            .refused("cannot be created Suspended"),
        // The rules of machines, but for those about edits.
        of_machine(&json!({ "powerState": "PoweredOn" })).refused("exactly one of powerState"),
        of_machine(&json!({ "imageName": null })).refused("set image or imageName"),
        of_machine(&json!({ "imageName": null, "source": { "snapshot": { "name": "s" } } }))
            .refused("source cannot be set in a template"),
        edit(
            &json!({ "template": { "spec": { "minMachineType": "pc-q35-8.0", "bootDiskCapacity": "2Gi" } } }),
            &json!({ "template": { "spec": { "imageName": "other", "storageClass": "fast" } } }),
        ),
        // Updates.
        rolling(json!({ "maxSurge": "25%", "maxUnavailable": 0 })),
        rolling(json!({ "maxSurge": 1001 })).refused("at most 1000"),
        rolling(json!({ "maxUnavailable": "101%" })).refused("a percentage such as"),
        rolling(json!({ "maxUnavailable": -1 })).refused("at most 1000"),
        // Claims.
        create(&with_claims(json!({}))),
        create(&with_claims(json!({ "template": { "spec": data(true) } }))),
        create(&json!({ "template": { "spec": data(true) } })).refused("cannot have the same root disk"),
        create(&json!({ "volumeClaimTemplates": claims })).refused("each of volumeClaimTemplates must be the claim"),
        create(&with_claims(json!({ "updateStrategy": { "rollingUpdate": { "maxSurge": 1 } } })))
            .refused("maxSurge must be 0"),
        edit(
            &with_claims(json!({})),
            &with_claims(json!({ "volumeClaimTemplates": [{ "name": "data", "size": "2Gi" }] })),
        )
        .refused("volumeClaimTemplates is immutable"),
    ]
}
