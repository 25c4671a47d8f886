//! What a disk and the one that is to replace it count.
//!
//! Invariant: as of the other tests.
//! Failure: the sum of all disks that the refusal of another one names.

use super::*;

/// A node with a disk of 6 MiB, within a budget of 10.
struct Counting {
    dir: tempfile::TempDir,
    node: TestNode,
    image: PathBuf,
    disk: PathBuf,
    qemu_img: QemuImg,
}

impl Counting {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (image, _) = files(dir.path());
        let node = TestNode::new(dir.path());
        let qemu_img = node.qemu_img(Some(10 << 20), 0).await;
        let disk = node.place("pods/a/root.qcow2");
        qemu_img.overlay(&disk, raw(&image), 6 << 20).await.unwrap();
        Self {
            dir,
            node,
            image,
            disk,
            qemu_img,
        }
    }

    fn directory(&self) -> &Path {
        self.disk.parent().unwrap()
    }

    fn beside(&self) -> PathBuf {
        self.disk.with_file_name("root.new")
    }

    async fn make_beside(&self, mib: u64) {
        let beside = self.beside();
        let made = self.qemu_img.overlay(&beside, raw(&self.image), mib << 20);
        made.await.unwrap();
    }

    /// Asserts that all disks together have so many MiB.
    async fn assert_counted(&self, mib: u64) {
        let other = self.node.place("pods/b/root.new");
        let refused = self.qemu_img.overlay(&other, raw(&self.image), 10 << 20);
        let reason = refused.await.unwrap_err().reason;
        let wanted = format!("have {} bytes", mib << 20);
        assert!(reason.contains(&wanted), "{wanted}: {reason}");
    }

    async fn restarted(mut self) -> Self {
        self.qemu_img = self.node.qemu_img(Some(10 << 20), 0).await;
        self
    }
}

#[tokio::test]
async fn the_larger_of_a_disk_and_the_one_beside_it_counts_while_both_are_there() {
    let counting = Counting::new().await;
    for (beside, both) in [(2, 6), (8, 8), (7, 7)] {
        counting.make_beside(beside).await;
        counting.assert_counted(both).await;
    }
    let counting = counting.restarted().await;
    counting.assert_counted(7).await;
    // QEMU writes the headers of disks.
    set_size(&counting.disk, 1);
    counting.assert_counted(7).await;
}

#[tokio::test]
async fn a_disk_counts_as_before_when_its_replacement_could_not_be_made_or_is_removed() {
    let counting = Counting::new().await;
    let failing = script(counting.dir.path(), "exit 1").within(counting.qemu_img.budget.clone());
    let beside = counting.beside();
    let made = failing.overlay(&beside, raw(&counting.image), 8 << 20);
    assert_eq!(made.await.unwrap_err().path, beside);
    counting.assert_counted(6).await;

    counting.make_beside(8).await;
    std::fs::remove_file(&beside).unwrap();
    // Its size is removed after it, and a daemon may die in between.
    let counting = counting.restarted().await;
    counting.assert_counted(8).await;
    for _ in 0..2 {
        let kept = counting.qemu_img.count_kept(counting.directory());
        kept.await.unwrap();
        counting.assert_counted(6).await;
    }
    let counting = counting.restarted().await;
    counting.assert_counted(6).await;
}

#[tokio::test]
async fn a_replacement_counts_alone_when_it_has_taken_the_place_of_the_disk() {
    for size in [2, 8] {
        let counting = Counting::new().await;
        counting.make_beside(size).await;
        std::fs::rename(counting.beside(), &counting.disk).unwrap();
        for _ in 0..2 {
            let replaced = counting.qemu_img.count_replacement(counting.directory());
            replaced.await.unwrap();
            counting.assert_counted(size).await;
        }
        let counting = counting.restarted().await;
        counting.assert_counted(size).await;
    }
}
