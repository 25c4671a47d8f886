//! Disks that become independent of their images while no machine has them.
//!
//! Invariant: real images and `qemu-img`; what a guest would read is compared byte by byte.
//! Failure: a test names what was lost, left, or pinned without end.

use std::path::Path;
use std::process::Command;

use podspec::ContainerId;
use serde_json::Value;

use super::*;
use crate::disk::{DesiredDisk, Disk, MemoryPhase, owner};
use crate::testkit::Node;

pub(in crate::disk) fn uid() -> VmUid {
    "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01".parse().unwrap()
}

pub(in crate::disk) fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new(program).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
    done.stdout
}

/// A linked disk, in which a guest has written.
pub(in crate::disk) async fn written() -> Node {
    let node = Node::new().await;
    let desired = DesiredDisk {
        vm: uid(),
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 8 << 20,
        linked: true,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
    let file = node.disks.file(uid());
    let write = "write -P 0x5a 4M 64k";
    run(
        "qemu-io",
        &["-f", "qcow2", "-c", write, file.to_str().unwrap()],
    );
    node
}

/// What a guest reads from the disk.
pub(in crate::disk) fn content(file: &Path) -> Vec<u8> {
    let raw = file.with_extension("compare");
    let names = [file, &raw].map(|path| path.to_str().unwrap());
    run("qemu-img", &["convert", "-O", "raw", names[0], names[1]]);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

pub(in crate::disk) fn backing(file: &Path) -> Option<String> {
    let info = run(
        "qemu-img",
        &["info", "--output=json", file.to_str().unwrap()],
    );
    let info: Value = serde_json::from_slice(&info).unwrap();
    info.get("backing-filename")
        .and_then(Value::as_str)
        .map(str::to_owned)
}

/// The disk is whole, and its image can be removed.
pub(in crate::disk) async fn assert_whole(node: &Node, expected: &[u8]) {
    let file = node.disks.file(uid());
    assert_eq!(backing(&file), None);
    assert!(content(&file) == expected, "the content differs");
    assert!(!node.disks.get(uid()).unwrap().linked);
    assert!(!node.disks.needs_pin(&owner(uid())) && node.disks.base(uid()).is_none());
    assert!(!node.disks.flat_file(uid()).exists());
    let image = node.images.find(&node.image("disk")).unwrap().path;
    node.images.remove(&node.image("disk")).await.unwrap();
    assert!(!image.exists(), "the image is pinned");
    node.disks.usable(uid(), &[&node.image("disk")]).unwrap();
}

#[tokio::test]
async fn a_flattened_disk_has_all_that_it_had_and_needs_no_image() {
    let node = written().await;
    let before = content(&node.disks.file(uid()));
    assert!(backing(&node.disks.file(uid())).is_some());
    node.disks.flatten(uid(), |_| {}).await.unwrap();
    assert_whole(&node, &before).await;
    node.disks.flatten(uid(), |_| {}).await.unwrap();
    let node = node.restarted().await;
    assert!(!node.disks.get(uid()).unwrap().linked);
}

#[tokio::test]
async fn a_copy_that_was_cut_short_is_removed_and_made_again() {
    let node = written().await;
    let before = content(&node.disks.file(uid()));
    std::fs::write(node.disks.flat_file(uid()), "half of it").unwrap();
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    assert!(!node.disks.flat_file(uid()).exists());
    assert!(node.disks.get(uid()).unwrap().linked);
    assert!(content(&node.disks.file(uid())) == before);
    std::fs::write(node.disks.flat_file(uid()), "half of it").unwrap();
    node.disks.flatten(uid(), |_| {}).await.unwrap();
    assert_whole(&node, &before).await;
}

#[tokio::test]
async fn a_copy_in_progress_is_not_collected() {
    let node = written().await;
    let reserved = node.disks.reserve(uid()).await.unwrap();
    std::fs::write(node.disks.flat_file(uid()), "half of it").unwrap();
    node.disks.collect().await.unwrap();
    assert!(node.disks.flat_file(uid()).exists());
    drop(reserved);
    node.disks.collect().await.unwrap();
    assert!(!node.disks.flat_file(uid()).exists());
}

/// The daemon was killed after the disk was whole, and before that was recorded.
#[tokio::test]
async fn a_disk_that_is_whole_is_recorded_as_such_when_it_is_looked_at() {
    let node = written().await;
    let file = node.disks.file(uid());
    let flat = node.disks.flat_file(uid());
    let before = content(&file);
    let reserved = Arc::new(node.disks.reserve(uid()).await.unwrap());
    let copied = node.disks.copy_out(&reserved, &flat, |_| {});
    copied.await.unwrap();
    drop(reserved);
    assert!(!node.disks.settle_promotion(uid()).await.unwrap());
    std::fs::rename(&flat, &file).unwrap();
    let node = node.restarted().await;
    assert!(node.disks.get(uid()).unwrap().linked);
    assert!(node.disks.settle_promotion(uid()).await.unwrap());
    assert_whole(&node, &before).await;
}

/// The image has data in a place where the guest wrote zeros, which a copy leaves out.
#[tokio::test]
async fn a_whole_disk_is_never_read_with_its_image() {
    let node = written().await;
    let file = node.disks.file(uid());
    let flat = node.disks.flat_file(uid());
    let of_image = content(&file).iter().position(|byte| *byte != 0).unwrap();
    let write = format!("write -P 0 {} 64k", of_image / 65_536 * 65_536);
    let name = file.to_str().unwrap();
    run("qemu-io", &["-f", "qcow2", "-c", &write, name]);
    let before = content(&file);
    assert_eq!(before[of_image], 0);
    for target in [&flat, &file.with_file_name("exported")] {
        let reserved = Arc::new(node.disks.reserve(uid()).await.unwrap());
        let copied = node.disks.copy_out(&reserved, target, |_| {});
        copied.await.unwrap();
        assert!(content(target) == before, "the content differs");
        if target == &flat {
            std::fs::rename(&flat, &file).unwrap();
        }
    }
    assert!(!node.disks.get(uid()).unwrap().linked);
}

/// The daemon was killed between the record and the end of the pin.
#[tokio::test]
async fn the_pin_of_a_disk_that_is_recorded_as_whole_is_collected() {
    let node = written().await;
    let as_whole = |disk: &mut Disk| {
        disk.linked = false;
        true
    };
    let whole = node.disks.records.change(&uid(), as_whole).await;
    whole.unwrap();
    let node = node.restarted().await;
    assert!(node.disks.collect_pin(&owner(uid())).await.unwrap());
    assert!(node.disks.base(uid()).is_none());
}

#[tokio::test]
async fn a_disk_that_a_machine_has_or_returns_to_is_left_alone() {
    let node = written().await;
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let refused = node.disks.flatten(uid(), |_| {}).await.unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused:?}");
    assert!(refused.is_transient(), "the machine may end");
    node.disks.give_back(uid(), &holder).await.unwrap();
    node.disks.begin_memory(uid(), vec![], false).await.unwrap();
    for phase in [MemoryPhase::Writing, MemoryPhase::Whole] {
        let set = |disk: &mut Disk| {
            let memory = disk.memory.as_mut().unwrap();
            memory.phase = phase;
            true
        };
        node.disks.records.change(&uid(), set).await.unwrap();
        let refused = node.disks.flatten(uid(), |_| {}).await.unwrap_err();
        let text = refused.to_string();
        assert!(
            text.ends_with("it is being kept for saved memory"),
            "{text}"
        );
        assert!(refused.is_transient(), "the machine may return");
    }
    assert!(node.disks.get(uid()).unwrap().linked);
    assert!(backing(&node.disks.file(uid())).is_some());
}

#[tokio::test]
async fn a_file_that_is_no_disk_is_no_whole_disk() {
    let node = written().await;
    std::fs::write(node.disks.file(uid()), [0; 64]).unwrap();
    let refused = node.disks.settle_promotion(uid()).await.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    assert!(node.disks.get(uid()).unwrap().linked);
    assert!(node.disks.base(uid()).is_some());
}
