//! The object of a machine that takes its disk over.
//!
//! Invariant: what only privileged users may write is not taken from a manifest, but an administrator's
//! pause: a node wrote it. What is about a moment that has passed is left out.
//! Failure: none; the API server refuses what it would refuse of anyone.

use std::collections::BTreeMap;

use crds::backup::{DiskRecord, MachineManifest};
use crds::names;
use kube::api::DynamicObject;
use kube::core::{ApiResource, ObjectMeta};
use serde_json::{Value, json};

/// Fields that would begin something which was over: a restart, or a revert to a snapshot that the
/// cluster does not know any more.
const PASSED: [&str; 2] = ["nextRestartTime", "currentSnapshotName"];

/// The object of the machine of a manifest, whose disk is on `node`.
pub(super) fn of_manifest(
    manifest: &MachineManifest,
    node: &str,
    has_saved_memory: bool,
) -> DynamicObject {
    let record = DiskRecord {
        node: node.to_owned(),
        suspended: has_saved_memory,
        ..manifest.record.clone()
    };
    let mut annotations = unprivileged(&manifest.annotations);
    if manifest.annotations.contains_key(names::ADMIN_PAUSED) {
        annotations.insert(names::ADMIN_PAUSED.to_owned(), String::new());
    }
    annotations.insert(names::DISK_RECORD.to_owned(), record.to_json());
    annotations.insert(names::ADOPT_DISK.to_owned(), String::new());
    let mut spec = manifest.spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        PASSED.iter().for_each(|field| drop(fields.remove(*field)));
    }
    // No machine can be made suspended; one that is paused is left alone until someone decides.
    if has_saved_memory || spec["powerState"] == "Suspended" {
        annotations.insert(names::PAUSED.to_owned(), String::new());
    }
    if spec["powerState"] == "Suspended" {
        spec["powerState"] = json!("PoweredOn");
    }
    let mut labels = unprivileged(&manifest.labels);
    labels
        .retain(|key, _| ![names::PAUSED_LABEL, names::IMAGE_CACHE_LABEL].contains(&key.as_str()));
    let kind = ApiResource::erase::<crds::VirtualMachine>(&());
    let mut object = DynamicObject::new(&manifest.name, &kind);
    object.metadata = ObjectMeta {
        name: Some(manifest.name.clone()),
        namespace: Some(manifest.namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    object.data = Value::Object([("spec".to_owned(), spec)].into_iter().collect());
    object
}

/// What is not for privileged users.
fn unprivileged(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut kept = all.clone();
    kept.retain(|key, _| {
        let domain = key.split('/').next().unwrap_or_default();
        !domain.ends_with(".protected") && !key.starts_with(names::DELETE_CHECK_PREFIX)
    });
    kept
}
