//! What the disks of machines may take of the node.
//!
//! Invariant: the recorded virtual sizes of all root disks, those that are just being made
//! included, stay below the budget; what is written leaves the reserve of the file system free.
//! Failure: a sentence with the numbers, which clients get as `ResourceExhausted`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sizes::Sizes;
use super::{Failed, QemuImg};
use crate::metadata::{self, Db};
use crate::space::{Claim, Space};

/// How the reason begins where disks would have more than they may have together.
pub(super) const OVER_BUDGET: &str = "the node's disk budget";

/// The limits of a node; clones share what is counted.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    /// Largest sum of virtual sizes in bytes; `None` is no limit.
    most: Option<u64>,
    space: Space,
    /// None: nothing is counted.
    sizes: Option<Arc<Sizes>>,
}

impl Budget {
    /// The limits, for disks below these directories, each of which has a directory for each disk.
    pub async fn open(
        most: Option<u64>,
        space: Space,
        db: Db,
        roots: Vec<PathBuf>,
    ) -> metadata::Result<Self> {
        let sizes = Sizes::open(db, roots).await?;
        Ok(Self {
            most,
            space,
            sizes: Some(Arc::new(sizes)),
        })
    }

    /// Counts a disk of `size` bytes at `path` from now on, until it is forgotten; returns what it
    /// counted before.
    pub(super) async fn count(&self, path: &Path, size: u64) -> Result<Option<u64>, String> {
        let Some(sizes) = &self.sizes else {
            return Ok(None);
        };
        let allowed = |taken: u64| self.allow(taken, size);
        sizes.record(path, size, allowed).await
    }

    /// What the disk in a directory counts.
    pub(super) fn recorded(&self, directory: &Path) -> Option<u64> {
        self.sizes.as_ref()?.recorded(directory)
    }

    /// Counts all layers of the disk in a directory from now on, until it is forgotten.
    pub(super) async fn count_layers(&self, directory: &Path, size: u64) -> Result<(), String> {
        let Some(sizes) = &self.sizes else {
            return Ok(());
        };
        let allowed = |taken: u64| self.allow(taken, size);
        sizes.record_layers(directory, size, allowed).await
    }

    /// Counts the layers that the disk in a directory has.
    pub(super) async fn recount(&self, directory: &Path, size: u64) -> metadata::Result<()> {
        match &self.sizes {
            Some(sizes) => sizes.recount(directory, size).await,
            None => Ok(()),
        }
    }

    fn allow(&self, taken: u64, size: u64) -> Result<(), String> {
        match self.most {
            Some(most) if taken.saturating_add(size) > most => Err(format!(
                "{OVER_BUDGET} of {most} bytes does not suffice: other disks have {taken} \
                 bytes, this one needs {size}; remove machines, or raise vm.disk_budget"
            )),
            _ => Ok(()),
        }
    }

    /// The sizes that count.
    pub(super) fn sizes(&self) -> Option<&Sizes> {
        self.sizes.as_deref()
    }

    /// Counts the disk in a directory that was removed no more.
    pub(super) async fn forget(&self, directory: &Path) -> metadata::Result<()> {
        match &self.sizes {
            Some(sizes) => sizes.forget(directory).await,
            None => Ok(()),
        }
    }

    /// Counts the disk in a directory without the one that was to replace it.
    pub(super) async fn keep(&self, directory: &Path) -> metadata::Result<()> {
        match &self.sizes {
            Some(sizes) => sizes.keep(directory).await,
            None => Ok(()),
        }
    }

    /// Counts the one that was made to replace the disk in a directory, without that one.
    pub(super) async fn replace(&self, directory: &Path) -> metadata::Result<()> {
        match &self.sizes {
            Some(sizes) => sizes.replace(directory).await,
            None => Ok(()),
        }
    }

    /// Counts the disks below a root no more whose directories have a name that `is_gone` accepts.
    pub(super) async fn forget_gone(
        &self,
        root: &Path,
        is_gone: impl Fn(&str) -> bool,
    ) -> metadata::Result<()> {
        match &self.sizes {
            Some(sizes) => sizes.forget_gone(root, is_gone).await,
            None => Ok(()),
        }
    }

    /// Claims the space for writing `most` bytes, or as many as there are, of which `least` are
    /// needed.
    pub(super) async fn claim(&self, path: &Path, least: u64, most: u64) -> Result<Claim, String> {
        let space = self.space.clone();
        let path = path.to_owned();
        let claimed = tokio::task::spawn_blocking(move || space.claim(&path, least, most));
        let claimed = claimed.await.map_err(|e| e.to_string())?;
        claimed.map_err(|full| full.to_string())
    }

    /// Bytes beside the reserve, for what is too little to be claimed.
    pub(super) async fn room(&self, path: &Path) -> Result<u64, String> {
        let space = self.space.clone();
        let path = path.to_owned();
        let room = tokio::task::spawn_blocking(move || space.check(&path));
        let room = room.await.map_err(|e| e.to_string())?;
        room.map_err(|full| full.to_string())
    }
}

impl QemuImg {
    /// Counts a disk of `size` bytes that is about to be made at `path` in the budget of the node, until it is
    /// [forgotten](Self::forget).
    pub async fn count_new(&self, path: &Path, size: u64) -> Result<(), Failed> {
        let counted = self.budget.count(path, size).await.map(drop);
        let path = path.to_owned();
        counted.map_err(|reason| Failed { path, reason })
    }

    /// Claims space for files of so many bytes in the directory of `path`, until the claim is dropped.
    pub(crate) async fn claim(&self, path: &Path, bytes: u64) -> Result<Claim, Failed> {
        let claimed = self.budget.claim(path, bytes, bytes).await;
        let path = path.to_owned();
        claimed.map_err(|reason| Failed { path, reason })
    }

    /// Refuses when nothing is free beside the reserve on the file system of `path`.
    pub(crate) async fn check_room(&self, path: &Path) -> Result<(), Failed> {
        let room = self.budget.room(path).await.map(drop);
        let path = path.to_owned();
        room.map_err(|reason| Failed { path, reason })
    }

    /// The virtual size of the disk in a directory, with its layers, as it is recorded.
    pub fn recorded_size(&self, directory: &Path) -> Option<u64> {
        self.budget.recorded(directory)
    }

    /// Counts the disk in a directory that was removed no more in the budget of the node.
    pub async fn forget(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.forget(directory).await
    }

    /// Counts the disk in a directory alone again in the budget of the node: the one that was to replace it
    /// was removed.
    pub async fn count_kept(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.keep(directory).await
    }

    /// Counts the disk that was made to replace the one in a directory: that one was removed.
    pub async fn count_replacement(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.replace(directory).await
    }

    /// As [`Self::forget`], for all disks below `root` in directories whose names `is_gone` accepts.
    pub async fn forget_gone(
        &self,
        root: &Path,
        is_gone: impl Fn(&str) -> bool,
    ) -> metadata::Result<()> {
        self.budget.forget_gone(root, is_gone).await
    }
}
