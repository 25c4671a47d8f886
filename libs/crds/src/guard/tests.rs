//! Lists and watch events with one object that cannot be read.
//!
//! Invariant: texts are read as the client reads them, from a string.
//! Failure: none of its own.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::{DeserializeGuard, ObjectList, PartialObjectMeta, WatchEvent};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::Guarded;
use crate::{VirtualMachine, VirtualMachineTask};

type Claims = ObjectList<Guarded<PersistentVolumeClaim>>;

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// Two claims: the first one has these metadata, and this in its status.
fn list(metadata: &str, status: &str) -> String {
    let kind = r#""apiVersion":"v1","kind":"PersistentVolumeClaim""#;
    format!(
        r#"{{"apiVersion":"v1","kind":"PersistentVolumeClaimList","metadata":{{"resourceVersion":"9"}},
        "items":[
            {{{kind},"metadata":{{"name":"odd","namespace":"ns","uid":"u","resourceVersion":"7"{metadata}}},
              "status":{{"phase":"Bound"{status}}}}},
            {{{kind},"metadata":{{"name":"plain","namespace":"ns"}},"status":{{"phase":"Bound"}}}}
        ]}}"#
    )
}

const LATE: &str = r#","managedFields":[{"manager":"m","operation":"Update","subresource":"status",
    "time":"9999-12-31T23:59:59Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]"#;

#[test]
fn a_time_of_managed_fields_hides_nothing() {
    let text = list(LATE, "");
    // Why this guard and not that one.
    let known = serde_json::from_str::<ObjectList<DeserializeGuard<PersistentVolumeClaim>>>(&text);
    assert!(known.is_err());

    let claims: Claims = serde_json::from_str(&text).unwrap();
    let [odd, plain] = claims.items.as_slice() else {
        panic!("{claims:?}");
    };
    assert!(plain.0.is_ok());
    let odd = odd.0.as_ref().unwrap();
    let fields = odd.metadata.managed_fields.as_ref().unwrap();
    assert_eq!(fields[0].manager.as_deref(), Some("m"));
    assert_eq!(fields[0].subresource.as_deref(), Some("status"));
}

#[test]
fn managed_fields_of_any_depth_hide_nothing() {
    let deep = format!(
        r#","managedFields":[{{"manager":"m","fieldsV1":{}}}]"#,
        nested(5000)
    );
    let claims: Claims = serde_json::from_str(&list(&deep, "")).unwrap();
    assert!(claims.items.iter().all(|claim| claim.0.is_ok()));
}

#[test]
fn an_object_that_cannot_be_read_has_its_identity_and_the_reason() {
    let deep = format!(r#","x":{}"#, nested(5000));
    let numbers = vec!["0"; 300_000].join(",");
    let long = format!(r#","x":[{numbers}]"#);
    let time =
        r#","conditions":[{"type":"t","status":"True","lastProbeTime":"9999-12-31T23:59:59Z"}]"#;
    for (metadata, status, words) in [
        ("", deep.as_str(), "nested more than 120 deep"),
        ("", long.as_str(), "more than 200000 values"),
        ("", time, "not in the required range"),
        (
            r#","creationTimestamp":"9999-12-31T23:59:59Z""#,
            "",
            "not in the required range",
        ),
        (r#","labels":7"#, "", "invalid type"),
    ] {
        let claims: Claims = serde_json::from_str(&list(metadata, status)).unwrap();
        let [odd, plain] = claims.items.as_slice() else {
            panic!("{claims:?}");
        };
        assert!(plain.0.is_ok());
        let error = &odd.0.as_ref().unwrap_err().error;
        assert!(error.contains(words), "{error}");
        assert!(error.len() <= 256);
        assert_eq!(odd.name_any(), "odd");
        assert_eq!(odd.namespace().as_deref(), Some("ns"));
        assert_eq!(odd.uid().as_deref(), Some("u"));
        assert_eq!(odd.resource_version().as_deref(), Some("7"));
    }
}

#[test]
fn an_event_with_such_an_object_can_be_read() {
    let object = json!({ "metadata": { "name": "vm", "uid": "u" }, "spec": 7 });
    let event = json!({ "object": object, "type": "MODIFIED" }).to_string();
    let event: WatchEvent<Guarded<VirtualMachine>> = serde_json::from_str(&event).unwrap();
    let WatchEvent::Modified(vm) = event else {
        panic!("{event:?}");
    };
    assert!(vm.0.is_err());
    assert_eq!(vm.name_any(), "vm");
}

#[test]
fn what_can_be_read_is_as_it_is_without_the_guard() {
    let object = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
        "metadata": { "name": "t", "namespace": "ns", "labels": { "a": "b" } },
        "spec": { "nodeName": "n", "vmName": "vm", "vmUID": "u", "kind": "Save" },
        "status": { "state": "Running", "progressPercent": 7, "transient": true },
    });
    let plain: VirtualMachineTask = serde_json::from_value(object.clone()).unwrap();
    let guarded: Guarded<VirtualMachineTask> = serde_json::from_str(&object.to_string()).unwrap();
    assert_eq!(guarded.0.unwrap(), plain);
}

#[test]
fn a_guard_of_metadata_requests_metadata_alone() {
    assert!(Guarded::<PartialObjectMeta<PersistentVolumeClaim>>::metadata_api());
    assert!(!Guarded::<PersistentVolumeClaim>::metadata_api());
}
