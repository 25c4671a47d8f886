//! Storage classes that are edited.

use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::Value;

use super::*;

fn class(version: u32, expands: bool, annotations: &Value) -> Event<StorageClass> {
    let class = serde_json::from_value(json!({
        "metadata": {
            "name": "fast", "uid": "s", "resourceVersion": version.to_string(),
            "annotations": annotations,
        },
        "provisioner": "p", "allowVolumeExpansion": expands,
    }));
    Event::Apply(class.unwrap())
}

#[test]
fn an_edit_of_what_machines_go_by_in_a_storage_class_wakes_them_and_no_other() {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(placed("a")));
    let first = class(1, false, &json!({}));
    assert_eq!(adds!(intake, feeds.storage_classes, first), a(-2));
    let other = class(2, false, &json!({ "owner": "x" }));
    assert_eq!(adds!(intake, feeds.storage_classes, other), []);
    let block = json!({ "owner": "x", "vmlet.dev/volume-mode": "Block" });
    let mode = class(3, false, &block);
    assert_eq!(adds!(intake, feeds.storage_classes, mode), a(-2));
    let expands = class(4, true, &block);
    assert_eq!(adds!(intake, feeds.storage_classes, expands), a(-2));
    let same = class(5, true, &block);
    assert_eq!(adds!(intake, feeds.storage_classes, same), []);
}
