//! What each change wakes, and how urgently.
//!
//! Invariant: changes come out of feeds, as in the program.
//! Failure: the assertion shows the keys and priorities.

use std::sync::Arc;

use crds::conditions::{CREATED, DISK_PROMOTION_SYNCED, Status, set};
use crds::vm::NetworkStatus;
use crds::{
    PowerState, TaskKind, VirtualMachine, VirtualMachineClass, VirtualMachineImage,
    VirtualMachineImageCache, VirtualMachineTask,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use rstest::rstest;
use serde_json::json;
use workqueue::{Config, Shared};

use super::{Add, Intake, Wakes};
use crate::metrics::Metrics;
use crate::priority::{Additions, Profile};
use crate::stores::{Feeds, Key, Stores};

/// Objects of a kind that has nothing but metadata here.
macro_rules! of {
    ($name:expr, $namespace:expr, $version:expr) => {
        serde_json::from_value(json!({
            "metadata": { "name": $name, "namespace": $namespace, "uid": $name, "resourceVersion": $version },
        }))
        .unwrap()
    };
}

/// What an event of a watch queues.
macro_rules! adds {
    ($intake:expr, $feed:expr, $event:expr) => {{
        let changes = $feed.apply($event);
        let adds = changes.iter().flat_map(|change| $intake.adds(change));
        adds.collect::<Vec<_>>()
    }};
}

mod backups;
mod caches;
mod clones;
mod groups;
mod images;
mod limits;
mod nodes;
mod pods;
mod replica_sets;
mod snapshots;
mod storage;

fn intake(rules: Profile) -> (Intake, Feeds) {
    let (stores, feeds) = Stores::new();
    let metrics = Metrics::default();
    let queue = Arc::new(Shared::with_metrics(Config::default(), metrics.queue));
    let images = Arc::new(Shared::with_metrics(Config::default(), metrics.images));
    (Intake::new(stores, rules, queue, images), feeds)
}

fn ours() -> (Intake, Feeds) {
    intake(Profile::page(Additions::ON))
}

/// A machine with nothing to wait for.
fn settled(name: &str) -> VirtualMachine {
    let mut vm = VirtualMachine::new(name, Default::default());
    vm.metadata.namespace = Some("default".to_owned());
    vm.metadata.uid = Some(format!("uid-of-{name}"));
    vm.metadata.resource_version = Some("1".to_owned());
    vm.spec.power_state = Some(PowerState::PoweredOn);
    vm.spec.class_name = Some("small".to_owned());
    let status = vm.status.insert(Default::default());
    status.power_state = Some(PowerState::PoweredOn);
    status.node_name = Some("node1".to_owned());
    status.network = Some(NetworkStatus {
        primary_ip4: Some("10.0.0.9".to_owned()),
        ..NetworkStatus::default()
    });
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    for kind in [CREATED, DISK_PROMOTION_SYNCED] {
        set(
            &mut status.conditions,
            kind,
            Status::True,
            "",
            "",
            None,
            &now,
        );
    }
    vm
}

fn pod(name: &str, role: &str, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": "pod", "resourceVersion": "5",
            "labels": { "vmlet.dev/role": role, "vmlet.dev/vm-uid": "uid-of-a" },
        },
        "status": { "phase": phase },
    }))
    .unwrap()
}

fn task(state: &str, progress: u32) -> VirtualMachineTask {
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
        "metadata": { "name": "t", "namespace": "default", "uid": "t",
                      "resourceVersion": progress.to_string() },
        "spec": { "nodeName": "node1", "vmName": "a", "vmUID": "uid-of-a",
                  "kind": TaskKind::Provision },
        "status": { "state": state, "progressPercent": progress },
    }))
    .unwrap()
}

fn node(ready: &str, heartbeat: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "node1", "uid": "n", "resourceVersion": heartbeat },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    }))
    .unwrap()
}

fn a(priority: i64) -> Vec<Add> {
    let key = Key::new("default", "a");
    vec![Add {
        key,
        priority,
        quiet: false,
    }]
}

#[test]
fn a_machine_in_the_first_list_waits_with_all_others_whatever_its_state() {
    let (intake, mut feeds) = ours();
    let mut new = settled("a");
    new.status = None;
    feeds.vms.apply(Event::Init);
    feeds.vms.apply(Event::InitApply(new.clone()));
    assert_eq!(adds!(intake, feeds.vms, Event::InitDone), a(-1));
    new.metadata.resource_version = Some("2".to_owned());
    assert_eq!(adds!(intake, feeds.vms, Event::Apply(new)), a(100));
}

