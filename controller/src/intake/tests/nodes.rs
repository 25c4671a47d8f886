//! Which machines a node wakes.
//!
//! Invariant: as for the other kinds.
//! Failure: the assertion shows the machines.

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
