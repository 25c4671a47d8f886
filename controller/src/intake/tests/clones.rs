//! Which clones a change of their source wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the keys.

use crds::conditions::CREATED;
use crds::vm::{CloneSource, SourceReference};
use crds::{PowerState, VirtualMachine, VirtualMachineSnapshot, names};
use kube::ResourceExt;

use super::*;

fn clone(version: &str, source: CloneSource) -> VirtualMachine {
    let mut vm = settled("clone");
    vm.metadata.resource_version = Some(version.to_owned());
    vm.spec.source = Some(source);
    if let Some(status) = &mut vm.status {
        status.conditions.retain(|one| one.type_ != CREATED);
    }
    vm
}

fn named(name: &str) -> Option<SourceReference> {
    let name = name.to_owned();
    Some(SourceReference { name })
}

fn source(version: &str, power: PowerState, condition: &str) -> VirtualMachine {
    let mut vm = settled("source");
    vm.metadata.resource_version = Some(version.to_owned());
    let status = vm.status.get_or_insert_default();
    status.power_state = Some(power);
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    set(
        &mut status.conditions,
        "Other",
        Status::False,
        condition,
        "",
        None,
        &now,
    );
    vm
}

#[test]
fn a_machine_that_goes_off_wakes_the_clones_that_are_to_be_made_of_it() {
    let (intake, mut feeds) = ours();
    let of_machine = CloneSource {
        virtual_machine: named("source"),
        ..CloneSource::default()
    };
    feeds
        .vms
        .apply(Event::Apply(clone("1", of_machine.clone())));
    let keys = |adds: Vec<Add>| -> Vec<String> { adds.into_iter().map(|a| a.key.name).collect() };
    let on = Event::Apply(source("2", PowerState::PoweredOn, "A"));
    assert_eq!(keys(adds!(intake, feeds.vms, on)), ["source", "clone"]);
    let same = Event::Apply(source("3", PowerState::PoweredOn, "B"));
    assert_eq!(keys(adds!(intake, feeds.vms, same)), ["source"]);
    let off = Event::Apply(source("4", PowerState::PoweredOff, "B"));
    assert_eq!(keys(adds!(intake, feeds.vms, off)), ["source", "clone"]);
    // One that is made does not depend on it any more.
    let mut made = clone("5", of_machine);
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    let status = made.status.get_or_insert_default();
    set(
        &mut status.conditions,
        CREATED,
        Status::True,
        "",
        "",
        None,
        &now,
    );
    feeds.vms.apply(Event::Apply(made));
    let on = Event::Apply(source("6", PowerState::PoweredOn, "B"));
    assert_eq!(keys(adds!(intake, feeds.vms, on)), ["source"]);
}

#[test]
fn what_pauses_a_machine_wakes_its_clones_when_it_is_removed() {
    let (intake, mut feeds) = ours();
    let of_machine = CloneSource {
        virtual_machine: named("source"),
        ..CloneSource::default()
    };
    feeds.vms.apply(Event::Apply(clone("1", of_machine)));
    let keys = |adds: Vec<Add>| -> Vec<String> { adds.into_iter().map(|a| a.key.name).collect() };
    feeds
        .vms
        .apply(Event::Apply(source("2", PowerState::PoweredOn, "A")));
    let mut version = 3;
    for mark in [
        ("annotation", names::PAUSED),
        ("annotation", names::ADMIN_PAUSED),
        ("label", names::PAUSED_LABEL),
    ] {
        for is_paused in [true, false] {
            let mut vm = source(&version.to_string(), PowerState::PoweredOn, "A");
            let marks = match mark.0 {
                "label" => vm.labels_mut(),
                _ => vm.annotations_mut(),
            };
            if is_paused {
                marks.insert(mark.1.to_owned(), "devops".to_owned());
            }
            version += 1;
            let woken = keys(adds!(intake, feeds.vms, Event::Apply(vm)));
            assert!(woken.contains(&"clone".to_owned()), "{mark:?}: {woken:?}");
        }
    }
}

#[test]
fn a_snapshot_wakes_its_machine_and_its_clones_and_an_agent_that_can_do_more_does_so_too() {
    let (intake, mut feeds) = ours();
    let of_snapshot = CloneSource {
        snapshot: named("s"),
        ..CloneSource::default()
    };
    feeds.vms.apply(Event::Apply(clone("1", of_snapshot)));
    feeds.vms.apply(Event::Apply(settled("vm")));
    let snapshot: VirtualMachineSnapshot = serde_json::from_value(json!({
        "metadata": { "name": "s", "namespace": "default", "uid": "s", "resourceVersion": "1" },
        "spec": { "vmName": "vm" },
    }))
    .unwrap();
    let woken = adds!(intake, feeds.snapshots, Event::Apply(snapshot.clone()));
    let woken: Vec<_> = woken.into_iter().map(|add| add.key.name).collect();
    assert_eq!(woken, ["vm", "clone"]);
    feeds.snapshots.apply(Event::Delete(snapshot));
    intake.agents_can_do_more();
    assert_eq!(intake.queue.len(), 1);
}
