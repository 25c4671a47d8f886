//! Which backups, and which schedules, a change wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the keys.

use crds::VirtualMachineBackup;
use crds::vm::{CloneSource, SourceReference};
use serde_json::Value;

use super::*;

fn backup(name: &str, version: u32, change: &Value) -> VirtualMachineBackup {
    let mut backup = json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackup",
        "metadata": { "name": name, "namespace": "default", "uid": name,
                      "resourceVersion": version.to_string(),
                      "labels": { "vmlet.dev/backup-schedule": "nightly" } },
        "spec": { "vmName": "vm" },
    });
    json_patch::merge(&mut backup, change);
    serde_json::from_value(backup).unwrap()
}

fn completed(parent: Option<&str>) -> Value {
    let parent = parent.map(|name| json!({ "name": name, "uid": name }));
    json!({ "status": { "parent": parent, "conditions": [{
        "type": "VirtualMachineBackupCompleted", "status": "True", "reason": "Completed", "message": "",
        "lastTransitionTime": "2027-01-01T00:00:00Z",
    }] } })
}

fn task(version: u32, kind: &str, owner: Option<&str>, status: &Value) -> VirtualMachineTask {
    let owners = owner.map(|name| {
        json!([{
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineBackup", "name": name, "uid": name,
        }])
    });
    serde_json::from_value(json!({
        "metadata": { "name": "t", "namespace": "default", "uid": "t",
                      "resourceVersion": version.to_string(), "ownerReferences": owners },
        "spec": { "nodeName": "n", "vmName": "vm", "vmUID": "u", "kind": kind },
        "status": status,
    }))
    .unwrap()
}

/// Names of the backups that an event wakes.
macro_rules! backups {
    ($intake:expr, $feed:expr, $event:expr) => {{
        let changes = $feed.apply($event);
        let keys = changes.iter();
        let keys = keys.flat_map(|change| Wakes::wakes_backups(change, &$intake.stores));
        keys.map(|key: Key| key.name).collect::<Vec<_>>()
    }};
}

const NONE: [&str; 0] = [];

#[test]
fn a_backup_wakes_itself_and_its_end_those_that_wait_for_it() {
    let (intake, mut feeds) = ours();
    let none = json!({});
    let sees = |feeds: &mut Feeds, object| backups!(intake, feeds.backups, Event::Apply(object));
    assert_eq!(sees(&mut feeds, backup("a", 1, &none)), ["a"]);
    assert_eq!(sees(&mut feeds, backup("b", 1, &none)), ["b"]);
    let progress = json!({ "status": { "progressPercent": 50 } });
    assert_eq!(sees(&mut feeds, backup("a", 2, &progress)), NONE);
    assert_eq!(sees(&mut feeds, backup("a", 3, &completed(None))), ["b"]);
    let upon = completed(Some("a"));
    assert_eq!(sees(&mut feeds, backup("b", 2, &upon)), NONE);
    let mut requested = upon.clone();
    json_patch::merge(&mut requested, &json!({ "spec": { "verifyRequest": "1" } }));
    assert_eq!(sees(&mut feeds, backup("b", 3, &requested)), ["b"]);
    // The one that it builds upon may wait for that.
    let gone = Event::Delete(backup("b", 4, &requested));
    assert_eq!(backups!(intake, feeds.backups, gone), ["a"]);
}

#[test]
fn a_task_wakes_its_backup_with_tenths_and_at_its_end_those_that_wait() {
    let (intake, mut feeds) = ours();
    feeds
        .backups
        .apply(Event::Apply(backup("open", 1, &json!({}))));
    feeds
        .backups
        .apply(Event::Apply(backup("done", 1, &completed(None))));
    let sees = |feeds: &mut Feeds, object| backups!(intake, feeds.tasks, Event::Apply(object));
    let running = |percent: u32| json!({ "state": "Running", "progressPercent": percent });
    let own = |version, status: &Value| task(version, "VerifyBackup", Some("done"), status);
    assert_eq!(sees(&mut feeds, own(1, &running(1))), ["done"]);
    assert_eq!(sees(&mut feeds, own(2, &running(9))), NONE);
    assert_eq!(sees(&mut feeds, own(3, &running(10))), ["done"]);
    let ended = json!({ "state": "Success", "completionTime": "2027-01-01T00:00:00Z" });
    assert_eq!(sees(&mut feeds, own(4, &ended)), ["done", "open"]);
    let reset = |version, status: &Value| task(version, "Reset", None, status);
    feeds.tasks.apply(Event::Delete(own(5, &ended)));
    assert_eq!(sees(&mut feeds, reset(6, &running(1))), NONE);
    assert_eq!(sees(&mut feeds, reset(7, &ended)), ["open"]);
    // One that is withdrawn has no end.
    assert_eq!(sees(&mut feeds, reset(8, &running(1))), NONE);
    let gone = Event::Delete(reset(8, &running(1)));
    assert_eq!(backups!(intake, feeds.tasks, gone), ["open"]);
}

