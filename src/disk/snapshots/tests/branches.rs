//! Merges of layers that a running machine does not have.
//!
//! Invariant: as of all tests of snapshots; no emulator runs.
//! Failure: a test names what was lost, or left.

use super::*;
use crate::disk::MergeInUse;

const BRANCH: MergeInUse = MergeInUse { layer: 1, child: 2 };

/// A disk of a machine that runs since it was reverted to the first of three snapshots, the second of which is
/// deleted; and what it had at the third one.
async fn reverted() -> (Node, ContainerId, Vec<u8>) {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    take(&node, 1).await;
    write(&node.disks, 4096, 2);
    take(&node, 2).await;
    write(&node.disks, 1 << 20, 3);
    let third = content(&node.disks);
    take(&node, 3).await;
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let deleted = node
        .disks
        .delete_snapshot_of_chain(uid(), snapshot(2), &holder);
    deleted.await.unwrap();
    (node, holder, third)
}

#[tokio::test]
async fn layers_of_another_branch_are_merged_beside_the_machine() {
    let (node, holder, third) = reverted().await;
    let now = content(&node.disks);
    assert_eq!(node.disks.merge_in_use(uid()), None);
    assert_eq!(node.disks.merge_in_branch(uid(), &[]), Some(BRANCH));
    assert_eq!(node.disks.merge_in_branch(uid(), &[BRANCH]), None);
    let merged = node.disks.merge_branch(uid(), BRANCH, &mut |_| {}).await;
    let merged = merged.unwrap();
    assert!(content(&node.disks) == now);

    // The machine ends: nothing may be based on what is merged yet.
    node.disks.give_back(uid(), &holder).await.unwrap();
    let refused = node.disks.revert(uid(), snapshot(3)).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    node.disks.end_branch(merged).await.unwrap();
    assert_eq!(layers_in(&node.disks), ["1.qcow2", "4.qcow2"]);
    assert!(content(&node.disks) == now);
    node.disks.revert(uid(), snapshot(3)).await.unwrap();
    assert!(content(&node.disks) == third);
    for n in [1, 3] {
        delete(&node, n).await;
    }
    assert!(content(&node.disks) == third);
    assert_eq!(node.disks.get(uid()).unwrap().phase, Phase::Ready);
}

/// The record says nothing of it: the child has all.
#[tokio::test]
async fn a_merge_of_another_branch_that_is_cut_short_begins_again() {
    let (node, holder, third) = reverted().await;
    let merged = node.disks.merge_branch(uid(), BRANCH, &mut |_| {}).await;
    drop(merged.unwrap());
    let node = node.restarted().await;
    assert_eq!(node.disks.merge_in_branch(uid(), &[]), Some(BRANCH));
    node.disks.give_back(uid(), &holder).await.unwrap();
    node.disks.revert(uid(), snapshot(3)).await.unwrap();
    assert!(content(&node.disks) == third);
    delete(&node, 1).await;
    assert!(content(&node.disks) == third);
}

#[tokio::test]
async fn what_is_read_or_reserved_is_not_merged_beside_a_machine() {
    let (node, holder, _) = reverted().await;
    let held = node.disks.hold_snapshot(uid(), snapshot(3)).await.unwrap();
    let refused = node.disks.merge_branch(uid(), BRANCH, &mut |_| {}).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::LayersRead(_)), "{refused:?}");
    drop(held);
    node.disks.give_back(uid(), &holder).await.unwrap();
    let reserved = node.disks.reserve(uid()).await.unwrap();
    let refused = node.disks.merge_branch(uid(), BRANCH, &mut |_| {}).await;
    assert!(matches!(refused.unwrap_err(), Error::Busy { .. }));
    drop(reserved);
    let merged = node.disks.merge_branch(uid(), BRANCH, &mut |_| {}).await;
    assert!(node.disks.hold_snapshot(uid(), snapshot(3)).await.is_err());
    node.disks.end_branch(merged.unwrap()).await.unwrap();
    assert_eq!(node.disks.merge_in_branch(uid(), &[]), None);
}
