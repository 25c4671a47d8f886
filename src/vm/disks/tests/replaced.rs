//! Root disks that give way to one of another image, and what is left when that ends half way.
//!
//! Invariant: disks, rows and images are real; what a dead daemon left is made by the steps of the
//! replacement itself.
//! Failure: the disk that is lost, or that is not of the pinned image.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use podspec::{ContainerId, SandboxId};

use super::super::overlay::Choice;
use super::super::replace::{aside, beside, unfinished};
use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::model::Container;

/// The size of the disk that replaces another one.
const LARGER: u64 = 1 << 20;

/// How far the replacement has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Begun,
    Made,
    Aside,
    Pinned,
    Removed,
    Counted,
    Named,
}

/// A sandbox with a disk, and a container that is to have one of another image.
struct Replacement {
    node: Node,
    sandbox: SandboxId,
    disk: PathBuf,
    /// The inode of the disk that the sandbox has.
    old: u64,
    row: Container,
}

impl Replacement {
    async fn new() -> Self {
        let node = Node::new().await;
        let first = node.created().await;
        let earlier = node.row(&first);
        let sandbox = earlier.sandbox.clone();
        let disk = node.containers.paths().root_disk(&sandbox);
        let old = inode(&disk);
        let mut spec = earlier.spec.clone();
        spec.config = node.machine_of("other", 1);
        spec.machine.root_size = Some(LARGER);
        node.containers.remove(&first).await.unwrap();
        let row = Container::new(ContainerId::generate(), sandbox.clone(), spec);
        Self {
            node,
            sandbox,
            disk,
            old,
            row,
        }
    }

    async fn choice(&self) -> Choice {
        let image = &self.row.spec.config.image;
        let choice = self.node.containers.choose_image(&self.sandbox, image);
        choice.await.unwrap()
    }

    /// Makes the new disk beside the old one.
    async fn make(&self, choice: &Choice) {
        let containers = &self.node.containers;
        let sandbox = self.node.sandbox_rows.get(&self.sandbox).unwrap();
        let made = containers.ensure_root_disk(&sandbox, &self.row, choice);
        made.await.unwrap();
    }

    /// Replaces the disk as far as that; the inode of the new one.
    async fn advance(&self, reached: Reached) -> Option<u64> {
        let containers = &self.node.containers;
        let choice = self.choice().await;
        containers.keep_choice(&self.row, &choice).await.unwrap();
        self.make(&choice).await;
        let beside = beside(&self.disk, choice.image.digest);
        let aside = aside(&self.disk, choice.replaces.unwrap());
        let new = inode(&beside);
        if reached == Reached::Begun {
            std::fs::rename(&beside, unfinished(&self.disk)).unwrap();
            return None;
        }
        if reached >= Reached::Aside {
            std::fs::rename(&self.disk, &aside).unwrap();
        }
        if reached >= Reached::Pinned {
            let images = &self.node.images;
            let moved = images.move_pin(self.row.id.as_str(), self.sandbox.as_str(), &choice.text);
            moved.await.unwrap();
        }
        if reached >= Reached::Removed {
            std::fs::remove_file(&aside).unwrap();
        }
        if reached >= Reached::Counted {
            let qemu_img = containers.parts.disks.qemu_img();
            let counted = qemu_img.count_replacement(self.disk.parent().unwrap());
            counted.await.unwrap();
        }
        if reached >= Reached::Named {
            std::fs::rename(&beside, &self.disk).unwrap();
        }
        Some(new)
    }

    async fn restarted(self) -> Self {
        let node = self.node.restarted().await;
        Self { node, ..self }
    }

