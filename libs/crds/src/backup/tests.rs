//! Records and manifests that are written are read; others are refused by their field.
//!
//! Invariant: values only.
//! Failure: the field that was lost.

use serde_json::json;

use super::*;

const UUID: &str = "6f0f2d8e-5a1b-4c77-9d3e-766d6c657401";

fn metadata() -> ObjectMeta {
    let kept = ("team".to_owned(), "blue".to_owned());
    let applied = (
        "kubectl.kubernetes.io/last-applied-configuration".to_owned(),
        "x".repeat(MANIFEST_LIMIT),
    );
    ObjectMeta {
        uid: Some(UUID.to_owned()),
        namespace: Some("ns".to_owned()),
        name: Some("vm".to_owned()),
        annotations: Some([kept.clone(), applied].into()),
        labels: Some([kept].into()),
        ..ObjectMeta::default()
    }
}

fn status() -> VirtualMachineStatus {
    VirtualMachineStatus {
        unique_id: Some(format!("n1/{UUID}")),
        node_name: Some("n1".to_owned()),
        bios_uuid: Some(UUID.to_owned()),
        instance_uuid: Some(UUID.to_owned()),
        image: Some("debian".to_owned()),
        machine_type: Some("pc-q35-7.2".to_owned()),
        power_state: Some(PowerState::Suspended),
        ..VirtualMachineStatus::default()
    }
}

#[test]
fn the_record_of_a_machine_is_constant_and_read_as_it_was_written() {
    let record = DiskRecord::of_machine(&metadata(), &status()).unwrap();
    assert_eq!((record.node.as_str(), record.disk.as_str()), ("n1", UUID));
    assert_eq!(record.machine_type, None);
    assert!(!record.suspended);
    assert_eq!(DiskRecord::from_json(&record.to_json()).unwrap(), record);
    let adopted = VirtualMachineStatus {
        disk_uid: Some("old".to_owned()),
        ..status()
    };
    let record = DiskRecord::of_machine(&metadata(), &adopted).unwrap();
    assert_eq!(record.disk, "old");
}

#[test]
fn a_machine_without_a_disk_on_a_node_has_no_record() {
    let without = [
        VirtualMachineStatus {
            unique_id: Some(format!("pvc/{UUID}")),
            ..status()
        },
        VirtualMachineStatus {
            unique_id: None,
            ..status()
        },
        VirtualMachineStatus {
            node_name: None,
            ..status()
        },
    ];
    for status in without {
        assert_eq!(DiskRecord::of_machine(&metadata(), &status), None);
        let spec = json!({});
        assert_eq!(
            MachineManifest::of_machine(&metadata(), spec, &status),
            None
        );
    }
}

#[test]
fn a_record_of_any_author_is_refused_by_its_field() {
    let whole = DiskRecord::of_machine(&metadata(), &status()).unwrap();
    let whole = serde_json::to_value(whole).unwrap();
    let odd = [
        ("node", json!("../n1")),
        ("node", json!("")),
        ("disk", json!("a/b")),
        ("disk", json!("a".repeat(65))),
        ("biosUUID", json!("x")),
        ("instanceUUID", json!(UUID.to_uppercase())),
        ("image", json!("a b")),
        ("imageURL", json!("x".repeat(2049))),
        ("machineType", json!("\n")),
    ];
    for (field, value) in odd {
        let mut record = whole.clone();
        record[field] = value;
        let refused = DiskRecord::from_json(&record.to_string()).unwrap_err();
        assert!(
            matches!(refused, Error::Field(named) if named == field),
            "{field}: {refused}"
        );
    }
    for text in ["", "7", "{\"node\": 7}"] {
        assert!(
            matches!(DiskRecord::from_json(text), Err(Error::Json(_))),
            "{text}"
        );
    }
    let long = "x".repeat(RECORD_LIMIT + 1);
    assert!(matches!(
        DiskRecord::from_json(&long),
        Err(Error::TooLong(..))
    ));
}

#[test]
fn a_manifest_is_read_as_it_was_written_and_leaves_out_what_belongs_to_one_object() {
    let spec = json!({ "className": "small", "bootstrap": { "cloudInit": { "userData": { "name": "s" } } } });
    let manifest = MachineManifest::of_machine(&metadata(), spec, &status()).unwrap();
    assert_eq!(manifest.annotations.len(), 1, "{:?}", manifest.annotations);
    assert!(manifest.record.suspended);
    assert_eq!(manifest.record.machine_type.as_deref(), Some("pc-q35-7.2"));
    let text = manifest.to_json().unwrap();
    assert_eq!(MachineManifest::from_json(&text).unwrap(), manifest);
    let later = text.replacen("\"version\":1", "\"version\":2", 1);
    assert!(matches!(
        MachineManifest::from_json(&later),
        Err(Error::Later(2))
    ));
    let mut odd: Value = serde_json::from_str(&text).unwrap();
    odd["spec"] = json!([1]);
    let refused = MachineManifest::from_json(&odd.to_string());
    assert!(matches!(refused, Err(Error::Field("spec"))));
    let large = MachineManifest {
        spec: json!({ "x": "y".repeat(MANIFEST_LIMIT) }),
        ..manifest
    };
    assert!(matches!(large.to_json(), Err(Error::TooLong(..))));
}
