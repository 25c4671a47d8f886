//! Disks without machines: made, shared out, taken away; what a crash leaves.
//!
//! Invariant: real images and `qemu-img`, a database in a file, so that a second service finds what
//! the first left.
//! Failure: a test names what was left or lost.

use podspec::ContainerId;

use super::*;
use crate::testkit::Node;

mod power_cut;

fn uid(n: u8) -> VmUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
        .parse()
        .unwrap()
}

fn desired(node: &Node, vm: VmUid, linked: bool) -> DesiredDisk {
    DesiredDisk {
        vm,
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 0,
        linked,
    }
}

#[tokio::test]
async fn a_disk_that_is_ready_is_never_touched_again() {
    let node = Node::new().await;
    let first = desired(&node, uid(1), true);
    node.disks.make(&first, |_| {}).await.unwrap();
    let file = node.disks.file(uid(1));
    std::fs::write(&file, "the guest's").unwrap();
    let other = DesiredDisk {
        image: node.image("other"),
        size: 1 << 30,
        ..first
    };
    node.disks.make(&other, |_| {}).await.unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"the guest's");
}

#[tokio::test]
async fn a_disk_grows_and_never_shrinks_nor_under_memory() {
    let mut node = Node::new().await;
    let vm = uid(1);
    let mib = 1 << 20;
    node.disks
        .make(&desired(&node, vm, true), |_| {})
        .await
        .unwrap();
    let file = node.disks.file(vm);
    let size = |file: &Path| -> u64 {
        let mut info = std::process::Command::new("qemu-img");
        let info = info.args(["info", "--output=json"]).arg(file).output();
        let info: serde_json::Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
        info["virtual-size"].as_u64().unwrap()
    };
    let first = size(&file);
    for (wanted, then) in [(0, first), (64 * mib, 64 * mib), (32 * mib, 64 * mib)] {
        node.disks.grow(vm, wanted).await.unwrap();
        assert_eq!(size(&file), then);
        assert_eq!(node.disks.get(vm).unwrap().virtual_bytes, then);
        node = node.restarted().await;
    }
    // One that cannot grow is as it was.
    node.disks.grow(vm, u64::MAX).await.unwrap_err();
    assert_eq!(size(&file), 64 * mib);
    node.disks.begin_memory(vm, vec![], false).await.unwrap();
    std::fs::write(node.disks.unfinished_memory(vm), "LibvirtQemudSave").unwrap();
    assert!(node.disks.settle_memory(vm).await.unwrap());
    node.disks.grow(vm, 128 * mib).await.unwrap();
    assert_eq!(size(&file), 64 * mib, "its guest would not know");
    let absent = node.disks.grow(uid(2), mib).await;
    assert!(matches!(absent, Err(Error::Missing(_))));
}

#[tokio::test]
async fn what_a_crash_left_of_a_disk_is_taken_up_or_undone() {
    let node = Node::new().await;
    let record = Disk {
        vm: uid(1),
        name: String::new(),
        phase: Phase::Making,
        image: node.image("disk"),
        digest: String::new(),
        virtual_bytes: 0,
        linked: true,
        holder: None,
        memory: None,
        layers: None,
        next_layer: None,
        generation: None,
    };
    node.disks.records.insert(record).await.unwrap();
    std::fs::create_dir_all(node.disks.folder(uid(1))).unwrap();
    let half = node.disks.folder(uid(1)).join("root.new");
    std::fs::write(&half, "half of it").unwrap();
    let error = node.disks.usable(uid(1), &[]).unwrap_err();
    assert!(error.to_string().contains("being made"), "{error}");
    let node = node.restarted().await;
    node.disks
        .make(&desired(&node, uid(1), true), |_| {})
        .await
        .unwrap();
    assert!(node.disks.file(uid(1)).exists() && !half.exists());
    node.disks.undo(uid(1)).await.unwrap();
    assert!(node.disks.file(uid(1)).exists(), "a ready disk was undone");
}

#[tokio::test]
async fn the_image_of_a_linked_disk_stays_until_the_disk_goes() {
    let node = Node::new().await;
    for (vm, linked) in [(uid(1), true), (uid(2), false)] {
        node.disks
            .make(&desired(&node, vm, linked), |_| {})
            .await
            .unwrap();
        assert_eq!(node.disks.needs_pin(&owner(vm)), linked);
        assert_eq!(node.disks.base(vm).is_some(), linked);
    }
    node.images.remove(&node.image("disk")).await.unwrap();
    let base = node.disks.base(uid(1)).unwrap().path;
    assert!(base.exists());
    node.disks
        .usable(uid(1), &[&node.image("disk")])
        .expect("its image was removed from the lists only");
    node.disks.delete(uid(1)).await.unwrap();
    assert!(!base.exists());
    node.disks.delete(uid(1)).await.unwrap();
    assert!(node.disks.get(uid(1)).is_none());
    node.disks.usable(uid(2), &[&node.image("disk")]).unwrap();
}

#[tokio::test]
async fn a_disk_goes_with_its_image_only() {
    let node = Node::new().await;
    let made = desired(&node, uid(1), true);
    node.disks.make(&made, |_| {}).await.unwrap();
    let digest = node.disks.get(uid(1)).unwrap().digest.clone();
    for fits in [node.image("disk"), digest] {
        node.disks.usable(uid(1), &["", &fits]).unwrap();
    }
    let other = node.image("other");
    for odd in ["", &other, "no such image"] {
        let error = node.disks.usable(uid(1), &[odd]).unwrap_err();
        assert!(matches!(error, Error::OtherImage { .. }), "{odd}: {error}");
    }
}