#[test]
fn a_machine_wakes_its_open_backups_and_an_agent_all_that_need_a_node() {
    let (plain, mut feeds) = ours();
    let queue = |metrics| Arc::new(Shared::with_metrics(Config::default(), metrics));
    let metrics = Metrics::default();
    let waiting = queue(metrics.backups.clone());
    let schedules = queue(metrics.backup_schedules.clone());
    let intake = plain.with_backups(Arc::clone(&waiting), schedules);
    feeds
        .backups
        .apply(Event::Apply(backup("open", 1, &json!({}))));
    feeds
        .backups
        .apply(Event::Apply(backup("done", 1, &completed(None))));
    let mut vm = settled("vm");
    let seen = backups!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert_eq!(seen, ["open"]);
    vm.metadata.resource_version = Some("2".to_owned());
    vm.status.as_mut().unwrap().zone = Some("z1".to_owned());
    let same = backups!(intake, feeds.vms, Event::Apply(vm.clone()));
    assert_eq!(same, NONE);
    vm.metadata.resource_version = Some("3".to_owned());
    vm.status.as_mut().unwrap().power_state = Some(PowerState::PoweredOff);
    assert_eq!(backups!(intake, feeds.vms, Event::Apply(vm)), ["open"]);
    intake.agents_can_do_more();
    assert_eq!(waiting.len(), 1);
}

#[test]
fn a_node_that_goes_wakes_all_that_wait_for_what_a_node_can_do() {
    let (intake, mut feeds) = ours();
    let with = |change: &Value| {
        let mut all = completed(None);
        json_patch::merge(&mut all, change);
        all
    };
    let leaving = with(&json!({ "metadata": { "deletionTimestamp": "2027-01-01T00:00:00Z" } }));
    let unverified = with(&json!({ "spec": { "verifyRequest": "1" } }));
    for (name, change) in [
        ("done", completed(None)),
        ("leaving", leaving),
        ("open", json!({})),
        ("unverified", unverified),
    ] {
        let found = backup(name, 1, &change);
        feeds.backups.apply(Event::Apply(found));
    }
    let seen = backups!(intake, feeds.nodes, Event::Apply(node("True", "1")));
    assert_eq!(seen, NONE);
    let seen = backups!(intake, feeds.nodes, Event::Apply(node("False", "2")));
    assert_eq!(seen, NONE);
    let mut seen = backups!(intake, feeds.nodes, Event::Delete(node("False", "2")));
    seen.sort();
    assert_eq!(seen, ["leaving", "open", "unverified"]);
}

#[test]
fn a_backup_wakes_its_schedule_and_the_machines_that_are_to_be_made_from_it() {
    let (intake, mut feeds) = ours();
    let mut vm = settled("again");
    vm.spec.source = Some(CloneSource {
        backup: Some(SourceReference {
            name: "a".to_owned(),
        }),
        ..CloneSource::default()
    });
    let status = vm.status.as_mut().unwrap();
    status.conditions.clear();
    feeds.vms.apply(Event::Apply(vm));
    let changes = feeds
        .backups
        .apply(Event::Apply(backup("a", 1, &json!({}))));
    let schedules = changes.iter().flat_map(Wakes::wakes_backup_schedules);
    let schedules: Vec<_> = schedules.map(|key: Key| key.name).collect();
    assert_eq!(schedules, ["nightly"]);
    let progress = json!({ "status": { "progressPercent": 50 } });
    let changes = feeds.backups.apply(Event::Apply(backup("a", 2, &progress)));
    assert_eq!(
        changes
            .iter()
            .flat_map(Wakes::wakes_backup_schedules)
            .count(),
        0
    );
    let woken = adds!(
        intake,
        feeds.backups,
        Event::Apply(backup("a", 3, &completed(None)))
    );
    let woken: Vec<_> = woken.into_iter().map(|add| add.key.name).collect();
    assert_eq!(woken, ["again"]);
}

#[test]
fn a_backup_wakes_the_machine_whose_disk_stays_linked_for_it() {
    let (intake, mut feeds) = ours();
    let mut woken = |event| {
        let changes = feeds.backups.apply(event);
        let keys = changes.iter();
        let keys = keys.flat_map(|change| Wakes::wakes(change, &intake.stores));
        keys.map(|key: Key| key.name).collect::<Vec<_>>()
    };
    let none = json!({});
    let held = json!({ "metadata": { "finalizers": ["vmlet.dev/virtualmachinebackup"] } });
    assert_eq!(woken(Event::Apply(backup("a", 1, &none))), NONE);
    assert_eq!(woken(Event::Apply(backup("a", 2, &held))), ["vm"]);
    let mut made = held.clone();
    json_patch::merge(&mut made, &json!({ "status": { "progressPercent": 40 } }));
    assert_eq!(woken(Event::Apply(backup("a", 3, &made))), NONE);
    json_patch::merge(&mut made, &completed(None));
    assert_eq!(woken(Event::Apply(backup("a", 4, &made))), ["vm"]);
    let verified = json!({ "metadata": { "annotations": { "x": "y" } } });
    json_patch::merge(&mut made, &verified);
    assert_eq!(woken(Event::Apply(backup("a", 5, &made))), NONE);
    assert_eq!(woken(Event::Delete(backup("a", 6, &made))), ["vm"]);
}