#[test]
fn a_change_by_a_user_goes_before_routine_work() {
    let (intake, mut feeds) = ours();
    let mut vm = settled("a");
    assert_eq!(adds!(intake, feeds.vms, Event::Apply(vm.clone())), a(-1));
    vm.metadata.resource_version = Some("2".to_owned());
    vm.spec.power_state = Some(PowerState::PoweredOff);
    assert_eq!(adds!(intake, feeds.vms, Event::Apply(vm.clone())), a(99));
    assert_eq!(adds!(intake, feeds.vms, Event::Delete(vm)), a(99));
}

/// Whether the change from the settled machine ends a back-off.
fn ends_a_back_off(change: impl FnOnce(&mut VirtualMachine)) -> bool {
    let (intake, mut feeds) = ours();
    let mut vm = settled("a");
    feeds.vms.apply(Event::Apply(vm.clone()));
    vm.metadata.resource_version = Some("2".to_owned());
    change(&mut vm);
    let adds = adds!(intake, feeds.vms, Event::Apply(vm));
    assert_eq!(adds.len(), 1);
    !adds[0].quiet
}

#[test]
fn what_only_a_pass_writes_ends_no_back_off() {
    let status = |vm: &mut VirtualMachine| vm.status.as_mut().unwrap().ready = true;
    assert!(!ends_a_back_off(status));
    assert!(ends_a_back_off(|vm| vm.spec.paused = true));
    assert!(ends_a_back_off(|vm| {
        let annotations = vm.metadata.annotations.get_or_insert_default();
        annotations.insert("a".to_owned(), "b".to_owned());
    }));
    assert!(ends_a_back_off(|vm| {
        vm.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    }));
    assert!(ends_a_back_off(|vm| {
        let request = serde_json::from_value(json!({ "action": "Start" })).unwrap();
        vm.status
            .as_mut()
            .unwrap()
            .state_change_requests
            .push(request);
    }));
}

#[test]
fn a_resync_is_routine_even_for_a_machine_that_waits() {
    let (intake, mut feeds) = ours();
    let mut vm = settled("a");
    vm.status.as_mut().unwrap().network = None;
    assert_eq!(adds!(intake, feeds.vms, Event::Apply(vm)), a(97));
    let again = feeds.vms.resync();
    let adds: Vec<_> = again
        .iter()
        .flat_map(|change| intake.adds(change))
        .collect();
    assert_eq!(adds, a(-2));
}

#[rstest]
#[case::ours(Profile::page(Additions::ON), -2)]
#[case::without_the_addition(Profile::page(Additions::OFF), 0)]
fn a_class_wakes_the_machines_that_name_it(#[case] rules: Profile, #[case] priority: i64) {
    let (intake, mut feeds) = intake(rules);
    feeds.vms.apply(Event::Apply(settled("a")));
    let mut other = settled("b");
    other.spec.class_name = None;
    feeds.vms.apply(Event::Apply(other));
    let mut class: VirtualMachineClass = serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineClass",
        "metadata": { "name": "small", "namespace": "default" }, "spec": { "hardware": { "cpus": 1, "memory": "1Gi" } },
    }))
    .unwrap();
    class.metadata.uid = Some("c".to_owned());
    assert_eq!(
        adds!(intake, feeds.classes, Event::Apply(class)),
        a(priority)
    );
}

#[test]
fn a_task_wakes_its_machine_when_its_state_changes_and_not_with_its_progress() {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(settled("a")));
    let running = Event::Apply(task("Running", 10));
    assert_eq!(adds!(intake, feeds.tasks, running), a(-2));
    let further = Event::Apply(task("Running", 20));
    assert_eq!(adds!(intake, feeds.tasks, further), []);
    let done = Event::Apply(task("Success", 100));
    assert_eq!(adds!(intake, feeds.tasks, done), a(-2));
}

#[test]
fn a_node_wakes_its_machines_when_it_fails_and_not_with_its_heartbeat() {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(settled("a")));
    feeds.nodes.apply(Event::Apply(node("True", "1")));
    let heartbeat = Event::Apply(node("True", "2"));
    assert_eq!(adds!(intake, feeds.nodes, heartbeat), []);
    let lost = Event::Apply(node("Unknown", "3"));
    assert_eq!(adds!(intake, feeds.nodes, lost), a(-2));
}

