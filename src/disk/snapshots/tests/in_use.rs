//! Disks that a machine runs on: layers that a late request may still reach, and merges that are cut short.
//!
//! Invariant: as of all tests of snapshots; no emulator runs.
//! Failure: a test names what was lost, or left.

use rstest::rstest;

use super::*;
use crate::disk::{Change, MergeInUse};

/// A snapshot of a machine that runs, with its layer.
async fn begun() -> (Node, Change) {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    let change = node.disks.begin_snapshot(uid(), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(), change).await.unwrap();
    (node, change)
}

/// The daemon was killed between the two looks, and the machine has ended.
#[tokio::test]
async fn a_layer_in_doubt_becomes_active_when_no_emulator_is_there() {
    let (node, change) = begun().await;
    let layer = node.disks.new_layer(uid(), change);
    let written = std::fs::read(&layer).unwrap();
    assert!(node.disks.doubt_layer(uid(), change).await.unwrap());
    assert_eq!(layers_in(&node.disks), ["1.doubt"]);
    assert!(
        !node.disks.doubt_layer(uid(), change).await.unwrap(),
        "it is"
    );
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    assert_eq!(layers_in(&node.disks), ["1.doubt"], "it may be in use");
    drop(node.disks.reserve(uid()).await.unwrap());
    assert_eq!(layers_in(&node.disks), ["1.qcow2"]);
    assert_eq!(node.disks.file(uid()), layer);
    assert!(std::fs::read(&layer).unwrap() == written);
    let taken = node.disks.snapshot(uid(), snapshot(1)).await.unwrap();
    assert!(taken.is_some_and(|taken| taken.running && !taken.quiesced));
}

#[tokio::test]
async fn a_layer_in_doubt_has_its_name_again_or_is_removed() {
    let (node, change) = begun().await;
    node.disks.doubt_layer(uid(), change).await.unwrap();
    assert!(node.disks.restore_layer(uid(), change).await.unwrap());
    assert_eq!(layers_in(&node.disks), ["1.qcow2"]);
    assert!(node.disks.restore_layer(uid(), change).await.unwrap());
    node.disks.doubt_layer(uid(), change).await.unwrap();
    let abandoned = node.disks.abandon_change(uid(), change.layer);
    abandoned.await.unwrap();
    assert!(layers_in(&node.disks).is_empty());
    assert!(!node.disks.restore_layer(uid(), change).await.unwrap());
    assert!(!node.disks.doubt_layer(uid(), change).await.unwrap());
}

/// As of a layer under its own name: a later database may know it.
#[tokio::test]
async fn a_layer_in_doubt_that_is_later_than_the_record_stays() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    let later = node.disks.layers_directory(uid()).join("9.doubt");
    std::fs::write(later, "x").unwrap();
    node.disks.collect().await.unwrap();
    assert_eq!(layers_in(&node.disks), ["1.qcow2", "9.doubt"]);
}

/// The user of its machine may be the next machine's.
#[tokio::test]
async fn a_layer_in_doubt_may_be_written_to_and_is_taken_back_from_its_user() {
    let (node, change) = begun().await;
    node.disks.doubt_layer(uid(), change).await.unwrap();
    let file = node.disks.doubtful_layer(uid(), change.layer);
    assert!(
        node.disks
            .writable_files(uid())
            .await
            .unwrap()
            .contains(&file)
    );
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(&file, Some(4_000_200), Some(4_000_200)).unwrap();
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    node.disks.give_back(uid(), &holder).await.unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().uid(), 0);
}

/// The machine ended during a merge, at whatever point: its child has all that the guest wrote.
#[rstest]
#[case::copied(0)]
#[case::paused(1)]
#[case::taken_over(2)]
#[tokio::test]
async fn a_merge_of_an_emulator_that_is_cut_short_is_done_without_it(#[case] steps: u8) {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    take(&node, 1).await;
    write(&node.disks, 0, 2);
    write(&node.disks, 2 << 20, 3);
    let before = content(&node.disks);
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let deleted = node
        .disks
        .delete_snapshot_of_chain(uid(), snapshot(1), &holder);
    deleted.await.unwrap();
    let merge = node.disks.merge_in_use(uid()).unwrap();
    assert_eq!(merge, MergeInUse { layer: 0, child: 1 });
    let begin = || node.disks.begin_merge(uid(), merge, &holder);
    begin().await.unwrap();
    // What the emulator had copied.
    let bottom = node.disks.layer_file(uid(), 0);
    let copied = [
        "-f",
        "qcow2",
        "-c",
        "write -P 2 0 4k",
        bottom.to_str().unwrap(),
    ];
    run("qemu-io", &copied);
    if steps > 0 {
        node.disks.begin_pivot(uid(), 0, true).await.unwrap();
    }
    if steps > 1 {
        // The rest, and the emulator went over to it.
        let rest = "write -P 3 2M 4k";
        let rest = ["-f", "qcow2", "-c", rest, bottom.to_str().unwrap()];
        run("qemu-io", &rest);
        node.disks.commit_merge(uid(), 0).await.unwrap();
        assert_eq!(node.disks.file(uid()), bottom);
    }
    assert!(begin().await.is_err(), "it is in progress");
    let node = node.restarted().await;
    node.disks.give_back(uid(), &holder).await.unwrap();
    drop(node.disks.reserve(uid()).await.unwrap());
    assert_eq!(node.disks.change(uid()), None);
    assert!(content(&node.disks) == before);
    delete(&node, 1).await;
    assert!(content(&node.disks) == before);
    assert_eq!(node.disks.get(uid()).unwrap().phase, Phase::Ready);
    assert!(layers_in(&node.disks).is_empty());
}

/// A daemon of an earlier version would start a machine on the child.
#[tokio::test]
async fn an_earlier_daemon_cannot_read_the_record_of_a_merge() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let deleted = node
        .disks
        .delete_snapshot_of_chain(uid(), snapshot(1), &holder);
    deleted.await.unwrap();
    let merge = node.disks.merge_in_use(uid()).unwrap();
    let begun = node.disks.begin_merge(uid(), merge, &holder);
    begun.await.unwrap();
    node.disks.begin_pivot(uid(), 0, true).await.unwrap();
    let record = serde_json::to_value(&*node.disks.get(uid()).unwrap()).unwrap();
    let step = json!({"pivot": {"child": 1, "resumes": true}});
    assert_eq!(record["layers"]["change"]["step"], step);
}

#[tokio::test]
async fn a_snapshot_without_a_merge_that_an_emulator_can_do_stays() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    take(&node, 2).await;
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    let holder = ContainerId::generate();
    let refused = node
        .disks
        .delete_snapshot_of_chain(uid(), snapshot(2), &holder);
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, Error::LayersInUse { .. }), "{refused:?}");
    let taken = node.disks.snapshot(uid(), snapshot(2)).await.unwrap();
    assert!(taken.is_some());
}
