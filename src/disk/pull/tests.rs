//! Disks into which an emulator copied their images, as it left them.
//!
//! Invariant: real images and `qemu-img`; what a guest would read is compared byte by byte.
//! Failure: a test names what was lost, left, or pinned without end.

use std::path::Path;

use podspec::ContainerId;

use super::*;
use crate::disk::promote::tests::{assert_whole, backing, content, run, uid, written};
use crate::disk::{Disk, SnapshotUid, owner};
use crate::testkit::Node;

/// What an emulator does to the header when it has copied all, or believes that.
fn forget_image(file: &Path) {
    let name = file.to_str().unwrap();
    run("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", "", name]);
}

/// What an emulator that writes all to the device leaves: it copies what it reads.
fn copy_image(file: &Path) {
    let name = file.to_str().unwrap();
    run("qemu-io", &["-C", "-f", "qcow2", "-c", "read 0 8M", name]);
    forget_image(file);
}

/// A linked disk whose machine copies its image, with what its guest reads.
async fn pulled() -> (Node, ContainerId, Vec<u8>) {
    let node = written().await;
    let before = content(&node.disks.file(uid()));
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    node.disks.begin_pull(uid(), &holder).await.unwrap();
    // The same again.
    node.disks.begin_pull(uid(), &holder).await.unwrap();
    assert!(node.disks.is_pulled(uid()));
    (node, holder, before)
}

/// The daemon starts again, and the machine has ended.
async fn ended(node: Node, holder: &ContainerId) -> Node {
    let node = node.restarted().await;
    node.disks.give_back(uid(), holder).await.unwrap();
    node
}

fn assert_linked(node: &Node, before: &[u8]) {
    let disk = node.disks.get(uid()).unwrap();
    assert!(disk.linked && disk.phase == Phase::Ready, "{disk:?}");
    assert!(node.disks.base(uid()).is_some());
    let file = node.disks.file(uid());
    assert!(backing(&file).is_some());
    assert!(content(&file) == before, "the content differs");
}

#[tokio::test]
async fn a_disk_that_has_all_of_its_image_is_whole_while_its_machine_runs() {
    let (node, holder, before) = pulled().await;
    copy_image(&node.disks.file(uid()));
    assert!(node.disks.needs_pin(&owner(uid())));
    // A look from outside decides nothing while a machine has the disk.
    assert!(!node.disks.settle_promotion(uid()).await.unwrap());
    assert!(node.disks.end_pull(uid(), &holder).await.unwrap());
    assert_whole(&node, &before).await;
    assert!(node.disks.is_held_by(uid(), &holder));
    assert!(node.disks.end_pull(uid(), &holder).await.unwrap());
}

/// The emulator was killed after it had written the header, and before the tables.
#[tokio::test]
async fn a_header_without_an_image_is_no_witness() {
    let (node, holder, before) = pulled().await;
    let file = node.disks.file(uid());
    forget_image(&file);
    assert!(!node.disks.end_pull(uid(), &holder).await.unwrap());
    assert!(node.disks.is_pulled(uid()), "it waits for the proof");
    assert!(node.disks.get(uid()).unwrap().linked);
    let node = ended(node, &holder).await;
    assert!(node.disks.needs_pin(&owner(uid())));
    // Another machine finds an overlay.
    let next = ContainerId::generate();
    node.disks.take(uid(), &next).await.unwrap();
    assert!(!node.disks.settle_promotion(uid()).await.unwrap());
    assert!(!node.disks.settle_pull(uid()).await.unwrap());
    assert_linked(&node, &before);
}

#[tokio::test]
async fn a_disk_that_is_whole_on_the_device_is_recorded_when_no_machine_has_it() {
    let (node, holder, before) = pulled().await;
    copy_image(&node.disks.file(uid()));
    let node = ended(node, &holder).await;
    node.disks.collect().await.unwrap();
    assert!(node.disks.is_pulled(uid()), "no other disk waits for it");
    assert!(node.disks.settle_promotion(uid()).await.unwrap());
    assert_whole(&node, &before).await;
}

