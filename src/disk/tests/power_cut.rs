//! What a power cut leaves of disks and of memory beside them, once a request about them is answered.
//!
//! Invariant: each sync of the functions that are called here is one without which a test fails; but
//! those behind a program that syncs its files itself, as `qemu-img` does at its end but for copies.
//! Failure: a test names the file, and the request.

use super::*;
use crate::disk::qemu_img::{Access, Base};
use crate::testkit::PowerCut;

/// Marks a file as memory that was written to its end.
const MEMORY: &str = "LibvirtQemudSave";

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_that_was_made_is_there_and_one_that_was_deleted_is_not() {
    let cut = PowerCut::prepared().await;
    let disks = Arc::clone(&cut.node.disks);
    for (vm, linked) in [(uid(1), true), (uid(2), false)] {
        let made = desired(&cut.node, vm, linked);
        disks.make(&made, |_| {}).await.unwrap();
        cut.assert_durable("a creation");
    }
    disks.flatten(uid(1), |_| {}).await.unwrap();
    cut.assert_durable("a promotion");
    for vm in [uid(1), uid(2)] {
        disks.delete(vm).await.unwrap();
        cut.assert_durable("a deletion");
    }
    // The daemon died in a deletion, when the directory was gone.
    disks
        .make(&desired(&cut.node, uid(3), true), |_| {})
        .await
        .unwrap();
    std::fs::remove_dir_all(disks.folder(uid(3))).unwrap();
    disks.delete(uid(3)).await.unwrap();
    cut.assert_durable("the rest of a deletion");
}

#[tokio::test]
#[ignore = "needs root"]
async fn memory_that_was_saved_is_whole_and_what_was_discarded_is_gone() {
    let cut = PowerCut::prepared().await;
    let disks = Arc::clone(&cut.node.disks);
    let vm = uid(1);
    disks
        .make(&desired(&cut.node, vm, true), |_| {})
        .await
        .unwrap();
    for attempt in ["a save", "another save"] {
        disks.begin_memory(vm, vec![], false).await.unwrap();
        cut.assert_durable("the beginning of a save");
        std::fs::write(disks.unfinished_memory(vm), format!("{MEMORY}{attempt}")).unwrap();
        assert!(disks.settle_memory(vm).await.unwrap());
        cut.assert_durable(attempt);
    }
    disks.drop_memory(vm).await.unwrap();
    cut.assert_durable("the removal of memory");
}

/// Of a disk that its emulator has copied the image into.
#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_that_has_all_of_its_image_has_it_on_the_device() {
    let cut = PowerCut::prepared().await;
    let disks = &cut.node.disks;
    let images = &cut.node.images;
    let file = disks.root.join("copy.qcow2");
    let image = images.find(&cut.node.image("disk")).unwrap();
    let base = || Base {
        path: &image.path,
        format: image.format,
    };
    let size = image.virtual_size;
    let copied = disks.qemu_img.copy(&file, base(), size, |_| {}).await;
    copied.unwrap();
    // The program syncs what it writes, and an emulator need not.
    let written = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, written).unwrap();
    // The name; the content is the file's own.
    service::files::sync_directory(&disks.root).unwrap();
    let missing = disks.qemu_img.missing(&file, base(), Access::Lent).await;
    assert_eq!(missing.unwrap(), 0);
    cut.assert_durable("the proof");
}
