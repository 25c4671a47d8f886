//! Switches that come late, or not at all.
//!
//! Invariant: as of all tests of snapshots.
//! Failure: a test prints the task that did not end as it should.

use std::time::Duration;

use super::*;

/// libvirtd goes on with the request of a daemon that was killed: after the first look, or only after the second.
#[rstest::rstest]
#[case::between_the_looks(1, true)]
#[case::after_both(2, false)]
#[tokio::test]
async fn what_a_guest_writes_to_after_a_late_switch_is_kept(
    #[case] looks: usize,
    #[case] takes_place: bool,
) {
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    let layer = node.disks.new_layer(uid(9), change);
    let node = node.restarted().await;
    node.hypervisor.leave_switch(domain, layer.clone(), looks);
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    // It settles what is left, and has nothing to delete.
    let settled = Work::DeleteSnapshot {
        snapshot: snapshot(7),
    };
    let settled = run(&agenda, 1, settled).await;
    assert_eq!(settled.state, State::Success, "{settled:?}");
    assert_eq!(node.disks.change(uid(9)), None);
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(node.disks.file(uid(9)) == layer, takes_place);
    assert_eq!(layer.exists(), takes_place);
    assert!(!layer.with_extension("doubt").exists());
}

/// The daemon was killed between the looks.
#[rstest::rstest]
#[case::switched(true)]
#[case::not_switched(false)]
#[tokio::test]
async fn a_layer_in_doubt_is_settled_by_the_emulator(#[case] is_switched: bool) {
    use libvirt::Hypervisor as _;
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    let layer = node.disks.new_layer(uid(9), change);
    if is_switched {
        let switched = node.hypervisor.switch_root(domain, layer.clone());
        switched.await.unwrap();
    }
    assert!(node.disks.doubt_layer(uid(9), change).await.unwrap());
    let node = node.restarted().await;
    let mut changes = node.disks.changes();
    node.containers.reconcile().await.unwrap();
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, settled).await.unwrap();
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(node.disks.file(uid(9)) == layer, is_switched);
    assert_eq!(layer.exists(), is_switched);
}

/// The guest is not frozen for longer than was requested, whatever the emulator does.
#[tokio::test]
async fn a_switch_that_takes_too_long_is_given_up_and_the_guest_thaws() {
    let replies = [json!({}), json!(2), json!(2)];
    let guest = FakeHypervisor::default().agent_answering(replies);
    let (node, _, domain) = running(guest).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let before = node.disks.file(uid(9));
    let held = node.hypervisor.hold_switches().await;
    let limit = Duration::from_secs(1);
    let refused = failure(&agenda, 1, take(1, 1)).await;
    assert!(refused.transient, "{refused:?}");
    let words = format!("within {} s", limit.as_secs().saturating_sub(1));
    let is_deadline = refused.message.contains("did not answer switch disk");
    assert!(
        is_deadline && refused.message.contains(&words),
        "{refused:?}"
    );
    let requested = ["guest-fsfreeze-freeze", "guest-fsfreeze-thaw"];
    assert_eq!(commands(&node), requested);
    assert_eq!(root(&node, domain).await, before);
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    drop(held);
    assert_eq!(run(&agenda, 2, take(2, 0)).await.state, State::Success);
}
