//! Snapshots of disks that no machine has: taken, reverted to, deleted, and cut short at each step.
//!
//! Invariant: real images and `qemu-img`; what a guest would read is compared byte by byte.
//! Failure: a test names what was lost, or left.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use podspec::ContainerId;
use serde_json::{Value, json};

use super::*;
use crate::disk::model::Phase;
use crate::disk::{DesiredDisk, owner};
use crate::testkit::Node;

mod branches;
mod in_use;
mod leftovers;
mod power_cut;
mod records;
mod refusals;

const SIZE: u64 = 8 << 20;

fn uid() -> VmUid {
    snapshot(0)
}

fn snapshot(n: u8) -> SnapshotUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
        .parse()
        .unwrap()
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
}

async fn with_disk(linked: bool) -> Node {
    let node = Node::new().await;
    let desired = DesiredDisk {
        vm: uid(),
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: SIZE,
        linked,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
    node
}

/// The disk as its domain describes it: no header is followed.
fn chain(disks: &Disks) -> String {
    let file = |path: &Path| json!({"driver": "file", "filename": path});
    let linked = disks.get(uid()).unwrap().linked;
    let base = disks.base(uid()).filter(|_| linked);
    let mut under = base.map_or(Value::Null, |base| {
        let mut image = json!({"driver": base.format.as_str(), "file": file(&base.path)});
        if base.format == crate::images::Format::Qcow2 {
            image["backing"] = Value::Null;
        }
        image
    });
    let files = disks.files(uid());
    for layer in files.below.iter().rev().chain([&files.active]) {
        under = json!({"driver": "qcow2", "file": file(layer), "backing": under});
    }
    format!("json:{under}")
}

/// The guest writes 4 KiB, a part of a cluster.
fn write(disks: &Disks, offset: u64, pattern: u8) {
    let command = format!("write -P {pattern} {offset} 4k");
    run("qemu-io", &["-c", &command, &chain(disks)]);
}

/// What the guest reads from the disk.
fn content(disks: &Disks) -> Vec<u8> {
    let raw = disks.folder(uid()).join("compare");
    let name = raw.to_str().unwrap();
    run("qemu-img", &["convert", "-O", "raw", &chain(disks), name]);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

fn layers_in(disks: &Disks) -> Vec<String> {
    let entries = std::fs::read_dir(disks.layers_directory(uid()));
    let names = entries.into_iter().flatten();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn take(node: &Node, n: u8) -> TakenSnapshot {
    let taken = node.disks.take_snapshot(uid(), snapshot(n)).await;
    taken.unwrap()
}

async fn delete(node: &Node, n: u8) {
    let deleted = node.disks.delete_snapshot(uid(), snapshot(n), |_| {});
    deleted.await.unwrap();
}

#[rstest::rstest]
#[case::linked(true)]
#[case::whole(false)]
#[tokio::test]
async fn a_revert_shows_what_was_there_and_a_deletion_keeps_what_is(#[case] linked: bool) {
    let mut node = with_disk(linked).await;
    write(&node.disks, 0, 1);
    let first = content(&node.disks);
    take(&node, 1).await;
    write(&node.disks, 4096, 2);
    let second = content(&node.disks);
    take(&node, 2).await;
    write(&node.disks, 1 << 20, 3);
    take(&node, 3).await;
    assert_eq!(layers_in(&node.disks), ["1.qcow2", "2.qcow2", "3.qcow2"]);
    let third = content(&node.disks);

    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    assert!(
        content(&node.disks) == first,
        "what was written later shows"
    );
    write(&node.disks, 2 << 20, 4);
    node = node.restarted().await;
    node.disks.revert(uid(), snapshot(2)).await.unwrap();
    assert!(content(&node.disks) == second, "the other branch shows");
    node.disks.revert(uid(), snapshot(3)).await.unwrap();
    assert!(content(&node.disks) == third);

    for n in [2, 1, 3] {
        delete(&node, n).await;
        assert!(
            content(&node.disks) == third,
            "the deletion of {n} lost data"
        );
        node = node.restarted().await;
        assert!(content(&node.disks) == third);
        delete(&node, n).await;
    }
    let disk = node.disks.get(uid()).unwrap();
    assert_eq!((disk.phase, &disk.layers), (Phase::Ready, &None));
    assert!(layers_in(&node.disks).is_empty());
    assert_eq!(node.disks.files(uid()).below, Vec::<PathBuf>::new());
    assert_eq!(node.disks.needs_pin(&owner(uid())), linked);
}

#[tokio::test]
async fn a_snapshot_is_listed_with_its_parent_and_its_own_bytes() {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    let first = take(&node, 1).await;
    assert_eq!(take(&node, 1).await, first, "it is taken once");
    take(&node, 2).await;
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    take(&node, 3).await;
    let disk = node.disks.get(uid()).unwrap();
    let listed = node.disks.snapshots(&disk);
    let parents: Vec<_> = listed.iter().map(|one| (one.uid, one.parent)).collect();
    let child = |n| (snapshot(n), Some(snapshot(1)));
    assert_eq!(parents, [(snapshot(1), None), child(2), child(3)]);
    assert_eq!(listed[0], first);
    assert_eq!((first.virtual_bytes, first.running), (SIZE, false));
    assert!(first.used_bytes > 0 && first.created_at > 0);
    let all: u64 = listed.iter().map(|one| one.used_bytes).sum();
    assert!(node.disks.allocated(uid()) > all, "and the active layer");
    // A layer that two others need stays, and is none of a snapshot.
    delete(&node, 1).await;
    let disk = node.disks.get(uid()).unwrap();
    assert_eq!(disk.layers.as_ref().unwrap().snapshots().len(), 2);
    assert!(
        node.disks
            .snapshots(&disk)
            .iter()
            .all(|one| one.parent.is_none())
    );
}

/// The daemon was killed when the layer was recorded, being written, or complete.
#[rstest::rstest]
#[case::recorded(0)]
#[case::being_written(1)]
#[case::complete(2)]
#[tokio::test]
async fn a_snapshot_that_was_cut_short_is_taken_or_gone(#[case] step: u8) {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    let before = content(&node.disks);
    let change = node.disks.begin_snapshot(uid(), snapshot(1), false).await;
    let change = change.unwrap();
    let file = node.disks.new_layer(uid(), change);
    match step {
        0 => {}
        1 => {
            node.disks.prepare_layers(uid()).await.unwrap();
            std::fs::write(file.with_extension("new"), "half of it").unwrap();
        }
        _ => node.disks.make_layer(uid(), change).await.unwrap(),
    }
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    assert_eq!(node.disks.change(uid()), Some(change), "it may be in use");
    drop(node.disks.reserve(uid()).await.unwrap());
    let taken = node.disks.snapshot(uid(), snapshot(1)).await.unwrap();
    assert_eq!(taken.is_some(), step == 2);
    assert_eq!(layers_in(&node.disks).len(), usize::from(step == 2));
    assert!(content(&node.disks) == before);
    take(&node, 1).await;
    write(&node.disks, 0, 2);
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    assert!(content(&node.disks) == before);
}

/// The emulator wrote to the new layer before the daemon recorded it.
#[tokio::test]
async fn a_layer_that_an_emulator_has_written_to_becomes_active() {
    let node = with_disk(true).await;
    let change = node.disks.begin_snapshot(uid(), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(), change).await.unwrap();
    node.disks
        .set_freezes(uid(), change.layer, true)
        .await
        .unwrap();
    let node = node.restarted().await;
    node.disks.settle_change(uid()).await.unwrap();
    assert_eq!(node.disks.file(uid()), node.disks.new_layer(uid(), change));
    let taken = take(&node, 1).await;
    assert!(taken.running && !taken.quiesced, "{taken:?}");
}

/// The daemon was killed after the child was copied, or in the middle of that.
#[tokio::test]
async fn a_merge_that_was_cut_short_begins_again() {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    take(&node, 1).await;
    write(&node.disks, 0, 2);
    write(&node.disks, 3 << 20, 3);
    let before = content(&node.disks);
    let vm = uid();
    let deleted = node.disks.records.change(&vm, |disk| {
        let layers = disk.layers.as_mut();
        layers.unwrap().delete(snapshot(1))
    });
    deleted.await.unwrap();
    // A part of what is below is copied already.
    let bottom = node.disks.layer_file(uid(), 0);
    let command = "write -P 2 0 4k";
    run(
        "qemu-io",
        &["-f", "qcow2", "-c", command, bottom.to_str().unwrap()],
    );
    let node = node.restarted().await;
    assert!(content(&node.disks) == before);
    // Any deletion finishes it.
    delete(&node, 9).await;
    assert!(content(&node.disks) == before);
    assert_eq!(node.disks.get(uid()).unwrap().phase, Phase::Ready);
    assert!(layers_in(&node.disks).is_empty());
}

#[tokio::test]
async fn files_that_no_record_names_are_removed_and_others_stay() {
    let node = with_disk(true).await;
    take(&node, 1).await;
    delete(&node, 1).await;
    take(&node, 1).await;
    for name in ["1.qcow2", "8.new", "odd"] {
        std::fs::write(node.disks.layers_directory(uid()).join(name), "x").unwrap();
    }
    let reserved = node.disks.reserve(uid()).await.unwrap();
    node.disks.collect().await.unwrap();
    assert_eq!(layers_in(&node.disks).len(), 4, "it is in use");
    drop(reserved);
    node.disks.collect().await.unwrap();
    assert_eq!(layers_in(&node.disks), ["2.qcow2"]);
    node.disks.delete(uid()).await.unwrap();
    assert!(!node.disks.folder(uid()).exists());
}

/// libvirt takes only the upper file back from the user of a machine, who is the next machine's.
#[tokio::test]
async fn a_disk_without_a_machine_has_no_file_of_a_machine_s_user() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let node = with_disk(true).await;
    take(&node, 1).await;
    take(&node, 2).await;
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    let holder = ContainerId::generate();
    node.disks.take(uid(), &holder).await.unwrap();
    let change = node.disks.begin_snapshot(uid(), snapshot(3), true).await;
    node.disks.make_layer(uid(), change.unwrap()).await.unwrap();
    let files: Vec<_> = [0, 1, 3, 4].map(|n| node.disks.layer_file(uid(), n)).into();
    for file in &files {
        std::os::unix::fs::chown(file, Some(4_000_200), Some(4_000_200)).unwrap();
    }
    node.disks.give_back(uid(), &holder).await.unwrap();
    for file in &files {
        let is = std::fs::metadata(file).unwrap();
        assert_eq!((is.uid(), is.gid()), (0, 0), "{}", file.display());
    }
}

#[tokio::test]
async fn a_disk_grows_in_its_active_layer_and_reverts_to_the_size_of_the_snapshot() {
    let node = with_disk(true).await;
    write(&node.disks, SIZE - 4096, 7);
    let small = content(&node.disks);
    take(&node, 1).await;
    node.disks.grow(uid(), 2 * SIZE).await.unwrap();
    write(&node.disks, 2 * SIZE - 4096, 8);
    let large = content(&node.disks);
    assert_eq!(large.len() as u64, 2 * SIZE);
    take(&node, 2).await;
    node.disks.revert(uid(), snapshot(1)).await.unwrap();
    assert_eq!(node.disks.get(uid()).unwrap().virtual_bytes, SIZE);
    assert!(content(&node.disks) == small);
    node.disks.grow(uid(), 2 * SIZE).await.unwrap();
    let grown = content(&node.disks);
    assert!(grown[..small.len()] == small && grown[small.len()..].iter().all(|b| *b == 0));
    node.disks.revert(uid(), snapshot(2)).await.unwrap();
    delete(&node, 1).await;
    assert!(content(&node.disks) == large);
    delete(&node, 2).await;
    assert!(content(&node.disks) == large);
    assert_eq!(node.disks.get(uid()).unwrap().virtual_bytes, 2 * SIZE);
}

#[tokio::test]
async fn an_export_has_all_layers() {
    let node = with_disk(true).await;
    write(&node.disks, 0, 1);
    take(&node, 1).await;
    write(&node.disks, 4096, 2);
    take(&node, 2).await;
    write(&node.disks, 1 << 20, 3);
    let before = content(&node.disks);
    let target = node.disks.folder(uid()).join("exported");
    let reserved = Arc::new(node.disks.reserve(uid()).await.unwrap());
    let copied = node.disks.copy_out(&reserved, &target, |_| {});
    copied.await.unwrap();
    let raw = target.with_extension("raw");
    let names = [&target, &raw].map(|path| path.to_str().unwrap());
    run(
        "qemu-img",
        &["convert", "-f", "qcow2", "-O", "raw", names[0], names[1]],
    );
    assert!(std::fs::read(raw).unwrap() == before);
}
