//! Which groups and machines a change of a group, or of a member, wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the keys.

use crds::VirtualMachineGroup;
use serde_json::Value;

use super::*;

fn group(name: &str, version: u32, spec: &Value) -> VirtualMachineGroup {
    serde_json::from_value(json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineGroup",
        "metadata": { "name": name, "namespace": "default", "uid": name,
                      "resourceVersion": version.to_string() },
        "spec": spec,
    }))
    .unwrap()
}

/// Names of the groups that an event wakes.
macro_rules! groups {
    ($intake:expr, $feed:expr, $event:expr) => {{
        let changes = $feed.apply($event);
        let keys = changes.iter();
        let keys = keys.flat_map(|change| Wakes::wakes_groups(change, &$intake.stores));
        keys.map(|key: Key| key.name).collect::<Vec<_>>()
    }};
}

#[test]
fn a_machine_wakes_the_group_that_it_names_or_named_and_those_that_name_it() {
    let (intake, mut feeds) = ours();
    let lists = json!({ "bootOrder": [{ "members": [{ "name": "a" }] }] });
    feeds
        .groups
        .apply(Event::Apply(group("lists-it", 1, &lists)));
    let mut vm = settled("a");
    vm.spec.group_name = Some("named".to_owned());
    let woken = groups!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert_eq!(woken, ["lists-it", "named"]);

    vm.metadata.resource_version = Some("2".to_owned());
    vm.status.as_mut().unwrap().ready = true;
    let woken = groups!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert!(woken.is_empty(), "no group goes by that: {woken:?}");

    vm.metadata.resource_version = Some("3".to_owned());
    vm.spec.group_name = Some("other".to_owned());
    let woken = groups!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert_eq!(woken, ["lists-it", "named", "other"]);
    let woken = groups!(intake, feeds.vms, Event::Delete(vm));
    assert_eq!(woken, ["lists-it", "other"]);
}

#[test]
fn a_group_wakes_those_around_it_and_its_status_wakes_no_machine() {
    let (intake, mut feeds) = ours();
    let nested = json!([{ "kind": "VirtualMachineGroup", "name": "middle" }]);
    let outer = json!({ "bootOrder": [{ "members": nested }] });
    feeds.groups.apply(Event::Apply(group("outer", 1, &outer)));
    let within = json!({ "groupName": "middle" });
    feeds.groups.apply(Event::Apply(group("inner", 1, &within)));
    for (name, above) in [("a", "middle"), ("b", "inner"), ("c", "outer")] {
        let mut vm = settled(name);
        vm.spec.group_name = Some(above.to_owned());
        feeds.vms.apply(Event::Apply(vm));
    }
    let spec = json!({ "groupName": "outer" });
    let woken = groups!(
        intake,
        feeds.groups,
        Event::Apply(group("middle", 1, &spec))
    );
    assert_eq!(woken, ["inner", "middle", "outer"]);

    let mut reported = group("middle", 2, &spec);
    reported.status.get_or_insert_default();
    let changes = feeds.groups.apply(Event::Apply(reported));
    let machines = |change| intake.adds(change).into_iter().map(|add| add.key.name);
    assert_eq!(changes.iter().flat_map(machines).count(), 0);

    let spec = json!({ "groupName": "outer", "powerState": "PoweredOn" });
    let changes = feeds.groups.apply(Event::Apply(group("middle", 3, &spec)));
    let woken: Vec<_> = changes.iter().flat_map(machines).collect();
    assert_eq!(woken, ["a", "b"], "also those of the groups below");
}
