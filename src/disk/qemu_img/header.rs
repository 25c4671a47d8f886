//! What headers of disks say.
//!
//! Invariant: a file is opened and read on a thread within a deadline, and nothing that its header names is
//! followed: an emulator that its guest has taken over may have written it.
//! Failure: the file that does not answer, or cannot be read.

use std::fs::File;
use std::io;
use std::path::Path;

use super::{QemuImg, look, sizes};
use crate::images::{has_data_file, head_of, names_backing_file};

impl QemuImg {
    /// The virtual size in the header of a disk, which an emulator that its guest has taken over may have written; 0
    /// where it is no qcow2 file.
    pub async fn size_in_header(&self, path: &Path) -> io::Result<u64> {
        let looked = async {
            let disk = self.open(path, "open it", |path| File::open(path)).await?;
            look(&disk, "read its header", sizes::size_in_header).await
        };
        looked.await.map_err(io::Error::other)
    }

    /// Whether the header of a disk says that its data are in another file.
    pub(crate) async fn has_data_file(&self, disk: &Path) -> io::Result<bool> {
        let looked = async {
            let disk = self.open(disk, "open it", |path| File::open(path)).await?;
            let read = |file: &File| Ok(has_data_file(&head_of(file)?));
            look(&disk, "read its header", read).await
        };
        looked.await.map_err(io::Error::other)
    }

    /// Whether the header of a disk of ours names another file, from which it holds only differences.
    pub async fn is_overlay(&self, disk: &Path) -> io::Result<bool> {
        let looked = async {
            let disk = self.open(disk, "open it", |path| File::open(path)).await?;
            look(&disk, "read its header", names_backing_file).await
        };
        looked.await.map_err(io::Error::other)
    }
}
