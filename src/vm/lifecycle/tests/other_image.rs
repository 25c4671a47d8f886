//! Creation with another image than before.
//!
//! Invariant: the guest's disk goes only when all of the request was accepted.
//! Failure: the disk that is another one, or the one that is left over.

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use podspec::ContainerId;

use super::create::root_of;
use crate::block::{self, Number};
use crate::sandbox::Sandbox;
use crate::testkit::Node;
use crate::vm::{Device, Error, Mount, Owner};

#[tokio::test]
async fn a_refused_request_for_another_image_costs_the_guest_nothing() {
    let node = Node::new().await;
    let first = node.created().await;
    let sandbox = node.row(&first).sandbox.clone();
    let before = root_of(&node, &first);
    node.containers.remove(&first).await.unwrap();
    let annotate = |value: &str| {
        let pair = ("vmlet.dev/fast-deploy".to_owned(), value.to_owned());
        move |row: &mut Sandbox| row.config.annotations.extend([pair])
    };
    let ready = crate::sandbox::state::Phase::Ready;
    let changed = node.sandbox_rows.change(&sandbox, ready, annotate("quick"));
    changed.await.unwrap();
    let refused = node
        .containers
        .create(&sandbox, node.machine_of("other", 1));
    assert!(matches!(refused.await, Err(Error::Machine(_))));
    let changed = node
        .sandbox_rows
        .change(&sandbox, ready, annotate("linked"));
    changed.await.unwrap();
    let again = node.containers.create(&sandbox, node.machine(2)).await;
    assert_eq!(root_of(&node, &again.unwrap()), before);
}

#[tokio::test]
async fn a_volume_that_refuses_a_request_for_another_image_costs_the_guest_nothing() {
    let node = Node::new().await;
    let first = node.created().await;
    let sandbox = node.row(&first).sandbox.clone();
    let before = root_of(&node, &first);
    node.containers.remove(&first).await.unwrap();
    let volume = tempfile::tempdir().unwrap();
    let mut config = node.machine_of("other", 1);
    config.mounts = vec![Mount {
        container_path: "/data".to_owned(),
        host_path: volume.path().display().to_string(),
        ..Mount::default()
    }];
    // There is no file, and no size to make one.
    let disks = "[{mountPath: /data, devicePath: /dev/data}]".to_owned();
    config
        .annotations
        .insert("vmlet.dev/file-disks".to_owned(), disks);
    let refused = node.containers.create(&sandbox, config).await;
    assert!(matches!(refused, Err(Error::FileDisk(_))), "{refused:?}");
    assert!(node.rows.all().is_empty());
    assert_eq!(node.images.owners(), [sandbox.to_string()]);
    let again = node.containers.create(&sandbox, node.machine(2)).await;
    assert_eq!(root_of(&node, &again.unwrap()), before);
}

#[tokio::test]
async fn a_request_for_another_image_that_fails_late_costs_the_guest_nothing() {
    let node = Node::new().await;
    let first = node.created().await;
    let sandbox = node.row(&first).sandbox.clone();
    let before = root_of(&node, &first);
    node.containers.remove(&first).await.unwrap();
    let disk = node.containers.paths().root_disk(&sandbox);
    let unfinished = disk.with_extension("new");
    // The cloud-init disk has no place.
    let seeds = node.containers.paths().seeds();
    std::fs::remove_dir_all(&seeds).unwrap();
    let other = |attempt| node.machine_of("other", attempt);
    let refused = node.containers.create(&sandbox, other(1)).await;
    assert!(matches!(refused, Err(Error::Files(_))), "{refused:?}");
    assert!(!unfinished.exists() && node.rows.all().is_empty());
    std::fs::create_dir(&seeds).unwrap();
    // The new root disk is larger than qcow2 can be.
    let size = ("vmlet.dev/root-volume-size", i64::MAX.to_string());
    let mut large = other(2);
    large.annotations.extend([(size.0.to_owned(), size.1)]);
    let refused = node.containers.create(&sandbox, large).await;
    assert!(matches!(refused, Err(Error::Disk { .. })), "{refused:?}");

    let again = node.containers.create(&sandbox, node.machine(3)).await;
    let again = again.unwrap();
    assert_eq!(root_of(&node, &again), before);
    node.containers.remove(&again).await.unwrap();
    let replaced = node.containers.create(&sandbox, other(4)).await;
    assert_ne!(root_of(&node, &replaced.unwrap()), before);
    assert!(!unfinished.exists());
    assert_eq!(node.images.owners(), [sandbox.to_string()]);
}

#[tokio::test]
async fn another_image_brings_another_disk_and_lets_the_old_image_go() {
    let node = Node::new().await;
    let first = node.created().await;
    let sandbox = node.row(&first).sandbox.clone();
    node.containers.remove(&first).await.unwrap();
    let second = node
        .containers
        .create(&sandbox, node.machine_of("other", 1))
        .await
        .unwrap();
    let other = node.images.find(&node.image("other")).unwrap();
    let pinned = node.images.pinned(sandbox.as_str()).unwrap();
    assert_eq!(pinned.digest, other.digest);
    assert_eq!(
        node.row(&second).spec.image_digest,
        other.digest.to_string()
    );
    let disk = std::fs::read(node.containers.paths().root_disk(&sandbox)).unwrap();
    let base = other.path.to_str().unwrap().as_bytes();
    assert!(disk.windows(base.len()).any(|part| part == base));
}

/// Neither device exists, so that a look at what is on the first is another error.
#[tokio::test]
#[ignore = "needs root"]
async fn the_content_of_a_root_claim_is_looked_at_when_all_devices_are_taken() {
    let node = Node::new().await;
    let scratch = tempfile::tempdir().unwrap();
    let number = |minor| Number { major: 7, minor };
    let device = |path: &str, minor: u64| {
        let host_path = scratch.path().join(minor.to_string());
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        mknod(&host_path, SFlag::S_IFBLK, mode, makedev(7, minor)).unwrap();
        Device {
            container_path: path.to_owned(),
            host_path: host_path.display().to_string(),
            permissions: "rw".to_owned(),
        }
    };
    let mut config = node.machine(0);
    config.devices = vec![device("/", 1 << 18), device("/dev/data", (1 << 18) + 1)];
    let replace = "replace".to_owned();
    config
        .annotations
        .insert("vmlet.dev/root-content".to_owned(), replace);
    let owner = Owner {
        uid: 65_534,
        gid: 65_534,
    };
    let other = ContainerId::generate();
    let blocks = &node.containers.parts.blocks;
    let taken = blocks.take(number((1 << 18) + 1), &other, false, owner);
    taken.await.unwrap();
    let refused = node.containers.create(&node.ready().await, config).await;
    assert!(
        matches!(refused, Err(Error::Block(block::Error::InUse { .. }))),
        "{refused:?}"
    );
    assert!(blocks.holders_of(number(1 << 18)).is_empty());
}
