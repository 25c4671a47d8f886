//! Manifests beside real disks.
//!
//! Invariant: a directory and a database of each test's own.
//! Failure: what a reader found.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use podspec::{ContainerId, VmUid};
use tokio::time::timeout;

use super::*;
use crate::testkit::Node;

fn vm(n: u8) -> VmUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
        .parse()
        .unwrap()
}

fn manifest(text: &str) -> Manifest {
    Manifest::new("c-1", text.as_bytes().to_vec()).unwrap()
}

fn path(node: &Node, vm: VmUid) -> PathBuf {
    node.disks.file(vm).with_file_name("manifest")
}

#[tokio::test]
async fn a_manifest_is_kept_over_a_restart_and_replaced_by_another() {
    let node = Node::new().await;
    node.make_disk(vm(1)).await;
    assert_eq!(node.disks.manifest_summary(vm(1)), None);
    for text in ["one", "the second"] {
        node.disks
            .set_manifest(vm(1), manifest(text))
            .await
            .unwrap();
        assert_eq!(node.disks.manifest(vm(1)).unwrap(), Some(manifest(text)));
        let summary = node.disks.manifest_summary(vm(1)).unwrap();
        assert_eq!(
            (summary.bytes, summary.cluster.as_str()),
            (text.len(), "c-1")
        );
    }
    let mode = std::fs::metadata(path(&node, vm(1))).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    // Whatever a write has left that was cut short.
    std::fs::write(path(&node, vm(1)).with_extension("new"), "half of").unwrap();
    let node = node.restarted().await;
    let kept = node.disks.manifest_summary(vm(1)).unwrap();
    assert_eq!(kept.bytes, "the second".len());
    node.disks
        .set_manifest(vm(1), manifest("third"))
        .await
        .unwrap();
    assert_eq!(node.disks.manifest(vm(1)).unwrap(), Some(manifest("third")));
}

#[tokio::test]
async fn the_same_manifest_is_not_written_again() {
    let node = Node::new().await;
    node.make_disk(vm(1)).await;
    let inode = |node: &Node| std::fs::metadata(path(node, vm(1))).unwrap().ino();
    node.disks
        .set_manifest(vm(1), manifest("one"))
        .await
        .unwrap();
    let first = inode(&node);
    node.disks
        .set_manifest(vm(1), manifest("one"))
        .await
        .unwrap();
    assert_eq!(inode(&node), first);
    node.disks
        .set_manifest(vm(1), manifest("two"))
        .await
        .unwrap();
    assert_ne!(inode(&node), first);
}

#[tokio::test]
async fn a_manifest_goes_with_its_disk_and_none_comes_without_one() {
    let node = Node::new().await;
    let refused = node.disks.set_manifest(vm(1), manifest("one")).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    node.make_disk(vm(1)).await;
    node.disks
        .set_manifest(vm(1), manifest("one"))
        .await
        .unwrap();
    node.disks.delete(vm(1)).await.unwrap();
    assert!(!path(&node, vm(1)).exists());
    assert_eq!(node.disks.manifest_summary(vm(1)), None);
    let refused = node.disks.set_manifest(vm(1), manifest("one")).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    assert!(!path(&node, vm(1)).parent().unwrap().exists());
}

#[tokio::test]
async fn a_write_whose_caller_has_left_keeps_the_others_waiting() {
    let node = Node::new().await;
    node.make_disk(vm(1)).await;
    let pipe = path(&node, vm(1));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // It reads what is there first, and a pipe without a writer lets it wait.
    let first = node.disks.set_manifest(vm(1), manifest("one"));
    assert!(timeout(Duration::ZERO, first).await.is_err());
    let turns = &node.disks.manifests.turns;
    let is_free = turns.try_lock(&vm(1)).is_some();
    tokio::task::spawn_blocking(move || drop(File::options().write(true).open(pipe)))
        .await
        .unwrap();
    assert!(!is_free, "two writers of one file");
    node.disks
        .set_manifest(vm(1), manifest("two"))
        .await
        .unwrap();
    assert_eq!(node.disks.manifest(vm(1)).unwrap(), Some(manifest("two")));
}

#[tokio::test]
async fn what_is_no_manifest_counts_as_none() {
    let node = Node::new().await;
    node.make_disk(vm(1)).await;
    for content in [
        &b""[..],
        b"no line",
        b"a cluster\ntext",
        b"c-1\n\xff",
        &[b'x'; 1 << 20],
    ] {
        std::fs::write(path(&node, vm(1)), content).unwrap();
        assert_eq!(node.disks.manifest(vm(1)).unwrap(), None);
    }
    node.disks
        .set_manifest(vm(1), manifest("one"))
        .await
        .unwrap();
    assert_eq!(node.disks.manifest(vm(1)).unwrap(), Some(manifest("one")));
}

#[test]
fn a_manifest_has_a_cluster_and_a_bounded_text() {
    let most = Manifest::new("c-1", vec![b'x'; MOST]).unwrap();
    assert_eq!(Manifest::parse(most.content().into_bytes()), Some(most));
    let refused = |cluster: &str, text: Vec<u8>| Manifest::new(cluster, text).unwrap_err();
    assert!(refused("c-1", vec![b'x'; MOST + 1]).contains("64 KiB"));
    assert!(refused("c-1", vec![0xff]).contains("UTF-8"));
    for cluster in ["", "a b", "a\nb", &"c".repeat(65)] {
        assert!(refused(cluster, Vec::new()).contains("UID"), "{cluster:?}");
    }
}

#[tokio::test]
async fn a_disk_is_taken_over_by_a_machine_of_its_name_when_no_container_has_it() {
    let node = Node::new().await;
    let missing = node.disks.adoptable(vm(1), "ns/vm").unwrap_err();
    assert!(matches!(missing, Error::Missing(_)) && !missing.is_transient());
    node.make_disk(vm(1)).await;
    let name = node.disks.get(vm(1)).unwrap().name.clone();
    node.disks.adoptable(vm(1), &name).unwrap();
    let other = node.disks.adoptable(vm(1), "other/vm").unwrap_err();
    assert!(matches!(other, Error::OtherMachine { .. }) && !other.is_transient());
    let container = ContainerId::generate();
    node.disks.take(vm(1), &container).await.unwrap();
    let busy = node.disks.adoptable(vm(1), &name).unwrap_err();
    assert!(matches!(busy, Error::InUse { .. }) && busy.is_transient());
    node.disks.give_back(vm(1), &container).await.unwrap();
    node.disks.adoptable(vm(1), &name).unwrap();
}
