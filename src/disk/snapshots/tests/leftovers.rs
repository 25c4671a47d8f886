//! Layers whose files cannot be removed.
//!
//! Invariant: as of all tests of snapshots; a directory is in the way.
//! Failure: a test names what was lost, or left.

use super::*;

#[tokio::test]
async fn a_disk_that_cannot_be_tidied_keeps_no_other_from_it() {
    let node = with_disk(true).await;
    let other = snapshot(77);
    let desired = DesiredDisk {
        vm: other,
        name: "default/other".to_owned(),
        image: node.image("disk"),
        url: None,
        size: SIZE,
        linked: true,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
    let all: Vec<_> = node.disks.all().iter().map(|disk| disk.vm).collect();
    for (vm, name) in [(all[0], "1.new/x"), (all[1], "1.new")] {
        let path = node.disks.layers_directory(vm).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    let refused = node.disks.collect().await.unwrap_err();
    assert!(matches!(refused, Error::Files(_)), "{refused:?}");
    let left = node.disks.layers_directory(all[1]).read_dir().unwrap();
    assert_eq!(left.count(), 0);
}

/// A revert that has taken place would be repeated, and take from the guest what it wrote since.
#[tokio::test]
async fn a_revert_has_taken_place_when_layers_cannot_be_removed_after_it() {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    let before = content(&node.disks);
    take(&node, 1).await;
    write(&node.disks, 0, 2);
    let reserved = node.disks.reserve_layers(uid()).await.unwrap();
    let step = Step::Revert { to: 0 };
    let change = node.disks.begin_change(uid(), step, None).await.unwrap();
    node.disks.make_layer(uid(), change).await.unwrap();
    let obstacle = node.disks.layers_directory(uid()).join("obstacle");
    std::fs::create_dir(&obstacle).unwrap();
    let reverted = node.disks.commit_change(uid(), change.layer, false);
    reverted.await.unwrap();
    drop(reserved);
    assert_eq!(node.disks.change(uid()), None);
    assert!(content(&node.disks) == before);
    let refused = node.disks.take_snapshot(uid(), snapshot(2)).await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, Error::Files(_)),
        "it is in the way: {refused:?}"
    );
    std::fs::remove_dir(&obstacle).unwrap();
    node.disks.collect().await.unwrap();
    assert_eq!(layers_in(&node.disks), ["2.qcow2"]);
    assert!(content(&node.disks) == before);
}
