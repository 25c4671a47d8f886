//! Which machine a change of a snapshot wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the keys.

use crds::VirtualMachineSnapshot;
use crds::conditions::SNAPSHOT_CREATED;

use super::*;
use crate::stores::VolumeSnapshot;

fn snapshot(version: &str) -> VirtualMachineSnapshot {
    serde_json::from_value(json!({
        "metadata": { "name": "s", "namespace": "default", "uid": "s", "resourceVersion": version },
        "spec": { "vmName": "vm" },
    }))
    .unwrap()
}

#[test]
fn a_snapshot_wakes_its_machine_and_is_found_by_it_until_it_is_gone() {
    let (intake, mut feeds) = ours();
    let vm = Key::new("default", "vm");
    let found = |intake: &Intake| intake.stores.snapshots_of(&vm).len();
    let woken = adds!(intake, feeds.snapshots, Event::Apply(snapshot("1")));
    assert_eq!(woken[0].key, vm, "one that does not exist, too");
    assert_eq!(found(&intake), 1);
    let mut deleted = snapshot("2");
    deleted.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let woken = adds!(intake, feeds.snapshots, Event::Apply(deleted.clone()));
    assert_eq!(woken[0].key, vm);
    let woken = adds!(intake, feeds.snapshots, Event::Delete(deleted));
    assert_eq!(woken[0].key, vm);
    assert_eq!(found(&intake), 0);
}

/// A part of the snapshot.
fn part(version: &str, label: &str, ready: bool) -> VolumeSnapshot {
    serde_json::from_value(json!({
        "metadata": {
            "name": "p", "namespace": "default", "uid": "p", "resourceVersion": version,
            "labels": { "x": label }, "ownerReferences": [{
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineSnapshot", "name": "s", "uid": "s",
            }],
        },
        "spec": { "source": { "persistentVolumeClaimName": "data" } },
        "status": { "readyToUse": ready },
    }))
    .unwrap()
}

#[test]
fn a_part_of_a_snapshot_wakes_the_machine_when_the_storage_system_reports_more() {
    let (intake, mut feeds) = ours();
    let orphan = Event::Apply(part("1", "a", false));
    assert_eq!(adds!(intake, feeds.volume_snapshots, orphan), []);
    feeds.snapshots.apply(Event::Apply(snapshot("1")));
    let ready = Event::Apply(part("2", "a", true));
    let woken = adds!(intake, feeds.volume_snapshots, ready);
    assert_eq!(woken[0].key, Key::new("default", "vm"));
    let same = Event::Apply(part("3", "b", true));
    assert_eq!(adds!(intake, feeds.volume_snapshots, same), []);
    let gone = Event::Delete(part("3", "b", true));
    assert_eq!(adds!(intake, feeds.volume_snapshots, gone).len(), 1);
}

#[test]
fn an_agent_that_can_do_more_wakes_the_machines_of_open_snapshots() {
    let (intake, mut feeds) = ours();
    for name in ["vm", "other"] {
        feeds.vms.apply(Event::Apply(settled(name)));
    }
    feeds.snapshots.apply(Event::Apply(snapshot("1")));
    intake.agents_can_do_more();
    assert_eq!(intake.queue.len(), 1);
}

#[test]
fn an_agent_that_can_do_more_wakes_machines_that_revert_or_whose_snapshots_are_deleted() {
    let (intake, mut feeds) = ours();
    let mut reverts = settled("reverts");
    reverts.spec.current_snapshot_name = Some("s".to_owned());
    for vm in [settled("vm"), settled("other"), reverts] {
        feeds.vms.apply(Event::Apply(vm));
    }
    let mut taken = snapshot("1");
    let status = taken.status.insert(Default::default());
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    set(
        &mut status.conditions,
        SNAPSHOT_CREATED,
        Status::True,
        "",
        "",
        None,
        &now,
    );
    feeds.snapshots.apply(Event::Apply(taken.clone()));
    intake.agents_can_do_more();
    assert_eq!(intake.queue.len(), 1);
    taken.metadata.resource_version = Some("2".to_owned());
    taken.metadata.deletion_timestamp = Some(now);
    feeds.snapshots.apply(Event::Apply(taken));
    intake.agents_can_do_more();
    assert_eq!(intake.queue.len(), 2);
}