    /// Boots the sandbox's disk again as one of this image; it has this inode and size, and is alone.
    async fn assert_disk(&self, image: &str, disk: u64, size: u64) {
        let node = &self.node;
        let config = node.machine_of(image, 7);
        let id = node.containers.create(&self.sandbox, config).await.unwrap();
        assert_eq!(inode(&self.disk), disk, "another disk than that of {image}");
        assert_eq!(self.names(), ["root.qcow2"]);
        assert_eq!(self.counted().await, size);
        let base = node.images.pinned(self.sandbox.as_str()).unwrap();
        assert_eq!(node.row(&id).spec.image_digest, base.digest.to_string());
        let base = base.path.to_str().unwrap().as_bytes();
        let content = std::fs::read(&self.disk).unwrap();
        assert!(content.windows(base.len()).any(|part| part == base));
        node.containers.remove(&id).await.unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.disk.parent().unwrap()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// The size that is recorded of the only disk, of which no other is expected any more.
    async fn counted(&self) -> u64 {
        let read = |t: &rusqlite::Transaction<'_>| {
            t.query_row("SELECT row FROM root_disk_sizes", [], |row| {
                row.get::<_, String>(0)
            })
        };
        let row = self.node.db.write(read).await.unwrap();
        let row: serde_json::Value = serde_json::from_str(&row).unwrap();
        assert_eq!(row.get("replacement_bytes"), None, "{row}");
        row["virtual_bytes"].as_u64().unwrap()
    }
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

/// With the row of the container, reconciliation settles what is left; without one, as when it cannot be
/// read, the next request does.
#[rstest::rstest]
#[tokio::test]
async fn death_at_any_step_leaves_the_disk_of_the_pinned_image(
    #[values(
        Reached::Begun,
        Reached::Made,
        Reached::Aside,
        Reached::Pinned,
        Reached::Removed,
        Reached::Counted,
        Reached::Named
    )]
    reached: Reached,
    #[values(true, false)] has_row: bool,
) {
    let replacement = Replacement::new().await;
    let before = replacement.counted().await;
    let new = replacement.advance(reached).await;
    if has_row {
        let rows = &replacement.node.rows;
        rows.insert(replacement.row.clone()).await.unwrap();
    }
    let replacement = replacement.restarted().await;
    if has_row {
        let node = &replacement.node;
        node.containers.reconcile().await.unwrap();
        assert!(node.rows.all().is_empty());
        assert_eq!(replacement.names(), ["root.qcow2"]);
        assert_eq!(node.images.owners(), [replacement.sandbox.to_string()]);
    }
    if reached < Reached::Pinned {
        let old = replacement.old;
        replacement.assert_disk("disk", old, before).await;
    } else {
        let new = new.unwrap();
        replacement.assert_disk("other", new, LARGER).await;
    }
}

/// Only the last write of the replacement is refused.
#[tokio::test]
async fn a_pin_that_cannot_be_written_costs_the_guest_no_disk() {
    let replacement = Replacement::new().await;
    let node = &replacement.node;
    let execute = |statement: &'static str| {
        node.db
            .write(move |t: &rusqlite::Transaction<'_>| t.execute_batch(statement))
    };
    let refuse = "CREATE TRIGGER refused BEFORE UPDATE ON image_pins \
                  BEGIN SELECT RAISE(ABORT, 'refused'); END";
    execute(refuse).await.unwrap();
    let config = node.machine_of("other", 1);
    let refused = node.containers.create(&replacement.sandbox, config).await;
    assert!(matches!(refused, Err(Error::Image(_))), "{refused:?}");
    assert!(node.rows.all().is_empty());
    assert_eq!(node.images.owners(), [replacement.sandbox.to_string()]);
    let size = replacement.counted().await;
    replacement.assert_disk("disk", replacement.old, size).await;
    execute("DROP TRIGGER refused").await.unwrap();
    let config = node.machine_of("other", 2);
    let created = node.containers.create(&replacement.sandbox, config).await;
    created.unwrap();
    assert_ne!(inode(&replacement.disk), replacement.old);
}

#[tokio::test]
async fn a_database_that_takes_no_writes_keeps_the_disk_aside_until_it_does() {
    let replacement = Replacement::new().await;
    let node = &replacement.node;
    let size = replacement.counted().await;
    let choice = replacement.choice().await;
    node.containers
        .keep_choice(&replacement.row, &choice)
        .await
        .unwrap();
    replacement.make(&choice).await;
    node.rows.insert(replacement.row.clone()).await.unwrap();
    node.refuse_writes(true).await;
    let refused = node.containers.replace_image(&replacement.row, &choice);
    assert!(matches!(refused.await, Err(Error::Image(_))));
    let refused = node.containers.drop_creating(&replacement.row).await;
    refused.unwrap_err();
    let kept = aside(&replacement.disk, choice.replaces.unwrap());
    assert_eq!(inode(&kept), replacement.old);
    assert_eq!(replacement.names().len(), 1);
    for image in ["disk", "other"] {
        let config = node.machine_of(image, 2);
        let refused = node.containers.create(&replacement.sandbox, config).await;
        refused.unwrap_err();
    }

    node.refuse_writes(false).await;
    replacement.assert_disk("disk", replacement.old, size).await;
    assert_eq!(node.images.owners(), [replacement.sandbox.to_string()]);
}
