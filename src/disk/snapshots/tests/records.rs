//! Records and files that do not agree: of an earlier daemon, or of a lost change.
//!
//! Invariant: real images and `qemu-img`; what a guest would read is compared byte by byte.
//! Failure: a test names what was lost, or left.

use super::*;

/// A daemon of an earlier version has neither the phase nor the field.
#[tokio::test]
async fn an_earlier_daemon_cannot_read_the_record_of_a_disk_with_layers() {
    let node = with_disk(true).await;
    let record = |node: &Node| serde_json::to_value(&*node.disks.get(uid()).unwrap()).unwrap();
    let before = record(&node);
    assert_eq!(before.get("layers"), None);
    take(&node, 1).await;
    assert_eq!(record(&node)["phase"], "layered");
    delete(&node, 1).await;
    let mut after = record(&node);
    // Which it ignores.
    assert_eq!(
        after.as_object_mut().unwrap().remove("next_layer"),
        Some(json!(2))
    );
    assert_eq!(after, before);
}

/// The database was replaced by an older copy: the layer has what a guest wrote since.
#[tokio::test]
async fn a_layer_that_is_later_than_the_record_stays() {
    let node = with_disk(true).await;
    let older = (*node.disks.get(uid()).unwrap()).clone();
    take(&node, 1).await;
    write(&node.disks, 0, 5);
    let written = std::fs::read(node.disks.file(uid())).unwrap();
    let vm = uid();
    let replaced = node.disks.records.change(&vm, |disk| {
        *disk = older.clone();
        true
    });
    replaced.await.unwrap();
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    assert_eq!(layers_in(&node.disks), ["1.qcow2"]);
    // Nor does a new one take its place.
    take(&node, 1).await;
    node.disks.collect().await.unwrap();
    let all = layers_in(&node.disks);
    let kept = all.iter().find(|name| name.ends_with(".unrecorded"));
    let kept = node.disks.layers_directory(uid()).join(kept.unwrap());
    assert!(std::fs::read(kept).unwrap() == written);
    assert_eq!(all.len(), 2, "{all:?}");
}

/// A record that no version writes is no disk that a machine may have.
#[tokio::test]
async fn a_record_cannot_be_read_when_its_layers_are_no_tree() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    let mut record = serde_json::to_value(&*node.disks.get(uid()).unwrap()).unwrap();
    assert!(serde_json::from_value::<Disk>(record.clone()).is_ok());
    record["layers"]["all"]["0"]["parent"] = json!(1);
    assert!(serde_json::from_value::<Disk>(record).is_err());
}

/// The daemon was killed after the last merge was recorded, and before the file of the child was removed.
#[tokio::test]
async fn a_file_that_was_left_is_never_taken_for_a_new_layer() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    write(&node.disks, 0, 9);
    let file = node.disks.file(uid());
    let stale = std::fs::read(&file).unwrap();
    delete(&node, 1).await;
    write(&node.disks, 0, 1);
    let before = content(&node.disks);
    std::fs::write(&file, stale).unwrap();
    let change = node.disks.begin_snapshot(uid(), snapshot(2), false).await;
    assert_ne!(node.disks.new_layer(uid(), change.unwrap()), file);
    assert!(layers_in(&node.disks).is_empty());
    node.disks.settle_change(uid()).await.unwrap();
    assert!(
        content(&node.disks) == before,
        "the file that was left is active"
    );
}