/// The image cannot be read when the machine has ended.
#[tokio::test]
async fn a_disk_without_a_readable_proof_is_an_overlay_again() {
    let (node, holder, before) = pulled().await;
    forget_image(&node.disks.file(uid()));
    let node = ended(node, &holder).await;
    let image = node.disks.base(uid()).unwrap().path;
    let aside = image.with_extension("aside");
    std::fs::rename(&image, &aside).unwrap();
    assert!(!node.disks.settle_promotion(uid()).await.unwrap());
    std::fs::rename(&aside, &image).unwrap();
    assert_linked(&node, &before);
}

/// The image has data in a place where the guest wrote zeros.
#[tokio::test]
async fn zeros_of_the_guest_hide_the_image() {
    let (node, holder, _) = pulled().await;
    let file = node.disks.file(uid());
    let of_image = content(&file).iter().position(|byte| *byte != 0).unwrap();
    let zero = format!("write -z {} 64k", of_image / 65_536 * 65_536);
    let name = file.to_str().unwrap();
    run("qemu-io", &["-f", "qcow2", "-c", &zero, name]);
    let before = content(&file);
    assert_eq!(before[of_image], 0);
    copy_image(&file);
    assert!(node.disks.end_pull(uid(), &holder).await.unwrap());
    assert_whole(&node, &before).await;
}

#[tokio::test]
async fn a_copy_that_was_stopped_leaves_an_overlay() {
    let (node, holder, before) = pulled().await;
    let other = ContainerId::generate();
    assert!(!node.disks.end_pull(uid(), &other).await.unwrap());
    assert!(node.disks.is_pulled(uid()), "it is another's");
    assert!(!node.disks.end_pull(uid(), &holder).await.unwrap());
    assert_linked(&node, &before);

    node.disks.begin_pull(uid(), &holder).await.unwrap();
    let node = ended(node, &holder).await;
    assert!(!node.disks.abandon_promotion(uid()).await.unwrap());
    assert_linked(&node, &before);
}

/// A copy of the disk is complete by its header, as one of the image is not.
#[tokio::test]
async fn a_pulled_disk_can_be_flattened_and_copied_when_its_machine_is_off() {
    let (node, holder, before) = pulled().await;
    let file = node.disks.file(uid());
    forget_image(&file);
    let node = ended(node, &holder).await;
    node.disks.flatten(uid(), |_| {}).await.unwrap();
    assert_whole(&node, &before).await;
}

#[tokio::test]
async fn nothing_else_changes_a_pulled_disk() {
    let (node, holder, _) = pulled().await;
    let snapshot: SnapshotUid = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b77".parse().unwrap();
    let refused = node.disks.begin_snapshot(uid(), snapshot, true).await;
    assert!(refused.unwrap_err().is_transient());
    assert!(node.disks.get(uid()).unwrap().layers.is_none());
    let other = ContainerId::generate();
    for (container, change) in [
        (&other, Phase::Ready),
        (&holder, Phase::Making),
        (&holder, Phase::Deleting),
    ] {
        let set = |disk: &mut Disk| {
            disk.phase = change;
            true
        };
        node.disks.records.change(&uid(), set).await.unwrap();
        let refused = node.disks.begin_pull(uid(), container).await;
        assert!(refused.unwrap_err().is_transient(), "{change:?}");
    }
    assert!(node.disks.get(uid()).unwrap().linked);
}

/// A daemon before this one cannot read the record, and leaves the disk alone.
#[tokio::test]
async fn the_record_of_a_pulled_disk_has_a_phase_of_its_own() {
    let (node, _, _) = pulled().await;
    let record = serde_json::to_value(&*node.disks.get(uid()).unwrap()).unwrap();
    assert_eq!(record["phase"], "pulled");
}
