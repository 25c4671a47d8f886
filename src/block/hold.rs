//! The holder of a device.
//!
//! Invariant: the record names the holders before our node of the device exists, and until after it
//! no longer exists; a holder lets go only after its domain no longer exists. Of a device with
//! several holders none may write.
//! Failure: a node that cannot be created leaves the record; removing the container removes it.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};
use podspec::ContainerId;

use super::Blocks;
use super::error::{Error, Result};
use super::model::{Held, Number};
use crate::files;
use crate::vm::Owner;

impl Blocks {
    /// The block device that a path leads to; `None` when it leads to something else. The path may be
    /// below a mount whose server does not answer: then it is an error after a deadline.
    pub async fn identify(&self, path: &Path) -> Result<Option<Number>> {
        let looked_at = path.to_owned();
        let look = move || std::fs::metadata(looked_at);
        let found = self.foreign.look(&owner_of(path), look).await?;
        let found = found.map_err(files::failed("find the device", path))?;
        Ok(found.file_type().is_block_device().then(|| Number {
            major: major(found.rdev()),
            minor: minor(found.rdev()),
        }))
    }

    /// A path that does not answer until the result is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self, path: &Path) -> crate::foreign::Turn<String> {
        self.foreign.hold(owner_of(path))
    }

    /// Gives a device to a container, whose machine runs as `owner`; several may read it. Again for
    /// the same container: success.
    pub async fn take(
        &self,
        device: Number,
        container: &ContainerId,
        read_only: bool,
        owner: Owner,
    ) -> Result<()> {
        let _turn = self.turns.lock().await;
        let wanted = Held {
            device,
            holder: container.clone(),
            read_only,
            readers: Vec::new(),
            extent: None,
        };
        let (held, is_first) = self.records.insert(wanted).await?;
        if !is_first && !held.is_of(container) {
            if !(held.read_only && read_only) {
                let holder = held.holder.clone();
                return Err(Error::InUse { device, holder });
            }
            let join = |held: &mut Held| {
                held.readers.push(container.clone());
                true
            };
            self.records.change(&device, join).await?;
        }
        faultpoint::point("vm.block.taken");
        let node = self.node(device);
        let is_shared = held.all().any(|one| one != container);
        // libvirt gives it to the user of each machine that starts; the others have it open.
        if is_shared && tokio::fs::try_exists(&node).await.unwrap_or(false) {
            return Ok(());
        }
        let path = node.clone();
        let made = blocking(move || make_node(&path, device, owner, read_only)).await;
        Ok(made.map_err(files::failed("make the device", &node))?)
    }

    /// Takes back all devices of a container whose domain no longer exists; success when it has
    /// none.
    pub async fn give_back(&self, container: &ContainerId) -> Result<()> {
        let _turn = self.turns.lock().await;
        for held in self.records.all() {
            if !held.is_of(container) {
                continue;
            }
            let leave = |held: &mut Held| held.leave(container);
            if self.records.change(&held.device, leave).await?.is_some() {
                continue;
            }
            remove_node(&self.node(held.device)).await?;
            faultpoint::point("vm.block.removed");
            let is_holder = |held: &Held| held.is_of(container);
            self.records.remove_if(&held.device, is_holder).await?;
        }
        Ok(())
    }

    /// All holders of a device.
    pub fn holders_of(&self, device: Number) -> Vec<ContainerId> {
        let held = self.records.get(&device);
        held.map(|held| held.all().cloned().collect())
            .unwrap_or_default()
    }

    /// Whether a container has any device.
    pub fn is_holder(&self, container: &ContainerId) -> bool {
        self.records.all().iter().any(|held| held.is_of(container))
    }

    /// Removes nodes without a record.
    pub async fn collect(&self) -> Result<()> {
        let failed = || files::failed("look through", &self.root);
        let mut entries = tokio::fs::read_dir(&self.root).await.map_err(failed())?;
        while let Some(entry) = entries.next_entry().await.map_err(failed())? {
            let path = entry.path();
            // No container takes or leaves a device between this look and the removal.
            let _turn = self.turns.lock().await;
            let mut held = self.records.all().into_iter();
            let name = entry.file_name();
            let is_aside = self.aside().may_have(&name.to_string_lossy());
            if !is_aside && !held.any(|held| self.node(held.device) == path) {
                tracing::warn!(node = %path.display(), "unowned device node removed");
                remove_node(&path).await?;
            }
        }
        Ok(())
    }

    /// All containers that have a device.
    pub fn holders(&self) -> Vec<ContainerId> {
        let all = self.records.all();
        all.iter().flat_map(|held| held.all()).cloned().collect()
    }
}

/// Who the thread that looks at a path works for.
fn owner_of(path: &Path) -> String {
    format!("device {}", path.display())
}

fn make_node(
    path: &Path,
    device: Number,
    Owner { uid, gid }: Owner,
    read_only: bool,
) -> std::io::Result<()> {
    // The node of an earlier container is not in use: the record shows it.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let number = makedev(device.major, device.minor);
    mknod(path, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, number)?;
    let mode = if read_only { 0o400 } else { 0o600 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    chown(path, Some(uid), Some(gid))
}

async fn remove_node(path: &Path) -> Result<()> {
    match tokio::fs::remove_file(path).await {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(files::failed("remove the device", path)(e).into())
        }
        _ => Ok(()),
    }
}

/// Runs work that may block on a disk where it delays no other task.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(std::io::Error::other(e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::qemu_img::QemuImg;
    use crate::metadata::Db;

    #[tokio::test]
    async fn a_path_that_hangs_is_an_error_after_a_while_and_delays_no_other() {
        let scratch = tempfile::tempdir().unwrap();
        let db = Db::in_memory().unwrap();
        let root = scratch.path().to_owned();
        let blocks = Blocks::open(db, root, QemuImg::as_user(0, 0))
            .await
            .unwrap();
        let path = scratch.path().join("hung");
        let hung = blocks.hold(&path);
        assert_eq!(blocks.identify(scratch.path()).await.unwrap(), None);
        tokio::time::pause();
        let error = blocks.identify(&path).await.unwrap_err();
        assert!(matches!(error, Error::Hung(_)), "{error}");
        assert!(
            error.to_string().contains(&*path.to_string_lossy()),
            "{error}"
        );
        tokio::time::resume();
        drop(hung);
        let error = blocks.identify(&path).await.unwrap_err();
        assert!(matches!(error, Error::Files(_)), "{error}");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_device_that_is_only_read_has_a_node_of_mode_0400() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("node");
        let device = Number { major: 7, minor: 0 };
        let uid = 65_534;
        let gid = 65_534;
        let owner = Owner { uid, gid };
        for (read_only, expected) in [(true, 0o400), (false, 0o600), (true, 0o400)] {
            make_node(&path, device, owner, read_only).unwrap();
            let made = path.metadata().unwrap();
            assert_eq!(made.permissions().mode() & 0o777, expected);
            assert_eq!((made.uid(), made.gid()), (uid, gid));
        }
    }
}
