//! What a power cut leaves of layers and of the memory of snapshots, once a request is answered.
//!
//! Invariant: as of the tests of disks.
//! Failure: a test names the file, and the request.

use super::*;
use crate::disk::{Change, SnapshotMemory};
use crate::testkit::PowerCut;

const MEMORY: &str = "LibvirtQemudSave";

async fn with_disk() -> PowerCut {
    let cut = PowerCut::prepared().await;
    let desired = DesiredDisk {
        vm: uid(),
        name: "default/vm".to_owned(),
        image: cut.node.image("disk"),
        url: None,
        size: SIZE,
        linked: true,
    };
    cut.node.disks.make(&desired, |_| {}).await.unwrap();
    cut
}

#[tokio::test]
#[ignore = "needs root"]
async fn layers_are_there_when_a_record_names_them_and_gone_when_none_does() {
    let cut = with_disk().await;
    let node = &cut.node;
    for n in [1, 2] {
        write(&node.disks, 0, n);
        cut.settle();
        take(node, n).await;
        cut.assert_durable("a snapshot");
    }
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    cut.assert_durable("a revert");
    write(&node.disks, 1 << 20, 3);
    cut.settle();
    for n in [2, 1] {
        delete(node, n).await;
        cut.assert_durable("the deletion of a snapshot");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_lies_beside_layers_is_out_of_the_way_when_a_change_is_recorded() {
    let cut = with_disk().await;
    let disks = &cut.node.disks;
    disks.prepare_layers(uid()).await.unwrap();
    // A part of a layer.
    std::fs::write(disks.layers_directory(uid()).join("1.new"), "x").unwrap();
    cut.settle();
    disks.collect().await.unwrap();
    cut.assert_durable("a collection");
    // One of a number that is to come, whose record was lost.
    std::fs::write(disks.layers_directory(uid()).join("1.qcow2"), "x").unwrap();
    cut.settle();
    let change = disks.begin_snapshot(uid(), snapshot(1), false).await;
    cut.assert_durable("the beginning of a snapshot");
    let change = change.unwrap();
    disks.make_layer(uid(), change).await.unwrap();
    cut.assert_durable("a layer");
    assert!(disks.doubt_layer(uid(), change).await.unwrap());
    cut.settle();
    assert!(disks.restore_layer(uid(), change).await.unwrap());
    cut.assert_durable("the return of a layer");
}

/// A snapshot of a machine that runs; what the emulator writes is written by the test.
async fn begun(cut: &PowerCut) -> Change {
    let disks = &cut.node.disks;
    let memory = SnapshotMemory::about_to_be_written(1 << 20);
    let change = disks.begin_snapshot_with_memory(uid(), snapshot(1), memory);
    let change = change.await.unwrap();
    disks.make_layer(uid(), change).await.unwrap();
    std::fs::write(disks.snapshot_memory(uid(), snapshot(1)), MEMORY).unwrap();
    change
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_memory_of_a_snapshot_is_whole_for_it_and_for_the_machine_that_reverts() {
    let cut = with_disk().await;
    let disks = &cut.node.disks;
    std::fs::write(disks.seed_file(uid()), "data for the guest").unwrap();
    cut.settle();
    let change = begun(&cut).await;
    disks.complete_memory(uid(), change).await.unwrap();
    cut.assert_durable("memory of a snapshot");
    disks
        .commit_change(uid(), change.layer, false)
        .await
        .unwrap();
    cut.assert_durable("a snapshot with memory");
    disks.revert_with_memory(uid(), snapshot(1)).await.unwrap();
    assert!(disks.get(uid()).unwrap().memory.is_some());
    cut.assert_durable("a revert with memory");
}
