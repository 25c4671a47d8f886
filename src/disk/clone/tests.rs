//! Clones: of snapshots and of disks, refused, and cut short at each step.
//!
//! Invariant: real images and `qemu-img`; what a guest would read is compared byte by byte.
//! Failure: a test names what was lost, or left.

use std::path::Path;
use std::process::Command;

use podspec::ContainerId;
use serde_json::Value;

use super::*;
use crate::disk::{DesiredDisk, owner};
use crate::testkit::{Mounted, Node};

const SIZE: u64 = 8 << 20;

fn uid(n: u8) -> VmUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
        .parse()
        .unwrap()
}

const SOURCE: u8 = 1;
const CLONE: u8 = 2;
const SNAPSHOT: u8 = 3;

fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new(program).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
    done.stdout
}

fn desired(snapshot: bool, size: u64) -> DesiredClone {
    DesiredClone {
        vm: uid(CLONE),
        name: "default/clone".to_owned(),
        source: uid(SOURCE),
        snapshot: snapshot.then(|| uid(SNAPSHOT)),
        size,
    }
}

/// A disk in which a guest has written, then a snapshot was taken, then the guest has written again.
async fn with_source(linked: bool) -> Node {
    let node = Node::new().await;
    make_source(&node, linked).await;
    node
}

async fn make_source(node: &Node, linked: bool) {
    let made = DesiredDisk {
        vm: uid(SOURCE),
        name: "default/source".to_owned(),
        image: node.image("disk"),
        url: None,
        size: SIZE,
        linked,
    };
    node.disks.make(&made, |_| {}).await.unwrap();
    write(&node.disks.file(uid(SOURCE)), 4 << 20, 0x5a);
    let taken = node.disks.take_snapshot(uid(SOURCE), uid(SNAPSHOT));
    taken.await.unwrap();
    write(&node.disks.file(uid(SOURCE)), 5 << 20, 0x3c);
}

fn write(file: &Path, offset: u64, pattern: u8) {
    let command = format!("write -P {pattern} {offset} 64k");
    let name = file.to_str().unwrap();
    run("qemu-io", &["-f", "qcow2", "-c", &command, name]);
}

