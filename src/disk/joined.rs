//! Joins the files of a backup on the node to a disk that stands alone.
//!
//! Invariant: nothing is read in the target but to be copied and compared; what headers of the copies say of other files is
//! not followed. The disk has the size that the manifest says.
//! Failure: [`Error`]; what was written of the disk stays for the caller to remove.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use podspec::VmUid;

use super::Disks;
use super::error::{Error, Result};
use super::make::make_folder;
use super::qemu_img::{Access, Base, Source};
use crate::backup::{Chain, Staged};
use crate::files;
use crate::images::Format;

/// Part of the progress that the copy from the target is, in percent.
const STAGING: u64 = 50;

/// A folder with copies of the files of a backup, which is removed with this value.
struct Staging(Option<PathBuf>);

impl Disks {
    /// Writes what a backup of a machine has to a qcow2 file that stands alone, which is in no budget. `progress` gets
    /// percents. A caller that gets an error, or drops the future, removes the file.
    pub async fn copy_backup_out(
        &self,
        vm: VmUid,
        chain: &Chain,
        target: &Path,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let Some((backup, _)) = chain.newest() else {
            return Err(Error::Missing(vm));
        };
        let folder = target.with_extension("backup");
        let staging = Staging(Some(folder.clone()));
        let staged = self.stage(&folder, chain, &mut progress).await?;
        let size = backup.virtual_bytes;
        self.join(vm, &staged, size, target, progress).await?;
        let removed = staging.remove().await;
        Ok(removed.map_err(files::failed("remove", &folder))?)
    }

    /// Copies the files of a backup to a folder of the node, and compares them.
    pub(super) async fn stage(
        &self,
        folder: &Path,
        chain: &Chain,
        progress: &mut (impl FnMut(u8) + Send),
    ) -> Result<Vec<Staged>> {
        make_folder(folder).await?;
        let all = chain.bytes();
        // Zeros take no space. Files that have more than their manifests say leave the reserve.
        let stored = chain.stored();
        let _claim = self.qemu_img.claim(&folder.join("all"), stored).await?;
        let mut copied: u64 = 0;
        let mut step = |bytes: u64| {
            copied = copied.saturating_add(bytes);
            progress(part(copied, all, STAGING));
        };
        tokio::select! {
            staged = chain.stage(folder, &mut step) => Ok(staged?),
            full = self.qemu_img.filled(folder) => Err(full.into()),
        }
    }

    /// Writes what all these files have together to a new disk of `size` bytes, as the manifest says.
    pub(super) async fn join(
        &self,
        vm: VmUid,
        staged: &[Staged],
        size: u64,
        target: &Path,
        mut progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let image = staged.last().filter(|last| last.format == Format::Raw);
        let layers = &staged[..staged.len() - usize::from(image.is_some())];
        let paths: Vec<PathBuf> = layers.iter().map(|layer| layer.path.clone()).collect();
        let Some((disk, below)) = paths.split_first() else {
            return Err(Error::Missing(vm));
        };
        self.check_joined(vm, disk, size).await?;
        if let Some(image) = image {
            let permitted = self.qemu_img.let_read(&image.path).await;
            permitted.map_err(files::failed("let qemu-img read", &image.path))?;
        }
        let source = Source {
            disk,
            below,
            base: image.map(|image| Base {
                path: &image.path,
                format: image.format,
            }),
            size,
            access: Access::Lent,
            guard: Arc::new(()),
        };
        let joined = |percent: u8| {
            let rest = u64::from(percent.min(100)) * (100 - STAGING) / 100;
            progress(u8::try_from(STAGING + rest).unwrap_or(100));
        };
        self.qemu_img.copy_out(source, target, joined).await?;
        self.check_joined(vm, target, size).await
    }

    /// What a disk may take is counted by the size that the manifest says.
    async fn check_joined(&self, vm: VmUid, file: &Path, recorded: u64) -> Result<()> {
        let checked = self.check_size(vm, file, recorded).await;
        checked.map_err(|error| match error {
            Error::SizeDiffers { vm, has, recorded } => Error::BackupSize { vm, has, recorded },
            other => other,
        })
    }
}

impl Staging {
    async fn remove(mut self) -> std::io::Result<()> {
        match self.0.take() {
            Some(folder) => tokio::fs::remove_dir_all(folder).await,
            None => Ok(()),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // To remove large files takes its time.
        if let Some(folder) = self.0.take() {
            drop(tokio::task::spawn_blocking(move || {
                std::fs::remove_dir_all(folder)
            }));
        }
    }
}

/// How much `done` is of `all`, where all is so many percent.
fn part(done: u64, all: u64, percent: u64) -> u8 {
    let part = u128::from(done) * u128::from(percent) / u128::from(all.max(1));
    u8::try_from(part).unwrap_or(100).min(100)
}