/// Caches are in the controller's namespace, machines in those of their owners. A machine with a disk
/// waits for no image.
#[test]
fn an_image_cache_wakes_the_machines_that_wait_for_it_wherever_they_are() {
    let (intake, mut feeds) = ours();
    let mut vm = settled("a");
    vm.spec.image_name = Some("debian".to_owned());
    let conditions = &mut vm.status.get_or_insert_default().conditions;
    conditions.retain(|condition| condition.type_ != CREATED);
    let mut created = settled("b");
    created.spec.image_name.clone_from(&vm.spec.image_name);
    feeds.vms.apply(Event::Apply(vm));
    feeds.vms.apply(Event::Apply(created));
    let cache = |version: &str, ready: &str| -> VirtualMachineImageCache {
        let image = json!({ "kind": "VirtualMachineImage", "namespace": "default", "name": "debian", "uid": "i" });
        let hardware = json!({
            "type": "VirtualMachineImageCacheHardwareReady", "status": ready, "reason": "x", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImageCache",
            "metadata": {
                "name": "c", "namespace": "vmlet-system", "uid": "c", "resourceVersion": version,
            },
            "spec": { "image": image, "providerID": "i", "providerVersion": "v" },
            "status": { "conditions": [hardware] },
        }))
        .unwrap()
    };
    let made = Event::Apply(cache("1", "False"));
    assert_eq!(adds!(intake, feeds.image_caches, made), a(100));
    let changed = Event::Apply(cache("2", "Unknown"));
    assert_eq!(adds!(intake, feeds.image_caches, changed), a(100));
    let same = Event::Apply(cache("3", "Unknown"));
    assert_eq!(adds!(intake, feeds.image_caches, same), []);
}

#[test]
fn the_first_list_of_another_kind_is_routine() {
    let (intake, mut feeds) = ours();
    let mut waiting = settled("a");
    waiting.status.as_mut().unwrap().network = None;
    feeds.vms.apply(Event::Apply(waiting));
    feeds.nodes.apply(Event::Init);
    feeds.nodes.apply(Event::InitApply(node("True", "1")));
    assert_eq!(adds!(intake, feeds.nodes, Event::InitDone), a(-1));
}

#[test]
fn a_signal_about_a_machine_that_is_unknown_is_not_queued() {
    let (intake, mut feeds) = ours();
    intake.signal(Key::new("default", "a"));
    assert!(intake.queue.is_empty());
    feeds.vms.apply(Event::Apply(settled("a")));
    intake.signal(Key::new("default", "a"));
    assert_eq!(
        intake
            .queue
            .lock()
            .pop(intake.queue.now())
            .unwrap()
            .priority,
        -4
    );
}

/// A machine on network `blue` of another namespace, with a claim `data` and a storage class of its
/// own.
fn placed(name: &str) -> VirtualMachine {
    let mut vm = settled(name);
    vm.spec.storage_class = Some("fast".to_owned());
    vm.spec.network = serde_json::from_value(json!({
        "interfaces": [{ "name": "a", "networkRef": "nets/blue" }, { "name": "b", "networkRef": "red" }],
    }))
    .unwrap();
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    vm.spec.volumes = vec![serde_json::from_value(volume).unwrap()];
    vm
}

#[test]
fn a_network_that_appears_wakes_the_machines_on_it_and_no_others() {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(placed("a")));
    feeds.vms.apply(Event::Apply(settled("b")));
    // The kind is served only now.
    feeds.networks.apply(Event::Init);
    feeds.networks.apply(Event::InitDone);
    feeds.networks.apply(Event::Init);
    feeds
        .networks
        .apply(Event::InitApply(of!("blue", "nets", "1")));
    assert_eq!(adds!(intake, feeds.networks, Event::InitDone), a(-2));
    let red = Event::Apply(of!("red", "default", "2"));
    assert_eq!(adds!(intake, feeds.networks, red), a(-2));
    let other = Event::Apply(of!("blue", "default", "3"));
    assert_eq!(adds!(intake, feeds.networks, other), []);
    let edited = Event::Apply(of!("blue", "nets", "4"));
    assert_eq!(adds!(intake, feeds.networks, edited), []);
    let gone = Event::Delete(of!("blue", "nets", "5"));
    assert_eq!(adds!(intake, feeds.networks, gone), a(-2));
}

#[test]
fn a_new_storage_class_wakes_the_machines_that_use_it() {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(placed("a")));
    let fast = Event::Apply(of!("fast", (), "1"));
    assert_eq!(adds!(intake, feeds.storage_classes, fast), a(-2));
    let slow = || Event::Apply(of!("slow", (), "2"));
    let gone = || Event::Delete(of!("slow", (), "3"));
    assert_eq!(adds!(intake, feeds.storage_classes, slow()), []);
    assert_eq!(adds!(intake, feeds.storage_classes, gone()), []);
    let claim = json!({
        "metadata": { "name": "data", "namespace": "default", "uid": "c" },
        "spec": { "storageClassName": "slow" },
    });
    let claim = serde_json::from_value(claim).unwrap();
    feeds.claims.apply(Event::Apply(claim));
    assert_eq!(adds!(intake, feeds.storage_classes, slow()), a(-2));
    assert_eq!(adds!(intake, feeds.storage_classes, slow()), [], "the same");
}
