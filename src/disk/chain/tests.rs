//! Snapshots that are read while a machine has their disk, and layers that are claimed.
//!
//! Invariant: real images and `qemu-img`; a copy is compared with what the guest had.
//! Failure: a test names what was copied, or who was let in.

use std::path::PathBuf;
use std::process::Command;

use podspec::ContainerId;

use super::*;
use crate::disk::DesiredDisk;
use crate::testkit::Node;

fn uid(n: u8) -> SnapshotUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9c{n:02x}")
        .parse()
        .unwrap()
}

fn run(program: &str, arguments: &[&str], files: &[&Path]) {
    let done = Command::new(program).args(arguments).args(files).output();
    let done = done.unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
}

/// A disk of machine 0.
async fn with_disk(linked: bool) -> Node {
    let node = Node::new().await;
    let desired = DesiredDisk {
        vm: uid(0),
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 8 << 20,
        linked,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
    node
}

/// The guest writes a part of a cluster; the headers lead to the layers below.
fn write(node: &Node, offset: u32, pattern: u8) {
    let command = format!("write -P {pattern} {offset} 4k");
    run("qemu-io", &["-c", &command], &[&node.disks.file(uid(0))]);
}

/// What the guest has now, beside the disk.
fn keep(node: &Node, name: &str) -> PathBuf {
    let raw = node.disks.folder(uid(0)).join(name);
    let arguments = ["convert", "-O", "raw"];
    run("qemu-img", &arguments, &[&node.disks.file(uid(0)), &raw]);
    raw
}

async fn take(node: &Node, n: u8) {
    node.disks.take_snapshot(uid(0), uid(n)).await.unwrap();
}

async fn hold(node: &Node, n: u8) -> Result<Arc<HeldSnapshot>> {
    node.disks.hold_snapshot(uid(0), uid(n)).await.map(Arc::new)
}

#[rstest::rstest]
#[case::linked(true)]
#[case::whole(false)]
#[tokio::test]
async fn a_copy_has_what_the_guest_had_whatever_it_has_written_since(#[case] linked: bool) {
    let node = with_disk(linked).await;
    write(&node, 0, 1);
    take(&node, 1).await;
    let first = keep(&node, "first");
    write(&node, 4096, 2);
    take(&node, 2).await;
    let second = keep(&node, "second");
    write(&node, 0, 3);
    write(&node, 1 << 20, 3);
    let container = ContainerId::generate();
    node.disks.take(uid(0), &container).await.unwrap();
    for (n, kept) in [(1, first), (2, second)] {
        let held = hold(&node, n).await.unwrap();
        assert_eq!(held.virtual_bytes(), 8 << 20);
        let copy = node.disks.folder(uid(0)).join("copy.qcow2");
        let copied = node.disks.copy_snapshot_out(&held, &copy, |_| {});
        copied.await.unwrap();
        run("qemu-img", &["check", "-q", "-f", "qcow2"], &[&copy]);
        run("qemu-img", &["compare", "-q"], &[&copy, &kept]);
    }
    write(&node, 0, 4);
    let held = node.disks.is_held_by(uid(0), &container);
    assert!(held, "the machine has its disk as before");
}

#[tokio::test]
async fn a_layer_that_is_read_is_not_claimed_and_one_that_is_claimed_is_not_read() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    take(&node, 2).await;
    let disks = &node.disks;
    let first = hold(&node, 1).await.unwrap();
    let second = hold(&node, 2).await.unwrap();
    assert_eq!((first.files().len(), second.files().len()), (1, 2));
    for layers in [&[0, 1][..], &[1, 2]] {
        let refused = disks.claim_layers(uid(0), layers).unwrap_err();
        assert!(matches!(refused, Error::LayersRead(_)) && refused.is_transient());
    }
    drop(second);
    assert!(
        disks.claim_layers(uid(0), &[0, 1]).is_err(),
        "one reader is left"
    );
    let claim = disks.claim_layers(uid(0), &[1, 2]).unwrap();
    let refused = hold(&node, 2).await.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    assert!(disks.claim_layers(uid(0), &[2]).is_err());
    // Another disk has layers of the same numbers.
    drop(disks.claim_layers(uid(9), &[0, 1, 2]).unwrap());
    drop(first);
    drop(hold(&node, 1).await.unwrap());
    drop(claim);
    drop(hold(&node, 2).await.unwrap());
    drop(disks.claim_layers(uid(0), &[0, 1, 2]).unwrap());
    assert!(disks.uses.all().is_empty(), "a use is left");
}

