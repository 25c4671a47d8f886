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
//! Its files are copied, compared and joined by `joined.rs`. The backup is of a machine of the same namespace.
//! Failure: [`Error`]; the caller [undoes](Disks::undo) what was begun. The backup is as it was.

use std::path::PathBuf;

use podspec::VmUid;

use super::Disks;
use super::clone::{Bytes, Origin};
use super::error::{Error, Result};
use super::make::make_folder;
use crate::backup::Chain;
use crate::files;

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
        let staging = self.staging(vm);
        let staged = self.stage(&staging, &chain, &mut progress).await?;
        faultpoint::point("backup.restore.staged");
        let copy = self.unfinished_clone(vm);
        self.qemu_img.count_new(&copy, bytes.clone).await?;
        self.join(vm, &staged, bytes.source, &copy, progress)
            .await?;
        faultpoint::point("backup.restore.joined");
        let removed = tokio::fs::remove_dir_all(&staging).await;
        removed.map_err(files::failed("remove", &staging))?;
        self.complete_clone(vm, bytes).await?;
        self.end_copy(vm).await?;
        faultpoint::point("backup.restore.ready");
        tracing::info!(%vm, backup = %backup.uid, "disk restored");
        Ok(())
    }

    fn staging(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("backup")
    }
}
