//! Who has a device.
//!
//! Invariant: the record names the holder before our node of the device exists, and until after it is gone; whoever lets go
//! has seen the domain gone.
//! Failure: a node that cannot be made leaves the record to whoever drops the container.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};
use podspec::ContainerId;

use super::Blocks;
use super::error::{Error, Result, files};
use super::model::{Held, Number};

impl Blocks {
    /// The block device that a path leads to; `None` when it leads to something else.
    pub async fn identify(path: &Path) -> Result<Option<Number>> {
        let found = tokio::fs::metadata(path).await;
        let found = found.map_err(files("find the device", path))?;
        Ok(found.file_type().is_block_device().then(|| Number {
            major: major(found.rdev()),
            minor: minor(found.rdev()),
        }))
    }

    /// Gives a device to a container. Again for the same container: success.
    pub async fn take(&self, device: Number, container: &ContainerId) -> Result<()> {
        let wanted = Held {
            device,
            holder: container.clone(),
            extent: None,
        };
        let (held, _) = self.ledger.insert(wanted).await?;
        if held.holder != *container {
            let holder = held.holder.clone();
            return Err(Error::InUse { device, holder });
        }
        faultpoint::point("vm.block.taken");
        let (node, uid, gid) = (self.node(device), self.uid, self.gid);
        let path = node.clone();
        blocking(move || make_node(&path, device, uid, gid))
            .await
            .map_err(files("make the device", &node))
    }

    /// Takes back all devices of a container whose domain is gone; success when it has none.
    pub async fn give_back(&self, container: &ContainerId) -> Result<()> {
        for held in self.ledger.all() {
            if held.holder != *container {
                continue;
            }
            remove_node(&self.node(held.device)).await?;
            faultpoint::point("vm.block.removed");
            let is_holder = |held: &Held| held.holder == *container;
            self.ledger.remove_if(&held.device, is_holder).await?;
        }
        Ok(())
    }

    /// Who has a device.
    pub fn holder(&self, device: Number) -> Option<ContainerId> {
        self.ledger.get(&device).map(|held| held.holder.clone())
    }

    /// Whether a container has any device.
    pub fn is_holder(&self, container: &ContainerId) -> bool {
        self.ledger.all().iter().any(|h| h.holder == *container)
    }

    /// Removes nodes without a record.
    pub async fn collect(&self) -> Result<()> {
        let failed = || files("look through", &self.root);
        let mut entries = tokio::fs::read_dir(&self.root).await.map_err(failed())?;
        while let Some(entry) = entries.next_entry().await.map_err(failed())? {
            let path = entry.path();
            // Looked up after the node was found: the record is older than the node.
            let mut held = self.ledger.all().into_iter();
            if !held.any(|held| self.node(held.device) == path) {
                tracing::warn!(node = %path.display(), "a device of nobody is removed");
                remove_node(&path).await?;
            }
        }
        Ok(())
    }

    /// All containers that have a device.
    pub fn holders(&self) -> Vec<ContainerId> {
        let all = self.ledger.all();
        all.iter().map(|held| held.holder.clone()).collect()
    }
}

fn make_node(path: &Path, device: Number, uid: u32, gid: u32) -> std::io::Result<()> {
    // What an earlier container left is nobody's: the record says so.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let number = makedev(device.major, device.minor);
    mknod(path, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, number)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    chown(path, Some(uid), Some(gid))
}

async fn remove_node(path: &Path) -> Result<()> {
    match tokio::fs::remove_file(path).await {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(files("remove the device", path)(e)),
        _ => Ok(()),
    }
}

/// Runs what may wait for a disk where that holds nobody up.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(std::io::Error::other(e)))
}