#[tokio::test]
async fn a_deletion_beside_a_machine_ends_a_reader_and_a_repetition_removes_its_layer() {
    let mut node = with_disk(true).await;
    take(&node, 1).await;
    write(&node, 0, 1);
    take(&node, 2).await;
    node.disks.revert(uid(0), uid(1)).await.unwrap();
    let container = ContainerId::generate();
    node.disks.take(uid(0), &container).await.unwrap();
    let held = hold(&node, 2).await.unwrap();
    let layer = held.files()[0].clone();
    let delete = async |node: &Node| {
        let holder = container.clone();
        node.disks
            .delete_snapshot_in_use(uid(0), uid(2), holder)
            .await
    };
    let refused = delete(&node).await.unwrap_err();
    assert!(matches!(refused, Error::LayersRead(_)), "{refused}");
    let removed = node.disks.snapshot_removal(uid(0), uid(2));
    tokio::time::timeout(crate::testkit::TIMEOUT, removed)
        .await
        .expect("its readers learn of the deletion");
    let gone = hold(&node, 2).await.unwrap_err();
    assert!(matches!(gone, Error::NoSnapshot { .. }), "{gone}");
    assert!(layer.exists(), "it is read");
    drop(held);
    node = node.restarted().await;
    delete(&node).await.unwrap();
    assert!(!layer.exists());
    delete(&node).await.unwrap();
    drop(hold(&node, 1).await.unwrap());
}

/// 0 has snapshot 1; 1 and 3 have snapshots 2 and 3, each in a branch of its own; 5 has snapshot 4, below the active one.
#[tokio::test]
async fn a_leaf_that_is_read_keeps_no_other_deletion_beside_a_machine() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    for n in [2, 3] {
        take(&node, n).await;
        node.disks.revert(uid(0), uid(1)).await.unwrap();
    }
    take(&node, 4).await;
    let container = ContainerId::generate();
    node.disks.take(uid(0), &container).await.unwrap();
    let held = hold(&node, 2).await.unwrap();
    let other = hold(&node, 3).await.unwrap().files()[0].clone();
    let delete = async |n: u8| {
        let holder = container.clone();
        node.disks
            .delete_snapshot_in_use(uid(0), uid(n), holder)
            .await
    };
    for n in [2, 3] {
        let refused = delete(n).await.unwrap_err();
        assert!(matches!(refused, Error::LayersRead(_)), "{n}: {refused}");
    }
    assert!(held.files()[0].exists(), "it is read");
    assert!(!other.exists(), "no reader has it");
    // What the emulator is to merge does not wait either, and is recorded, which ends an export of it.
    let refused = delete(4).await.unwrap_err();
    assert!(matches!(refused, Error::LayersInUse { .. }), "{refused}");
    let marked = node
        .disks
        .delete_snapshot_of_chain(uid(0), uid(4), &container);
    marked.await.unwrap();
    assert!(node.disks.merge_in_use(uid(0)).is_some());
    drop(held);
    delete(2).await.unwrap();
}

#[tokio::test]
async fn a_copy_that_is_dropped_gives_the_layers_back() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    let held = hold(&node, 1).await.unwrap();
    let copy = node.disks.folder(uid(0)).join("copy.qcow2");
    let copying = node.disks.copy_snapshot_out(&held, &copy, |_| {});
    let cut = tokio::time::timeout(std::time::Duration::ZERO, copying).await;
    assert!(cut.is_err(), "it was complete at once");
    drop(held);
    let freed = async {
        while node.disks.claim_layers(uid(0), &[0]).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::testkit::TIMEOUT, freed)
        .await
        .expect("the layers are held");
}

#[tokio::test]
async fn only_a_snapshot_that_the_disk_has_is_read() {
    let node = with_disk(true).await;
    let missing = node.disks.hold_snapshot(uid(5), uid(1)).await.unwrap_err();
    assert!(matches!(missing, Error::Missing(_)), "{missing}");
    let none = hold(&node, 1).await.unwrap_err();
    assert!(matches!(none, Error::NoSnapshot { .. }), "{none}");
    take(&node, 1).await;
    let other = hold(&node, 2).await.unwrap_err();
    assert!(matches!(other, Error::NoSnapshot { .. }), "{other}");
    let removed = node.disks.snapshot_removal(uid(0), uid(1));
    let mut removed = std::pin::pin!(removed);
    tokio::select! {
        biased;
        () = &mut removed => panic!("it is there"),
        () = std::future::ready(()) => {}
    }
    let deleted = node.disks.delete_snapshot(uid(0), uid(1), |_| {}).await;
    deleted.unwrap();
    tokio::time::timeout(crate::testkit::TIMEOUT, removed)
        .await
        .expect("the removal is noticed");
    let gone = hold(&node, 1).await.unwrap_err();
    assert!(matches!(gone, Error::NoSnapshot { .. }), "{gone}");
}