/// What a guest reads from the clone.
fn content(node: &Node) -> Vec<u8> {
    let file = node.disks.file(uid(CLONE));
    let raw = file.with_extension("compare");
    let names = [&*file, &raw].map(|path| path.to_str().unwrap());
    run("qemu-img", &["convert", "-O", "raw", names[0], names[1]]);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

fn info(file: &Path) -> Value {
    let answer = run(
        "qemu-img",
        &["info", "--output=json", file.to_str().unwrap()],
    );
    serde_json::from_slice(&answer).unwrap()
}

fn has(bytes: &[u8], offset: usize, pattern: u8) -> bool {
    let written = &bytes[offset..offset + (64 << 10)];
    written.iter().all(|byte| *byte == pattern)
}

async fn clone(node: &Node, snapshot: bool, size: u64) -> Result<()> {
    let desired = desired(snapshot, size);
    node.disks.clone_disk(&desired, |_| {}).await
}

/// Nothing is left of the clone.
async fn assert_nothing(node: &Node) {
    node.disks.undo(uid(CLONE)).await.unwrap();
    assert!(node.disks.get(uid(CLONE)).is_none());
    assert!(!node.disks.folder(uid(CLONE)).exists());
}

#[rstest::rstest]
#[case::linked_snapshot(true, true, 0)]
#[case::snapshot(false, true, 64 << 20)]
#[case::linked_disk(true, false, 64 << 20)]
#[case::disk(false, false, SIZE)]
#[tokio::test]
async fn a_clone_has_all_of_its_source_and_outlives_it(
    #[case] linked: bool,
    #[case] snapshot: bool,
    #[case] size: u64,
) {
    let node = with_source(linked).await;
    let cloned = clone(&node, snapshot, size);
    cloned.await.unwrap();
    let record = node.disks.get(uid(CLONE)).unwrap();
    let source = node.disks.get(uid(SOURCE)).unwrap();
    assert_eq!(record.phase, Phase::Ready);
    assert_eq!(record.virtual_bytes, size.max(SIZE));
    assert_eq!(record.digest, source.digest);
    assert!(!record.linked && record.layers.is_none());
    let found = info(&node.disks.file(uid(CLONE)));
    assert_eq!(found["virtual-size"], size.max(SIZE));
    assert_eq!(found.get("backing-filename"), None);

    // The source is free, and goes with its snapshots and its image.
    node.disks.reserve(uid(SOURCE)).await.unwrap();
    let bytes = content(&node);
    node.disks.delete(uid(SOURCE)).await.unwrap();
    let image = node.images.find(&node.image("disk")).unwrap().path;
    node.images.remove(&node.image("disk")).await.unwrap();
    assert!(!image.exists(), "the image is pinned");
    let node = node.restarted().await;
    node.disks
        .usable(uid(CLONE), &[podspec::names::NO_IMAGE])
        .unwrap();
    assert!(!node.disks.needs_pin(&owner(uid(CLONE))));
    assert!(content(&node) == bytes);
    assert!(has(&bytes, 4 << 20, 0x5a), "what the snapshot has is lost");
    let later = has(&bytes, 5 << 20, 0x3c);
    assert_eq!(later, !snapshot, "what was written after the snapshot");
}

#[tokio::test]
async fn a_clone_that_is_complete_is_never_touched_again() {
    let node = with_source(true).await;
    let first = desired(true, 0);
    node.disks.clone_disk(&first, |_| {}).await.unwrap();
    write(&node.disks.file(uid(CLONE)), 0, 0x77);
    let node = node.restarted().await;
    node.disks.clone_disk(&first, |_| {}).await.unwrap();
    assert!(has(&content(&node), 0, 0x77));
}

/// What a daemon that was killed has left, and whether the file had its name by then.
#[rstest::rstest]
#[case::recorded(None)]
#[case::in_part(Some("root.new"))]
#[case::named(Some("root.qcow2"))]
#[tokio::test]
async fn a_clone_that_was_cut_short_begins_again(#[case] left: Option<&str>) {
    let node = with_source(true).await;
    let desired_clone = desired(true, 0);
    let made = node
        .disks
        .insert(making(desired_clone.vm, &desired_clone.name))
        .await;
    made.unwrap();
    if let Some(left) = left {
        let folder = node.disks.folder(uid(CLONE));
        make_folder(&folder).await.unwrap();
        // That of another source, perhaps.
        std::fs::write(folder.join(left), "something else").unwrap();
    }
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    let refused = node
        .disks
        .usable(uid(CLONE), &[podspec::names::NO_IMAGE])
        .unwrap_err();
    assert!(refused.to_string().contains("being made"), "{refused}");
    let cloned = clone(&node, true, 0);
    cloned.await.unwrap();
    assert!(has(&content(&node), 4 << 20, 0x5a));
    assert!(!node.disks.folder(uid(CLONE)).join("root.new").exists());
}

#[rstest::rstest]
#[case::no_disk(DesiredClone { source: uid(9), ..desired(false, 0) }, "has no disk")]
#[case::no_snapshot(DesiredClone { snapshot: Some(uid(9)), ..desired(true, 0) }, "has no snapshot")]
#[case::smaller(desired(true, SIZE - 1), "never made smaller")]
#[case::other_namespace(
    DesiredClone { name: "other/clone".to_owned(), ..desired(true, 0) },
    "another namespace"
)]
#[case::no_namespace(DesiredClone { name: "clone".to_owned(), ..desired(false, 0) }, "another namespace")]
#[tokio::test]
async fn what_cannot_be_cloned_is_refused_for_good(#[case] odd: DesiredClone, #[case] words: &str) {
    let node = with_source(true).await;
    let refused = node.disks.clone_disk(&odd, |_| {}).await.unwrap_err();
    assert!(refused.to_string().contains(words), "{refused}");
    assert!(!refused.is_transient());
    assert_nothing(&node).await;
    // Nothing holds the source.
    node.disks.reserve(uid(SOURCE)).await.unwrap();
    let deleted = node
        .disks
        .delete_snapshot(uid(SOURCE), uid(SNAPSHOT), |_| {});
    deleted.await.unwrap();
}

#[tokio::test]
async fn a_machine_on_the_source_keeps_only_a_clone_of_the_disk_itself_away() {
    let node = with_source(true).await;
    let container = ContainerId::generate();
    node.disks.take(uid(SOURCE), &container).await.unwrap();
    let cloned = clone(&node, false, 0);
    let refused = cloned.await.unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }) && refused.is_transient());
    let cloned = clone(&node, true, 0);
    cloned.await.unwrap();
    assert!(has(&content(&node), 4 << 20, 0x5a));
}

