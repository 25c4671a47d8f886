//! Which replica sets a change of a machine, a claim or a set wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the keys.

use crds::VirtualMachineReplicaSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::Value;

use super::*;

fn set(version: u32, replicas: u32, status: &Value) -> VirtualMachineReplicaSet {
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineReplicaSet",
        "metadata": { "name": "web", "namespace": "default", "uid": "web",
                      "resourceVersion": version.to_string() },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": {} },
        },
        "status": status,
    }))
    .unwrap()
}

/// Names of the sets that an event wakes.
macro_rules! sets {
    ($intake:expr, $feed:expr, $event:expr) => {{
        let changes = $feed.apply($event);
        let keys = changes.iter();
        let keys = keys.flat_map(|change| Wakes::wakes_replica_sets(change, &$intake.stores));
        keys.map(|key: Key| key.name).collect::<Vec<_>>()
    }};
}

#[test]
fn a_set_wakes_itself_and_its_status_wakes_none() {
    let (intake, mut feeds) = ours();
    let none = json!({});
    let sets = |feeds: &mut Feeds, object| sets!(intake, feeds.replica_sets, Event::Apply(object));
    assert_eq!(sets(&mut feeds, set(1, 1, &none)), ["web"]);
    let written = json!({ "replicas": 1 });
    assert_eq!(sets(&mut feeds, set(2, 1, &written)), [""; 0]);
    assert_eq!(sets(&mut feeds, set(3, 2, &written)), ["web"]);
    let mut paused = set(4, 2, &written);
    let annotation = ("vmlet.dev/paused".to_owned(), String::new());
    paused.metadata.annotations = Some([annotation].into());
    assert_eq!(sets(&mut feeds, paused), ["web"]);
}

#[test]
fn a_machine_wakes_the_set_that_its_name_is_of() {
    let (intake, mut feeds) = ours();
    let woken = sets!(intake, feeds.vms, Event::Apply(settled("web-1")));
    assert!(woken.is_empty(), "there is no such set: {woken:?}");
    feeds
        .replica_sets
        .apply(Event::Apply(set(1, 2, &json!({}))));
    let mut vm = settled("web-0");
    for name in ["web", "web-01", "web-x", "web-0-1", "web-99999999999"] {
        let woken = sets!(intake, feeds.vms, Event::Apply(settled(name)));
        assert!(woken.is_empty(), "{name}: {woken:?}");
    }
    assert_eq!(sets!(intake, feeds.vms, Event::Apply(vm.clone())), ["web"]);
    vm.metadata.resource_version = Some("2".to_owned());
    vm.spec.class_name = Some("large".to_owned());
    let woken = sets!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert!(woken.is_empty(), "no set goes by that: {woken:?}");
    vm.metadata.resource_version = Some("3".to_owned());
    vm.spec.power_state = Some(PowerState::PoweredOff);
    let woken = sets!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert_eq!(woken, ["web"], "an update may wait for it");
    vm.metadata.resource_version = Some("4".to_owned());
    vm.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    assert_eq!(sets!(intake, feeds.vms, Event::Apply(vm.clone())), ["web"]);
    assert_eq!(sets!(intake, feeds.vms, Event::Delete(vm)), ["web"]);
}

#[test]
fn a_claim_wakes_the_set_of_its_label() {
    let (intake, mut feeds) = ours();
    feeds
        .replica_sets
        .apply(Event::Apply(set(1, 2, &json!({}))));
    let claim = |version: u32, label: &str, phase: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": "data-web-0", "namespace": "default", "uid": "c",
                "resourceVersion": version.to_string(),
                "labels": { "vmlet.dev/replica-set": label },
            },
            "status": { "phase": phase },
        }))
        .unwrap()
    };
    let sets = |feeds: &mut Feeds, object| sets!(intake, feeds.claims, Event::Apply(object));
    assert_eq!(sets(&mut feeds, claim(1, "web", "Pending")), ["web"]);
    assert_eq!(sets(&mut feeds, claim(2, "web", "Bound")), [""; 0]);
    let gone = sets!(
        intake,
        feeds.claims,
        Event::Delete(claim(2, "web", "Bound"))
    );
    assert_eq!(gone, ["web"]);
    assert_eq!(sets(&mut feeds, claim(3, "other", "Bound")), [""; 0]);
}
