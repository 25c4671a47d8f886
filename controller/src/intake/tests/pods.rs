//! What a pod wakes: its machine, also by its end.
//!
//! Invariant: changes come out of feeds, as in the program.
//! Failure: the assertion shows the keys and priorities.

use super::*;

#[rstest]
#[case::by_its_name("a", "instance")]
#[case::by_its_name_before_the_machine_has_a_node(
    "a-placeholder-of-virtual-machine-1a2b",
    "provision"
)]
fn a_pod_wakes_its_machine(#[case] name: &str, #[case] role: &str) {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(settled("a")));
    let adds = adds!(intake, feeds.pods, Event::Apply(pod(name, role, "Running")));
    assert_eq!(adds, a(-2));
}

#[test]
fn what_a_machine_left_behind_wakes_its_key() {
    let (intake, mut feeds) = ours();
    let left = Event::Apply(pod("a", "instance", "Failed"));
    assert_eq!(adds!(intake, feeds.pods, left), a(-2));
}

#[rstest]
#[case::ended(Additions::ON, "Succeeded", "instance", 99)]
#[case::switched_off(Additions::OFF, "Succeeded", "instance", 0)]
#[case::runs(Additions::ON, "Running", "instance", -2)]
#[case::was_to_end(Additions::ON, "Succeeded", "provision", -2)]
fn an_ended_pod_of_a_machine_that_is_on_is_a_change_of_power(
    #[case] additions: Additions,
    #[case] phase: &str,
    #[case] role: &str,
    #[case] priority: i64,
) {
    let (intake, mut feeds) = intake(Profile::page(additions));
    feeds.vms.apply(Event::Apply(settled("a")));
    let name = if role == "provision" {
        "a-placeholder-of-virtual-machine-1a2b"
    } else {
        "a"
    };
    let adds = adds!(intake, feeds.pods, Event::Apply(pod(name, role, phase)));
    assert_eq!(adds, a(priority));
}

#[test]
fn a_deleted_pod_of_a_machine_that_is_on_is_a_change_of_power() {
    let (intake, mut feeds) = ours();
    feeds.vms.apply(Event::Apply(settled("a")));
    feeds
        .pods
        .apply(Event::Apply(pod("a", "instance", "Running")));
    let gone = Event::Delete(pod("a", "instance", "Running"));
    assert_eq!(adds!(intake, feeds.pods, gone), a(99));
}
