//! What is refused, and what waits, while a disk is in use.
//!
//! Invariant: real images and `qemu-img`; what a guest would read is compared byte by byte.
//! Failure: a test names what was lost, or left.

use super::*;

#[tokio::test]
async fn a_disk_in_use_and_one_with_memory_are_left_alone() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let refusals = |disks: Arc<Disks>| async move {
        let none = |_| {};
        [
            disks.take_snapshot(uid(), snapshot(2)).await.map(drop),
            disks.revert(uid(), snapshot(1)).await,
            disks.delete_snapshot(uid(), snapshot(1), none).await,
        ]
        .map(Result::unwrap_err)
    };
    for refused in refusals(Arc::clone(&node.disks)).await {
        assert!(matches!(refused, Error::InUse { .. }), "{refused:?}");
        assert!(refused.is_transient());
    }
    let in_use = node
        .disks
        .delete_snapshot_in_use(uid(), snapshot(1), holder.clone());
    let refused = in_use.await.unwrap_err();
    assert!(matches!(refused, Error::LayersInUse { .. }) && refused.is_transient());
    assert!(
        node.disks
            .snapshot(uid(), snapshot(1))
            .await
            .unwrap()
            .is_some()
    );
    node.disks.give_back(uid(), &holder).await.unwrap();

    node.disks.begin_memory(uid(), vec![], false).await.unwrap();
    std::fs::write(node.disks.unfinished_memory(uid()), "LibvirtQemudSave").unwrap();
    assert!(node.disks.settle_memory(uid()).await.unwrap());
    for refused in refusals(Arc::clone(&node.disks)).await {
        assert!(matches!(refused, Error::MemoryFits(_)), "{refused:?}");
        assert!(!refused.is_transient());
    }
}

/// The machine does not have the layer open: it is in another branch.
#[tokio::test]
async fn a_layer_beside_those_of_a_machine_is_removed_while_it_runs() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    write(&node.disks, 0, 1);
    take(&node, 2).await;
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let deleted = node
        .disks
        .delete_snapshot_in_use(uid(), snapshot(2), holder.clone());
    deleted.await.unwrap();
    assert_eq!(layers_in(&node.disks), ["3.qcow2"]);
    // Nothing to delete is success, whichever machine has the disk.
    let again = node
        .disks
        .delete_snapshot_in_use(uid(), snapshot(2), holder);
    again.await.unwrap();
}

/// A merge waits for the end of the machine, and the snapshot that is deleted needs none.
#[tokio::test]
async fn a_merge_that_waits_keeps_no_other_snapshot() {
    let node = with_disk(true).await;
    for n in 1..=3 {
        take(&node, n).await;
    }
    node.disks.revert(uid(), snapshot(2)).await.unwrap();
    let vm = uid();
    let deleted = node.disks.records.change(&vm, |disk| {
        let layers = disk.layers.as_mut();
        layers.unwrap().delete(snapshot(1))
    });
    deleted.await.unwrap();
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let delete = |n| {
        node.disks
            .delete_snapshot_in_use(uid(), snapshot(n), holder.clone())
    };
    delete(3).await.unwrap();
    assert_eq!(layers_in(&node.disks), ["1.qcow2", "4.qcow2"]);
    delete(9).await.unwrap();
    for waits in [1, 2] {
        let refused = delete(waits).await.unwrap_err();
        assert!(matches!(refused, Error::LayersInUse { .. }), "{refused:?}");
    }
    let taken = node.disks.snapshot(uid(), snapshot(2)).await.unwrap();
    assert!(taken.is_some());
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_in_words() {
    let node = with_disk(true).await;
    let absent = node.disks.revert(uid(), snapshot(1)).await.unwrap_err();
    assert!(matches!(absent, Error::NoSnapshot { .. }) && !absent.is_transient());
    take(&node, 1).await;
    let refused = node.disks.flatten(uid(), |_| {}).await.unwrap_err();
    assert!(matches!(refused, Error::HasSnapshots(_)) && !refused.is_transient());
    for n in 2..=32 {
        take(&node, n).await;
    }
    let refused = node.disks.take_snapshot(uid(), snapshot(33)).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::TooManySnapshots(_)) && !refused.is_transient());
    // No disk has no snapshot.
    let none = node
        .disks
        .delete_snapshot(snapshot(77), snapshot(1), |_| {});
    none.await.unwrap();
}