#[tokio::test]
async fn one_container_has_a_disk_and_it_is_not_removed_under_it() {
    let node = Node::new().await;
    let one = ContainerId::generate();
    let two = ContainerId::generate();
    assert!(matches!(
        node.disks.take(uid(1), &one).await,
        Err(Error::Lost { .. })
    ));
    let made = desired(&node, uid(1), true);
    node.disks.make(&made, |_| {}).await.unwrap();
    for _ in 0..2 {
        node.disks.take(uid(1), &one).await.unwrap();
    }
    let lock = std::fs::read_to_string(node.disks.folder(uid(1)).join("lock")).unwrap();
    assert!(lock.contains(one.as_str()) && lock.contains(&uid(1).to_string()));
    let refused = node.disks.take(uid(1), &two).await.unwrap_err();
    assert!(matches!(refused, Error::InUse { holder, .. } if holder == one));
    assert!(matches!(
        node.disks.delete(uid(1)).await,
        Err(Error::InUse { .. })
    ));
    node.disks.give_back(uid(1), &two).await.unwrap();
    assert!(node.disks.is_held_by(uid(1), &one));
    node.disks.give_back(uid(1), &one).await.unwrap();
    node.disks.take(uid(1), &two).await.unwrap();
}

#[tokio::test]
async fn memory_that_was_not_finished_is_no_memory() {
    let node = Node::new().await;
    let made = desired(&node, uid(1), true);
    node.disks.make(&made, |_| {}).await.unwrap();
    for (text, whole) in [("LibvirtQemudPart", false), ("LibvirtQemudSave", true)] {
        node.disks
            .begin_memory(uid(1), vec![], false)
            .await
            .unwrap();
        std::fs::write(node.disks.unfinished_memory(uid(1)), text).unwrap();
        assert_eq!(node.disks.settle_memory(uid(1)).await.unwrap(), whole);
        assert_eq!(node.disks.get(uid(1)).unwrap().has_memory(), whole);
        assert_eq!(node.disks.memory_file(uid(1)).exists(), whole);
        assert!(!node.disks.unfinished_memory(uid(1)).exists());
    }
    node.disks.use_memory(uid(1)).await.unwrap();
    assert!(
        !node.disks.settle_memory(uid(1)).await.unwrap(),
        "a guest went on from it"
    );
    assert!(!node.disks.memory_file(uid(1)).exists());
    assert!(node.disks.get(uid(1)).unwrap().memory.is_none());
}

#[tokio::test]
async fn a_disk_that_the_database_has_forgotten_is_neither_removed_nor_taken_for_a_new_one() {
    let node = Node::new().await;
    let made = desired(&node, uid(1), false);
    node.disks.make(&made, |_| {}).await.unwrap();
    let lose = |t: &rusqlite::Transaction<'_>| t.execute_batch("DELETE FROM vm_disks");
    node.db.write(lose).await.unwrap();
    let half = node.disks.folder(uid(2));
    std::fs::create_dir_all(&half).unwrap();
    std::fs::write(half.join("root.new"), "half of it").unwrap();
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    let file = node.disks.file(uid(1));
    assert!(file.exists(), "a guest's data are gone");
    assert!(!half.exists(), "what was never whole is left");
    let refused = node.disks.make(&made, |_| {}).await.unwrap_err();
    assert!(!refused.is_transient());
    let text = refused.to_string();
    assert!(text.contains(file.to_str().unwrap()), "{text}");
    assert!(node.disks.get(uid(1)).is_none() && file.exists());
    node.disks.delete(uid(1)).await.unwrap();
    assert!(!file.exists(), "a task that removes it, does");
    node.disks.make(&made, |_| {}).await.unwrap();
}

#[tokio::test]
async fn memory_that_cannot_be_cleared_away_is_never_taken_for_the_next() {
    let node = Node::new().await;
    let made = desired(&node, uid(1), true);
    node.disks.make(&made, |_| {}).await.unwrap();
    // What cannot be removed: the daemon might as well have ended here.
    std::fs::create_dir_all(node.disks.memory_file(uid(1)).join("x")).unwrap();
    let begun = node.disks.begin_memory(uid(1), vec![], false).await;
    begun.unwrap_err();
    let memory = node.disks.get(uid(1)).unwrap().memory.clone();
    let phase = memory.map(|memory| memory.phase);
    assert_ne!(phase, Some(MemoryPhase::Writing));
}

#[tokio::test]
async fn a_disk_counts_from_its_making_to_its_removal() {
    let node = Node::new().await;
    for (vm, linked) in [(uid(1), true), (uid(2), false)] {
        let made = desired(&node, vm, linked);
        node.disks.make(&made, |_| {}).await.unwrap();
    }
    let places = [1, 2].map(|n| format!("disks/{}", uid(n)));
    assert_eq!(node.counted().await, places);
    let node = node.restarted().await;
    assert_eq!(node.counted().await, places);
    for vm in [uid(1), uid(2)] {
        node.disks.delete(vm).await.unwrap();
    }
    assert!(node.counted().await.is_empty());
    // One that cannot be made.
    let mut absent = desired(&node, uid(3), false);
    absent.size = u64::MAX;
    node.disks.make(&absent, |_| {}).await.unwrap_err();
    assert!(node.counted().await.is_empty());
}
