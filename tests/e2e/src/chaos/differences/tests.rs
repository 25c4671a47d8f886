//! A run that is as it should be, and each way in which it may not be.
//!
//! Invariant: each case changes one thing of the same good run.
//! Failure: the change that no line of the verdict names.

use nodeapi::v1::{Disk, DiskSnapshot};
use serde_json::{Value, json};

use super::super::desired::Promotion;
use super::super::nodes::DiskFiles;
use super::*;

/// A run: `on` runs and has a snapshot, `off` is off and flattened, `member` is of the group, `set-0` of the
/// set, and `gone` was deleted.
struct Run {
    expected: Expected,
    seen: Objects,
    nodes: Nodes,
}

fn desired(mode: Mode, promotion: Promotion) -> DesiredState {
    DesiredState {
        mode,
        promotion,
        ..DesiredState::FIRST
    }
}

fn vm(name: &str, word: &str) -> Value {
    json!({
        "kind": "VirtualMachine",
        "metadata": { "name": name, "uid": format!("{name}-uid"), "generation": 3 },
        "status": {
            "printableStatus": word, "desiredGeneration": 3, "instanceUUID": format!("{name}-domain"),
        },
    })
}

fn snapshot(machine: &str, conditions: &Value) -> Value {
    json!({
        "kind": "VirtualMachineSnapshot",
        "metadata": { "name": "first", "uid": "snapshot-uid" },
        "spec": { "vmName": machine },
        "status": { "diskUID": format!("{machine}-uid"), "conditions": conditions },
    })
}

fn ready() -> Value {
    json!([
        { "type": "VirtualMachineSnapshotCreated", "status": "True" },
        { "type": "VirtualMachineSnapshotReady", "status": "True" },
    ])
}

fn open(reason: &str, message: &str) -> Value {
    json!([{
        "type": "VirtualMachineSnapshotCreated", "status": "False", "reason": reason, "message": message,
    }])
}

