//! Makes the disk of a machine from a backup.
//!
//! ```text
//! record    files of the new disk
//! making    -
//! making    backup/0, backup/1, …             compared with their manifests while they are copied
//! making    backup/…, root.new, a part of it
//! making    root.qcow2, complete
//! ready     root.qcow2
//! ```
//!
//! Invariant: as of a clone: the new disk stands alone, and has its name only when all of it is written and on the device.
//! Nothing is read in the target but to be copied and compared; what headers of the copies say of other files is not
//! followed. The backup is of a machine of the same namespace.
//! Failure: [`Error`]; the caller [undoes](Disks::undo) what was begun. The backup is as it was.

use std::path::PathBuf;
use std::sync::Arc;

use podspec::VmUid;

use super::Disks;
use super::clone::{Bytes, Origin};
use super::error::{Error, Result};
use super::make::make_folder;
use super::qemu_img::{Access, Base, Source};
use crate::backup::{Chain, Staged};
use crate::files;
use crate::images::Format;

/// Part of the progress that the copy from the target is, in percent.
const STAGING: u64 = 50;

/// The disk that a request specifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredRestore {
    /// The machine that gets the disk.
    pub vm: VmUid,
    /// `namespace/name` of that machine.
    pub name: String,
    /// Size in bytes that the guest is to see; 0: that of the backup.
    pub size: u64,
}

impl Disks {
    /// Creates a disk from a backup, or finds it complete. A caller that drops the future, or gets an error, must
    /// [undo](Self::undo) it. `progress` gets percents.
    pub async fn restore(
        &self,
        desired: &DesiredRestore,
        chain: impl Future<Output = crate::backup::Result<Chain>> + Send,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let vm = desired.vm;
        if !self.begin_copy(vm, &desired.name).await? {
            return Ok(());
        }
        faultpoint::point("backup.restore.recorded");
        let chain = chain.await?;
        chain.check_namespace(&desired.name)?;
        let Some((backup, _)) = chain.newest() else {
            return Err(Error::Missing(vm));
        };
        let bytes = Bytes::new(vm, backup.virtual_bytes, desired.size)?;
        let origin = Origin {
            image: &backup.image,
            digest: &backup.digest,
        };
        self.describe_copy(vm, origin, bytes).await?;
        make_folder(&self.folder(vm)).await?;
        let staged = self.stage(vm, &chain, &mut progress).await?;
        faultpoint::point("backup.restore.staged");
        self.join(vm, &staged, bytes, progress).await?;
        let staging = self.staging(vm);
        let removed = tokio::fs::remove_dir_all(&staging).await;
        removed.map_err(files::failed("remove", &staging))?;
        self.complete_clone(vm, bytes).await?;
        self.end_copy(vm).await?;
        faultpoint::point("backup.restore.ready");
        tracing::info!(%vm, backup = %backup.uid, "disk restored");
        Ok(())
    }

    /// Copies the files of a backup to the node, and compares them.
    async fn stage(
        &self,
        vm: VmUid,
        chain: &Chain,
        progress: &mut (impl FnMut(u8) + Send),
    ) -> Result<Vec<Staged>> {
        let staging = self.staging(vm);
        make_folder(&staging).await?;
        let all = chain.bytes();
        // Zeros take no space. Files that have more than their manifests say leave the reserve.
        let stored = chain.stored();
        let _claim = self.qemu_img.claim(&staging.join("all"), stored).await?;
        let mut copied: u64 = 0;
        let mut step = |bytes: u64| {
            copied = copied.saturating_add(bytes);
            progress(part(copied, all, STAGING));
        };
        tokio::select! {
            staged = chain.stage(&staging, &mut step) => Ok(staged?),
            full = self.qemu_img.filled(&staging) => Err(full.into()),
        }
    }

    /// Writes what all these files have together to the new disk.
    async fn join(
        &self,
        vm: VmUid,
        staged: &[Staged],
        bytes: Bytes,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let image = staged.last().filter(|last| last.format == Format::Raw);
        let layers = &staged[..staged.len() - usize::from(image.is_some())];
        let paths: Vec<PathBuf> = layers.iter().map(|layer| layer.path.clone()).collect();
        let Some((disk, below)) = paths.split_first() else {
            return Err(Error::Missing(vm));
        };
        self.check_restored(vm, disk, bytes.source).await?;
        if let Some(image) = image {
            let permitted = self.qemu_img.let_read(&image.path).await;
            permitted.map_err(files::failed("let qemu-img read", &image.path))?;
        }
        let copy = self.unfinished_clone(vm);
        self.qemu_img.count_new(&copy, bytes.clone).await?;
        let source = Source {
            disk,
            below,
            base: image.map(|image| Base {
                path: &image.path,
                format: image.format,
            }),
            size: bytes.source,
            access: Access::Lent,
            guard: Arc::new(()),
        };
        let joined = |percent: u8| {
            let rest = u64::from(percent.min(100)) * (100 - STAGING) / 100;
            progress(u8::try_from(STAGING + rest).unwrap_or(100));
        };
        self.qemu_img.copy_out(source, &copy, joined).await?;
        self.check_restored(vm, &copy, bytes.source).await?;
        faultpoint::point("backup.restore.joined");
        Ok(())
    }

    /// What a disk may take is counted by the size that the manifest says.
    async fn check_restored(&self, vm: VmUid, file: &std::path::Path, recorded: u64) -> Result<()> {
        let checked = self.check_size(vm, file, recorded).await;
        checked.map_err(|error| match error {
            Error::SizeDiffers { vm, has, recorded } => Error::BackupSize { vm, has, recorded },
            other => other,
        })
    }

    fn staging(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("backup")
    }
}

/// How much `done` is of `all`, where all is so many percent.
fn part(done: u64, all: u64, percent: u64) -> u8 {
    let part = u128::from(done) * u128::from(percent) / u128::from(all.max(1));
    u8::try_from(part).unwrap_or(100).min(100)
}
