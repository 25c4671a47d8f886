//! Which machines a node wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the machines.

use crds::conditions::{DISK_PROMOTION_SYNCED, NOT_IMPLEMENTED, PROBE_UNAVAILABLE, READY};

use super::*;

/// A machine with its root disk in a claim, which no pass has seen on its node yet.
#[test]
fn a_node_wakes_the_machines_whose_pods_are_there_and_those_whose_disks_are() {
    let (intake, mut feeds) = ours();
    let mut elsewhere = settled("b");
    elsewhere.status.as_mut().unwrap().node_name = Some("node2".to_owned());
    feeds.vms.apply(Event::Apply(settled("a")));
    feeds.vms.apply(Event::Apply(elsewhere));
    let mut pod = pod("b", "instance", "Running");
    pod.spec.get_or_insert_default().node_name = Some("node1".to_owned());
    feeds.pods.apply(Event::Apply(pod));
    feeds.nodes.apply(Event::Apply(node("True", "1")));
    let changed = adds!(intake, feeds.nodes, Event::Apply(node("False", "2")));
    let keys: Vec<_> = changed.iter().map(|add| add.key.to_string()).collect();
    assert_eq!(keys, ["default/a", "default/b"]);
    let same = adds!(intake, feeds.nodes, Event::Apply(node("False", "3")));
    assert!(same.is_empty(), "a heartbeat");
}

#[test]
fn an_agent_that_can_do_more_wakes_machines_that_its_node_could_not_probe() {
    let (intake, mut feeds) = ours();
    let mut unprobed = settled("b");
    let status = unprobed.status.as_mut().unwrap();
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    let all = &mut status.conditions;
    set(
        all,
        READY,
        Status::Unknown,
        PROBE_UNAVAILABLE,
        "",
        None,
        &now,
    );
    feeds.vms.apply(Event::Apply(settled("a")));
    feeds.vms.apply(Event::Apply(unprobed));
    intake.agents_can_do_more();
    assert_eq!(intake.queue.len(), 1);
    let key = Key::new("default", "b");
    intake.signal(key);
    assert_eq!(intake.queue.len(), 1, "it is the one that is queued");
}

#[test]
fn an_agent_that_can_do_more_wakes_machines_whose_disks_its_node_could_not_flatten() {
    let (intake, mut feeds) = ours();
    for (name, reason) in [("a", "StaysLinked"), ("b", NOT_IMPLEMENTED)] {
        let mut machine = settled(name);
        let now = Time(jiff::Timestamp::UNIX_EPOCH);
        let all = &mut machine.status.as_mut().unwrap().conditions;
        let kind = DISK_PROMOTION_SYNCED;
        set(all, kind, Status::True, reason, "", None, &now);
        feeds.vms.apply(Event::Apply(machine));
    }
    intake.agents_can_do_more();
    assert_eq!(intake.queue.len(), 1);
    intake.signal(Key::new("default", "b"));
    assert_eq!(intake.queue.len(), 1, "it is the one that is queued");
}