impl Run {
    fn good() -> Self {
        let mut run = Self {
            expected: Expected {
                group: Some(("group", Mode::On)),
                set: Some(("set", 1)),
                ..Expected::default()
            },
            seen: Objects::default(),
            nodes: Nodes::default(),
        };
        run.machine("on", "Running", desired(Mode::Always, Promotion::Online));
        run.machine("off", "Stopped", desired(Mode::Off, Promotion::Offline));
        run.machine("member", "Running", desired(Mode::On, Promotion::Online));
        run.machine("set-0", "Running", desired(Mode::Always, Promotion::Online));
        let gone = desired(Mode::Gone, Promotion::Online);
        run.expected.machines.insert("gone".to_owned(), gone);
        run.disk("off").linked = false;
        run.seen.snapshots.push(snapshot("on", &ready()));
        let taken = DiskSnapshot {
            uid: "snapshot-uid".to_owned(),
            ..DiskSnapshot::default()
        };
        run.disk("on").snapshots.push(taken);
        run.files("on").layers = 1;
        run.seen.groups.push(json!({
            "metadata": { "name": "group" },
            "status": {
                "powerChange": { "powerState": "PoweredOn" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }));
        run.seen.sets.push(json!({
            "metadata": { "name": "set", "generation": 2 },
            "status": {
                "replicas": 1, "availableReplicas": 1, "updatedReplicas": 1, "observedGeneration": 2,
            },
        }));
        run
    }

    fn machine(&mut self, name: &str, word: &str, desired: DesiredState) {
        self.expected.machines.insert(name.to_owned(), desired);
        self.seen.add(vm(name, word));
        if word == "Running" {
            self.seen.pods.insert(name.to_owned());
            self.nodes.domains.insert(format!("{name}-domain"));
        }
        let uid = format!("{name}-uid");
        self.nodes.disks.insert(uid.clone(), DiskFiles::default());
        self.nodes.listed.push(Disk {
            vm_uid: uid,
            linked: true,
            ..Disk::default()
        });
    }

    fn disk(&mut self, name: &str) -> &mut Disk {
        let uid = format!("{name}-uid");
        let mut listed = self.nodes.listed.iter_mut();
        listed.find(|disk| disk.vm_uid == uid).unwrap()
    }

    fn files(&mut self, name: &str) -> &mut DiskFiles {
        self.nodes.disks.get_mut(&format!("{name}-uid")).unwrap()
    }

    fn status(&mut self, name: &str) -> &mut Value {
        &mut self.seen.machines.get_mut(name).unwrap()["status"]
    }

    fn desire(&mut self, name: &str, mode: Mode) {
        self.expected.machines.get_mut(name).unwrap().mode = mode;
    }

    fn verdict(&self) -> Vec<String> {
        differences(&self.expected, &self.seen, &self.nodes)
    }
}

/// The line about a change of the good run; it is the only one.
fn line(change: impl FnOnce(&mut Run)) -> String {
    let mut run = Run::good();
    change(&mut run);
    let mut wrong = run.verdict();
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    wrong.remove(0)
}

/// No line is about that change.
fn accepted(change: impl FnOnce(&mut Run)) {
    let mut run = Run::good();
    change(&mut run);
    assert_eq!(run.verdict(), [""; 0]);
}

#[test]
fn a_good_run_has_no_line() {
    accepted(|_| {});
}

#[test]
fn a_machine_in_another_state_than_desired_is_named() {
    for (mode, words) in [
        (Mode::Off, "on: Running, saved memory false"),
        (Mode::Suspended, "on: Running"),
        (Mode::Gone, "on: Running"),
    ] {
        let found = line(|run| run.desire("on", mode));
        assert!(found.starts_with(words), "{found}");
    }
    let stale = line(|run| run.status("on")["desiredGeneration"] = json!(2));
    assert!(stale.starts_with("on: Running"), "{stale}");
    let memory = line(|run| run.files("on").has_memory = true);
    assert!(memory.contains("saved memory true"), "{memory}");
}

#[test]
fn a_machine_without_an_object_and_an_object_without_a_machine_are_named() {
    let missing = line(|run| run.desire("gone", Mode::Off));
    assert_eq!(missing, "gone does not exist");
    let unexpected = line(|run| run.seen.add(vm("set-1", "Stopped")));
    assert_eq!(unexpected, "set-1 should not exist");
}

#[test]
fn what_a_node_or_the_cluster_has_too_much_is_named() {
    let disk = |run: &mut Run| {
        let disks = &mut run.nodes.disks;
        disks.insert("other".to_owned(), DiskFiles::default());
    };
    assert!(line(disk).starts_with("disks: "));
    let domain = |run: &mut Run| {
        run.nodes.domains.insert("other".to_owned());
    };
    assert!(line(domain).starts_with("domains that run: "));
    let pod = |run: &mut Run| {
        run.seen.pods.insert("off".to_owned());
    };
    assert!(line(pod).starts_with("pods: "));
    let lost = line(|run| run.nodes.domains.clear());
    assert!(lost.starts_with("domains that run: "), "{lost}");
    let task = line(|run| run.seen.add(json!({ "kind": "VirtualMachineTask" })));
    assert!(task.starts_with("open task"), "{task}");
    let transfer = line(|run| run.nodes.transfers.push("exports/x".to_owned()));
    assert_eq!(transfer, "left by a client: exports/x");
    let finding = line(|run| run.nodes.findings.push("twice".to_owned()));
    assert_eq!(finding, "twice");
    let unsettled = line(|run| run.expected.unsettled.push("waits".to_owned()));
    assert_eq!(unsettled, "waits");
}

#[test]
fn a_run_that_may_have_ended_keeps_its_pod_or_not() {
    accepted(|run| {
        run.desire("off", Mode::Once);
        run.seen.pods.insert("off".to_owned());
    });
}

#[test]
fn a_snapshot_that_is_not_what_its_object_says_is_named() {
    let lost = line(|run| {
        run.disk("on").snapshots.clear();
        run.files("on").layers = 0;
    });
    assert!(lost.starts_with("no node has the snapshot"), "{lost}");
    let failed = line(|run| {
        let failed = open("VirtualMachineSnapshotCreationFailed", "no space");
        run.seen.snapshots = vec![snapshot("on", &failed)];
    });
    assert!(failed.starts_with("a snapshot failed"), "{failed}");
    let waits = line(|run| {
        let waits = open(
            "VirtualMachineSnapshotCreationInProgress",
            "node a takes it",
        );
        run.seen.snapshots = vec![snapshot("on", &waits)];
    });
    assert!(waits.starts_with("a snapshot is not taken"), "{waits}");
    let unready = line(|run| {
        run.seen.snapshots[0]["status"]["conditions"][1]["status"] = json!("False");
    });
    assert!(unready.starts_with("a snapshot is not ready"), "{unready}");
    let other = line(|run| run.seen.snapshots[0]["status"]["diskUID"] = json!("earlier"));
    assert!(other.contains("no longer exists"), "{other}");
    let unknown = line(|run| run.seen.snapshots.clear());
    assert!(unknown.contains("without an object"), "{unknown}");
    let layers = line(|run| run.files("off").layers = 1);
    assert!(
        layers.contains("1 files of layers, 0 snapshots"),
        "{layers}"
    );
}

#[test]
fn a_snapshot_that_waits_or_is_refused_for_a_reason_that_lasts_is_accepted() {
    let with = |machine: &'static str, conditions: Value| {
        move |run: &mut Run| run.seen.add(renamed(snapshot(machine, &conditions)))
    };
    accepted(with(
        "on",
        open(
            "VirtualMachineSnapshotCreationFailed",
            "the machine is suspended, and so on",
        ),
    ));
    accepted(with(
        "gone",
        open(
            "VirtualMachineSnapshotWaitingForDiskRegistration",
            "no machine",
        ),
    ));
    let flattened = open(
        "VirtualMachineSnapshotCreationInProgress",
        "the root disk is flattened first, while the machine is off",
    );
    accepted(with("off", flattened.clone()));
    let waits = line(with("on", flattened));
    assert!(waits.starts_with("a snapshot is not taken"), "{waits}");
}

/// Another one.
fn renamed(mut snapshot: Value) -> Value {
    snapshot["metadata"] = json!({ "name": "second", "uid": "second-uid" });
    snapshot
}

#[test]
fn a_deleted_snapshot_may_stay_while_its_machine_is_suspended() {
    let delete = |run: &mut Run| {
        run.seen.snapshots[0]["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
    };
    let stays = line(delete);
    assert!(stays.starts_with("a deleted snapshot"), "{stays}");
    accepted(|run| {
        delete(run);
        run.desire("on", Mode::Suspended);
        run.status("on")["printableStatus"] = json!("Suspended");
        run.files("on").has_memory = true;
        run.seen.pods.remove("on");
        run.nodes.domains.remove("on-domain");
    });
}

#[test]
fn a_disk_that_is_linked_against_what_its_machine_says_is_named() {
    let linked = line(|run| run.disk("off").linked = true);
    assert!(
        linked.starts_with("the disk of off is not flattened"),
        "{linked}"
    );
    let called = line(|run| {
        let promoted = json!([{
            "type": "VirtualMachineDiskPromotionSynced", "status": "True", "reason": "Promoted",
        }]);
        run.status("on")["conditions"] = promoted;
    });
    assert!(called.starts_with("on is called promoted"), "{called}");
    // It keeps its snapshots.
    accepted(|run| run.expected.machines.get_mut("on").unwrap().promotion = Promotion::Offline);
}

#[test]
fn a_group_or_a_set_that_reports_otherwise_is_named() {
    for path in [
        "/status/powerChange/powerState",
        "/status/conditions/0/status",
    ] {
        let group = line(|run| *run.seen.groups[0].pointer_mut(path).unwrap() = json!("False"));
        assert!(group.starts_with("the group is not PoweredOn"), "{group}");
    }
    for path in [
        "/status/availableReplicas",
        "/status/updatedReplicas",
        "/status/observedGeneration",
    ] {
        let set = line(|run| *run.seen.sets[0].pointer_mut(path).unwrap() = json!(0));
        assert!(set.starts_with("the set has not 1 machines"), "{set}");
    }
    assert_eq!(
        line(|run| run.seen.groups.clear()),
        "group group does not exist"
    );
    assert_eq!(
        line(|run| run.seen.sets.clear()),
        "replica set set does not exist"
    );
}

#[test]
fn a_clone_without_a_disk_is_accepted_only_without_its_snapshot() {
    let clone = |snapshot: &'static str| {
        move |run: &mut Run| {
            let desired = desired(Mode::Always, Promotion::Online);
            run.expected.machines.insert("clone".to_owned(), desired);
            let mut vm = vm("clone", "Stopped");
            vm["spec"]["source"]["snapshot"]["name"] = json!(snapshot);
            run.seen.add(vm);
        }
    };
    accepted(clone("went"));
    let mut run = Run::good();
    clone("first")(&mut run);
    let wrong = run.verdict().join("\n");
    assert!(wrong.contains("clone: Stopped"), "{wrong}");
}

fn backup(machine: &str, conditions: &Value) -> Value {
    json!({
        "kind": "VirtualMachineBackup",
        "metadata": { "name": "backup", "uid": "backup-uid" },
        "spec": { "vmName": machine },
        "status": { "diskUID": format!("{machine}-uid"), "conditions": conditions },
    })
}

fn complete() -> Value {
    json!([
        { "type": "VirtualMachineBackupCompleted", "status": "True" },
        { "type": "VirtualMachineBackupReady", "status": "True" },
    ])
}

fn incomplete(reason: &str, message: &str) -> Value {
    json!([{
        "type": "VirtualMachineBackupCompleted", "status": "False", "reason": reason, "message": message,
    }])
}

#[test]
fn a_backup_that_is_not_what_its_object_says_is_named() {
    let with = |backup: Value| move |run: &mut Run| run.seen.add(backup);
    accepted(with(backup("on", &complete())));
    let waits = line(with(backup("on", &incomplete("Waiting", "its node"))));
    assert!(waits.starts_with("a backup is not made"), "{waits}");
    accepted(with(backup("gone", &incomplete("Waiting", "no machine"))));
    let failed = incomplete("VirtualMachineBackupFailed", "no space");
    let failed = line(with(backup("on", &failed)));
    assert!(failed.starts_with("a backup failed"), "{failed}");
    let went = "the disk of machine on that it was requested of no longer exists";
    let went = incomplete("VirtualMachineBackupFailed", went);
    accepted(with(backup("on", &went)));
    let mut damaged = backup("on", &complete());
    damaged["status"]["conditions"][1]["status"] = json!("False");
    let damaged = line(with(damaged));
    assert!(damaged.starts_with("a backup is not ready"), "{damaged}");
}

#[test]
fn a_deleted_backup_may_stay_while_a_later_one_builds_upon_it() {
    let mut deleted = backup("on", &complete());
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
    let stays = line(|run| run.seen.add(deleted.clone()));
    assert!(stays.starts_with("a deleted backup"), "{stays}");
    accepted(|run| {
        let mut later = backup("on", &complete());
        later["metadata"]["name"] = json!("later");
        later["status"]["parent"] = json!({ "name": "backup" });
        run.seen.add(deleted.clone());
        run.seen.add(later);
    });
}

#[test]
fn a_backup_waits_and_stays_while_its_machine_is_suspended() {
    for is_deleted in [false, true] {
        accepted(|run| {
            let mut waits = backup("on", &incomplete("Waiting", "machine on is suspended"));
            if is_deleted {
                waits["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
            }
            run.seen.add(waits);
            run.desire("on", Mode::Suspended);
            run.status("on")["printableStatus"] = json!("Suspended");
            run.files("on").has_memory = true;
            run.seen.pods.remove("on");
            run.nodes.domains.remove("on-domain");
        });
    }
}

#[test]
fn a_disk_with_a_backup_keeps_a_layer_and_its_image() {
    accepted(|run| {
        run.seen.add(backup("off", &complete()));
        run.disk("off").linked = true;
        run.files("off").layers = 1;
    });
    let more = line(|run| {
        run.seen.add(backup("off", &complete()));
        run.files("off").layers = 3;
    });
    assert!(more.contains("3 files of layers"), "{more}");
    // The backup of an earlier disk.
    let other = line(|run| {
        let mut earlier = backup("off", &complete());
        earlier["status"]["diskUID"] = json!("earlier");
        run.seen.add(earlier);
        run.disk("off").linked = true;
    });
    assert!(
        other.starts_with("the disk of off is not flattened"),
        "{other}"
    );
}

#[test]
fn a_disk_is_flattened_while_its_machine_runs_where_the_installation_says_so() {
    let online = |run: &mut Run| {
        run.expected.promotes_online = true;
        for name in ["member", "set-0"] {
            run.disk(name).linked = false;
        }
    };
    // The one with a snapshot stays linked.
    accepted(online);
    let linked = line(|run| {
        online(run);
        run.disk("member").linked = true;
    });
    assert!(
        linked.starts_with("the disk of member is not flattened"),
        "{linked}"
    );
    accepted(|run| {
        online(run);
        run.disk("member").linked = true;
        run.expected.machines.get_mut("member").unwrap().promotion = Promotion::Disabled;
    });
}