#[tokio::test]
async fn the_disk_of_a_suspended_machine_is_incomplete_without_its_memory() {
    let node = with_source(true).await;
    let source = uid(SOURCE);
    node.disks
        .begin_memory(source, vec![], false)
        .await
        .unwrap();
    std::fs::write(node.disks.unfinished_memory(source), "LibvirtQemudSave").unwrap();
    assert!(node.disks.settle_memory(source).await.unwrap());
    let cloned = clone(&node, false, 0);
    assert!(matches!(cloned.await, Err(Error::MemoryFits(_))));
    let cloned = clone(&node, true, 0);
    cloned.await.unwrap();
}

#[tokio::test]
async fn a_guest_finds_out_about_a_clone_and_a_revert_and_about_nothing_else() {
    let node = with_source(true).await;
    let source = uid(SOURCE);
    let first = node.disks.generation(source).await.unwrap();
    let taken = node.disks.take_snapshot(source, uid(9)).await;
    taken.unwrap();
    let node = node.restarted().await;
    assert_eq!(node.disks.generation(source).await.unwrap(), first);
    let cloned = clone(&node, true, 0);
    cloned.await.unwrap();
    let clone = node.disks.generation(uid(CLONE)).await.unwrap();
    assert_ne!(clone, first);
    node.disks.revert(source, uid(SNAPSHOT)).await.unwrap();
    let second = node.disks.generation(source).await.unwrap();
    assert!(second != first && second != clone);
    let node = node.restarted().await;
    assert_eq!(node.disks.generation(source).await.unwrap(), second);
    let absent = node.disks.generation(uid(8)).await;
    assert!(matches!(absent, Err(Error::Missing(_))));
}

/// By a daemon that was killed while it grew, or by an emulator that its guest has taken over.
#[rstest::rstest]
#[case::disk(false)]
#[case::snapshot(true)]
#[tokio::test]
async fn a_header_with_another_size_is_found_before_anything_is_copied(#[case] snapshot: bool) {
    let node = with_source(true).await;
    let file = if snapshot {
        node.disks.layer_file(uid(SOURCE), 0)
    } else {
        node.disks.file(uid(SOURCE))
    };
    let name = file.to_str().unwrap();
    run("qemu-img", &["resize", "-q", "-f", "qcow2", name, "16M"]);
    let refused = clone(&node, snapshot, 0).await.unwrap_err();
    assert!(matches!(refused, Error::SizeDiffers { has, .. } if has == 16 << 20));
    assert!(!refused.is_transient());
    assert!(!node.disks.folder(uid(CLONE)).exists(), "it was copied");
    assert_nothing(&node).await;
}

/// The same disk with the same steps on both.
#[rstest::rstest]
#[case::shared(Mounted::btrfs(1 << 30), true)]
#[case::written(Mounted::tmpfs(1 << 30), false)]
#[tokio::test]
#[ignore = "needs root"]
async fn clones_and_promotions_take_space_only_where_blocks_cannot_be_shared(
    #[case] files: Mounted,
    #[case] is_shared: bool,
) {
    const CONTENT: usize = 64 << 20;
    const METADATA: u64 = 8 << 20;
    let node = Node::below(files.path()).await;
    assert_eq!(node.disks.copies_share_blocks(), Some(is_shared));
    let source = uid(SOURCE);
    let made = DesiredDisk {
        vm: source,
        name: "default/source".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 128 << 20,
        linked: true,
    };
    node.disks.make(&made, |_| {}).await.unwrap();
    let noise = files.path().join("noise");
    let random = std::iter::repeat_with(|| fastrand::u8(..));
    let random: Vec<u8> = random.take(CONTENT).collect();
    std::fs::write(&noise, random).unwrap();
    let command = format!("write -s {} 32M 64M", noise.display());
    let name = node.disks.file(source).display().to_string();
    run("qemu-io", &["-f", "qcow2", "-c", &command, &name]);
    std::fs::remove_file(&noise).unwrap();

    let before = files.used();
    clone(&node, false, 0).await.unwrap();
    let cloned = files.used().saturating_sub(before);
    assert_eq!(cloned < METADATA, is_shared, "{cloned} bytes more");
    let copy = node.disks.file(uid(CLONE)).display().to_string();
    run("qemu-img", &["compare", "-q", &name, &copy]);

    // Both files are there, as long as the old one is open.
    let old = std::fs::File::open(&name).unwrap();
    let before = files.used();
    node.disks.flatten(source, |_| {}).await.unwrap();
    let promoted = files.used().saturating_sub(before);
    drop(old);
    assert_eq!(promoted < METADATA, is_shared, "{promoted} bytes more");
    run("qemu-img", &["compare", "-q", &name, &copy]);
}
