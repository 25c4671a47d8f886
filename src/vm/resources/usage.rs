//! The disk usage of machines on the node.
//!
//! Invariant: files are counted by the blocks that they have, so that a sparse disk counts with
//! what is written.
//! Failure: a file that goes away meanwhile is left out; a directory that cannot be read counts as
//! empty. Of a file system that does not answer in time the last figures stay.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::foreign::Foreign;
use crate::platform::Platform;
use crate::vm::service::Containers;

/// Bytes of a block, as `stat` counts.
const BLOCK: u64 = 512;
/// How deep the directories below a state directory are.
const DEEP: u8 = 4;

/// Time for a count; that of thousands of files takes a second.
const TIME: Duration = Duration::from_secs(10);

/// The last count.
#[derive(Debug, Default)]
pub(in crate::vm) struct Meter {
    reader: Foreign<()>,
    last: Mutex<DiskUsage>,
}

/// Space and files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl<P: Platform> Containers<P> {
    /// What overlays, disks of virtual machines, saved memory, seeds and console files take.
    pub async fn disk_usage(&self) -> DiskUsage {
        let folders = [
            self.paths.pods(),
            self.paths.consoles(),
            self.paths.seeds(),
            crate::disk::Disks::directory_of(&self.settings.state_dir),
        ];
        let count = move || {
            let mut usage = DiskUsage::default();
            for folder in folders {
                usage.add(&folder, DEEP);
            }
            usage
        };
        let meter = &self.meter.disk_usage;
        let counted = meter.reader.read((), TIME, count).await;
        let mut last = meter.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = counted.unwrap_or(*last);
        *last
    }
}

impl DiskUsage {
    fn add(&mut self, folder: &Path, deep: u8) {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return;
        };
        for entry in entries.flatten() {
            // Not followed: a link counts as itself.
            let Ok(found) = entry.metadata() else {
                continue;
            };
            self.bytes += found.blocks() * BLOCK;
            self.inodes += 1;
            if found.is_dir() && deep > 1 {
                self.add(&entry.path(), deep - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testkit::Node;

    #[tokio::test]
    async fn the_disks_of_machines_count_and_go_with_them() {
        let node = Node::new().await;
        let empty = node.containers.disk_usage().await;
        let sandbox = node.ready().await;
        node.containers
            .create(&sandbox, node.machine(0))
            .await
            .unwrap();
        let with_disk = node.containers.disk_usage().await;
        assert!(
            with_disk.inodes >= empty.inodes + 2,
            "{empty:?} {with_disk:?}"
        );
        assert!(with_disk.bytes > empty.bytes, "{empty:?} {with_disk:?}");
        node.sandboxes.stop(&sandbox).await.unwrap();
        node.sandboxes.remove(&sandbox).await.unwrap();
        let gone = node.containers.disk_usage().await;
        assert_eq!(gone.inodes, empty.inodes);
    }
}
