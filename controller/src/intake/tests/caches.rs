//! What wakes an image for its cache.
//!
//! Invariant: changes come out of feeds, as in the program.
//! Failure: the assertion shows the images.

use serde_json::Value;

use super::*;

/// The images that an event of a watch wakes.
macro_rules! images {
    ($intake:expr, $feed:expr, $event:expr) => {{
        let changes = $feed.apply($event);
        let all = changes
            .iter()
            .flat_map(|change| Wakes::wakes_images(change, &$intake.stores));
        all.map(|key| key.to_string()).collect::<Vec<_>>()
    }};
}

fn with_image() -> (Intake, Feeds) {
    let (intake, mut feeds) = ours();
    let image: VirtualMachineImage = serde_json::from_value(json!({
        "metadata": { "name": "debian", "namespace": "default", "uid": "i", "resourceVersion": "1" },
        "spec": { "source": { "oci": { "reference": "r.example/debian" } } },
    }))
    .unwrap();
    feeds.images.apply(Event::Apply(image));
    let mut vm = settled("a");
    vm.spec.image_name = Some("debian".to_owned());
    feeds.vms.apply(Event::Apply(vm));
    (intake, feeds)
}

/// A placeholder of the machine `a` in this version.
fn placeholder(version: &str, node: &Value, status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "a-placeholder-of-virtual-machine-uid-of-a", "namespace": "default", "uid": "p",
            "resourceVersion": version,
            "labels": { "vmlet.dev/role": "provision", "vmlet.dev/vm-uid": "uid-of-a" },
        },
        "spec": { "nodeName": node, "containers": [{ "name": "vm", "image": "vmlet.dev/r.example/debian" }] },
        "status": status,
    }))
    .unwrap()
}

#[test]
fn a_placeholder_wakes_its_image_when_it_is_placed_or_starts_or_ends() {
    let (intake, mut feeds) = with_image();
    let pending = json!({ "phase": "Pending" });
    let waiting = json!({ "phase": "Pending", "containerStatuses": [{
        "name": "vm", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ErrImagePull" } },
    }]});
    let done = json!({ "phase": "Succeeded" });
    let debian = ["default/debian"];
    let none: [&str; 0] = [];
    let made = Event::Apply(placeholder("1", &Value::Null, &pending));
    assert_eq!(images!(intake, feeds.pods, made), none);
    let placed = Event::Apply(placeholder("2", &json!("n1"), &pending));
    assert_eq!(images!(intake, feeds.pods, placed), debian);
    let waits = Event::Apply(placeholder("3", &json!("n1"), &waiting));
    assert_eq!(images!(intake, feeds.pods, waits), none);
    let starts = Event::Apply(placeholder("4", &json!("n1"), &done));
    assert_eq!(images!(intake, feeds.pods, starts), debian);
    let ends = Event::Delete(placeholder("5", &json!("n1"), &done));
    assert_eq!(images!(intake, feeds.pods, ends), debian);
}

#[test]
fn the_end_of_a_machine_and_the_task_of_a_cache_wake_the_image() {
    let (intake, mut feeds) = with_image();
    let cache: VirtualMachineImageCache = serde_json::from_value(json!({
        "metadata": { "name": "c", "namespace": "vmlet-system", "uid": "c", "resourceVersion": "1" },
        "spec": {
            "image": { "kind": "VirtualMachineImage", "namespace": "default", "name": "debian", "uid": "i" },
            "providerID": "d", "providerVersion": "",
            "locations": [{ "node": "n1", "store": "default", "format": "qcow2" }],
        },
    }))
    .unwrap();
    let debian = ["default/debian"];
    assert_eq!(
        images!(intake, feeds.image_caches, Event::Apply(cache)),
        debian
    );
    let task = |version: &str, percent: u32| -> VirtualMachineTask {
        serde_json::from_value(json!({
            "metadata": {
                "name": "t", "namespace": "vmlet-system", "uid": "t", "resourceVersion": version,
                "ownerReferences": [{
                    "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImageCache", "name": "c", "uid": "c",
                }],
            },
            "spec": { "nodeName": "n1", "vmName": "c", "vmUID": "c", "kind": "PullImage" },
            "status": { "state": "Running", "progressPercent": percent },
        }))
        .unwrap()
    };
    let begun = Event::Apply(task("1", 11));
    assert_eq!(images!(intake, feeds.tasks, begun), debian);
    let same_step = Event::Apply(task("2", 19));
    assert!(images!(intake, feeds.tasks, same_step).is_empty());
    let next_step = Event::Apply(task("3", 20));
    assert_eq!(images!(intake, feeds.tasks, next_step), debian);
    let mut vm = settled("b");
    vm.spec.image_name = Some("debian".to_owned());
    feeds.vms.apply(Event::Apply(vm.clone()));
    assert_eq!(images!(intake, feeds.vms, Event::Delete(vm)), debian);
    let mut node = node("True", "1");
    node.metadata.name = Some("n1".to_owned());
    feeds.nodes.apply(Event::Apply(node.clone()));
    assert_eq!(images!(intake, feeds.nodes, Event::Delete(node)), debian);
}
