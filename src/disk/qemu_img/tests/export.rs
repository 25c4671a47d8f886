//! Copies of disks: what they claim, and what they keep others from.
//!
//! Invariant: as of the other tests.
//! Failure: the words or the claim that differ.

use std::sync::{Arc, Weak};

use super::*;

/// More than a file system has free.
const LARGE: u64 = 32 << 40;

fn source(disk: &Path) -> (Source<'_>, Weak<()>) {
    let guard = Arc::new(());
    let held = Arc::downgrade(&guard);
    let source = Source {
        disk,
        below: &[],
        base: None,
        size: LARGE,
        access: Access::Lent,
        guard,
    };
    (source, held)
}

/// A program that waits in the middle of a copy, with the space of a node.
async fn copying(dir: &Path) -> (QemuImg, PathBuf) {
    let node = TestNode::new(dir);
    let (program, begun, _) = held(dir, "convert", "exit 1");
    let budget = node.qemu_img(None, 0).await.budget;
    (program.within(budget), begun)
}

#[tokio::test]
async fn a_copy_claims_what_its_disk_has_and_ends_when_nothing_is_left_for_more() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, target) = files(dir.path());
    let (program, begun) = copying(dir.path()).await;
    let budget = program.budget.clone();
    let to = target.clone();
    let copied = tokio::spawn(async move {
        let from = source(&disk).0;
        program.copy_out(from, &to, |_| {}).await
    });
    tokio::fs::read(&begun).await.unwrap();
    let other = dir.path().join("other");
    drop(budget.claim(&other, 1, 1).await.unwrap());
    let all = budget.claim(&other, 1, u64::MAX).await.unwrap();
    let copy = File::options().write(true).open(&target).unwrap();
    nix::fcntl::posix_fallocate(&copy, 0, 1 << 30).unwrap();
    let failed = copied.await.unwrap().unwrap_err();
    assert!(failed.is_full(), "{failed}");
    assert!(failed.reason.contains("(images.reserve)"), "{failed}");
    assert!(!target.exists());
    drop(all);
}

#[tokio::test]
async fn others_are_kept_from_a_disk_until_it_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, target) = files(dir.path());
    let (program, begun) = copying(dir.path()).await;
    let foreign = program.foreign.clone();
    let owner = disk.display().to_string();
    let (sender, guard) = tokio::sync::oneshot::channel();
    let copied = tokio::spawn(async move {
        let (from, held) = source(&disk);
        sender.send(held).unwrap();
        program.copy_out(from, &target, |_| {}).await
    });
    let guard = guard.await.unwrap();
    tokio::fs::read(&begun).await.unwrap();
    while foreign.is_taken(&owner) {
        tokio::task::yield_now().await;
    }
    let hung = foreign.hold(owner.clone());
    copied.abort();
    assert!(copied.await.unwrap_err().is_cancelled());
    assert!(guard.upgrade().is_some(), "its disk is not taken back");
    drop(hung);
    foreign.look(&owner, || ()).await.unwrap();
    assert!(guard.upgrade().is_none());
}
