//! Stops and removals where the state directory is read-only.
//!
//! Invariant: the directory is read-only for paths, and the database refuses writes.
//! Failure: the mount is taken away in any case.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use podspec::VmUid;

use crate::testkit::Node;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const NONE: Option<&str> = None;

/// A directory that nothing can be changed below.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn make(path: &Path) -> Self {
        mount(Some(path), path, NONE, MsFlags::MS_BIND, NONE).unwrap();
        let guard = Self(path.to_owned());
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, path, NONE, flags, NONE).unwrap();
        guard
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn pods_on_a_read_only_file_system_end_and_are_cleaned_up_later() {
    let node = Node::new().await;
    let plain = node.started().await;
    let vm: VmUid = VM.parse().unwrap();
    node.make_disk(vm).await;
    let machine = node.annotated("vm", &[("vm-disk", VM)]).await;
    let created = node.containers.create(&machine, node.machine(0)).await;
    let kept = created.unwrap();
    node.containers.start(&kept).await.unwrap();
    let pods = [node.row(&plain).sandbox.clone(), machine];

    let state = node.containers.paths().pods();
    let read_only = ReadOnly::make(state.parent().unwrap());
    node.refuse_writes(true).await;
    for (id, pod) in [plain, kept].iter().zip(&pods) {
        node.containers.stop(id, Duration::ZERO).await.unwrap();
        node.sandboxes.stop(pod).await.unwrap();
        node.sandboxes.remove(pod).await.unwrap();
    }
    assert!(node.rows.all().is_empty() && node.sandbox_rows.all().is_empty());
    assert!(!node.files().is_empty(), "nothing could be removed");
    node.containers.reconcile().await.unwrap_err();

    drop(read_only);
    node.refuse_writes(false).await;
    node.containers.store_late().await.unwrap();
    node.sandboxes.store_late().await.unwrap();
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.files(), Vec::<PathBuf>::new());
    assert_eq!(node.disks.get(vm).unwrap().holder, None);
    assert!(
        node.disks.file(vm).exists(),
        "the disk of the machine stays"
    );
    assert_eq!(node.counted().await.len(), 1, "as does its size");
    assert_eq!(node.images.owners().len(), 1, "and its image");
}
