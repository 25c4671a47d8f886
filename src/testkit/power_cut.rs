//! The disks of a node in a directory that keeps what was synced, and nothing else.
//!
//! Invariant: by the letter of POSIX ([`StrictDisk`]). The database is elsewhere, and keeps every
//! record: its own tests show that.
//! Failure: the assertion names the file that a power cut takes, brings back, or leaves as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{getegid, geteuid};
use testfs::StrictDisk;

use super::Node;
use crate::disk::Disks;
use crate::disk::qemu_img::QemuImg;

/// A node with such disks.
pub(crate) struct PowerCut {
    pub(crate) node: Node,
    strict: StrictDisk,
}

impl PowerCut {
    /// A node without disks, whose directory of disks is on a strict file system.
    pub(crate) async fn prepared() -> Self {
        let mut node = Node::new().await;
        let strict = StrictDisk::new().unwrap();
        let root = Disks::directory_of(&strict.path());
        fs::create_dir(&root).unwrap();
        strict.settle().unwrap();
        let qemu_img = QemuImg::as_user(geteuid().as_raw(), getegid().as_raw());
        let images = Arc::clone(&node.images);
        let disks = Disks::open(node.db.clone(), images, qemu_img, root).await;
        node.disks = Arc::new(disks.unwrap());
        Self { node, strict }
    }

    /// What the test itself has written is synced.
    pub(crate) fn settle(&self) {
        self.strict.settle().unwrap();
    }

    /// A power cut takes nothing away and brings nothing back: what was requested is on the disk.
    pub(crate) fn assert_durable(&self, after: &str) {
        let left = self.strict.cut().unwrap();
        let left = files(left.path());
        let there = files(&self.strict.path());
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&left), names(&there), "a power cut after {after}");
        for (path, content) in &there {
            let is_same = &left[path] == content;
            assert!(is_same, "content of {path:?} at a power cut after {after}");
        }
    }
}

/// The content of files by their paths; directories have none.
type Files = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn files(root: &Path) -> Files {
    let mut files = Files::new();
    collect(root, root, &mut files);
    files
}

fn collect(root: &Path, directory: &Path, files: &mut Files) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_owned();
        if path.is_dir() {
            files.insert(name, None);
            collect(root, &path, files);
        } else {
            files.insert(name, Some(fs::read(&path).unwrap()));
        }
    }
}
