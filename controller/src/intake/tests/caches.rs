//! What wakes an image for its cache, and which machines a change of the cache wakes.
//!
//! Invariant: changes come out of feeds, as in the program.
//! Failure: the assertion shows the images or machines.

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

/// A machine that waits for its disk, and its placeholder on that node.
fn waits_on(feeds: &mut Feeds, name: &str, node: &str) {
    let mut vm = settled(name);
    vm.spec.image_name = Some("debian".to_owned());
    vm.status.as_mut().unwrap().conditions.clear();
    feeds.vms.apply(Event::Apply(vm));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": format!("placeholder-of-{name}"), "namespace": "default", "uid": name,
            "labels": { "vmlet.dev/role": "provision", "vmlet.dev/vm-uid": format!("uid-of-{name}") },
        },
        "spec": { "nodeName": node, "containers": [] },
    }))
    .unwrap();
    feeds.pods.apply(Event::Apply(pod));
}

/// A condition that is False.
fn unmet(kind: &str, message: &str) -> Value {
    json!([{ "type": kind, "status": "False", "reason": "x", "message": message,
             "lastTransitionTime": "2026-01-01T00:00:00Z" }])
}

#[test]
fn a_location_wakes_the_machines_that_are_placed_there_and_all_else_wakes_all() {
    let (intake, mut feeds) = with_image();
    waits_on(&mut feeds, "b", "n1");
    waits_on(&mut feeds, "c", "n2");
    let mut last = json!({
        "metadata": { "name": "c", "namespace": "vmlet-system", "uid": "c", "resourceVersion": "1" },
        "spec": {
            "image": { "kind": "VirtualMachineImage", "namespace": "default", "name": "debian", "uid": "i" },
            "providerID": "d", "providerVersion": "", "locations": [],
        },
        "status": { "locations": [
            { "node": "n1", "store": "default", "format": "qcow2" },
            { "node": "n2", "store": "default", "format": "qcow2" },
        ]},
    });
    let mut version = 1;
    // The machines that the cache wakes with that value in that place.
    let mut woken = |place: &str, value: Value| {
        version += 1;
        last["metadata"]["resourceVersion"] = json!(version.to_string());
        if !place.is_empty() {
            *last.pointer_mut(place).unwrap() = value;
        }
        let cache: VirtualMachineImageCache = serde_json::from_value(last.clone()).unwrap();
        let adds = adds!(intake, feeds.image_caches, Event::Apply(cache));
        let names = adds.into_iter().map(|add| add.key.name);
        names.collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(woken("", Value::Null), ["b", "c"], "it is new");
    let desired = json!([{ "node": "n1", "store": "default", "format": "qcow2" }]);
    assert_eq!(woken("/spec/locations", desired), none);
    let at = |node: &str, progress: &str| json!({ "node": node, "store": "default", "format": "qcow2", "conditions": unmet("Ready", progress) });
    assert_eq!(woken("/status/locations/1", at("n2", "10 %")), ["c"]);
    assert_eq!(woken("/status/locations/0", at("n1", "20 %")), ["b"]);
    assert_eq!(
        woken("/status/locations/1", at("n3", "10 %")),
        ["c"],
        "gone"
    );
    let more = json!([at("n1", "20 %"), at("n3", "30 %")]);
    assert_eq!(woken("/status/locations", more), none);
    assert_eq!(woken("/spec/providerVersion", json!("v")), ["b", "c"]);
    let status = json!({
        "locations": [at("n1", "20 %"), at("n3", "30 %")],
        "conditions": unmet("VirtualMachineImageCacheFilesReady", "n1 is not ready"),
    });
    assert_eq!(woken("/status", status.clone()), none);
    let mut known = status;
    known["metadata"] = json!({ "providerVersion": "v" });
    assert_eq!(woken("/status", known.clone()), ["b", "c"]);
    known["conditions"] = unmet("VirtualMachineImageCacheHardwareReady", "no disk");
    assert_eq!(woken("/status", known), ["b", "c"]);
}
