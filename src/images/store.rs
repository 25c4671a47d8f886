//! The image files on disk.
//!
//! Invariant: below the store's directory, `data/<hex>` is a complete, checked, immutable file that
//! every user may read but no user may list; `partial/` is for the daemon alone and on the same
//! file system.
//! Failure: I/O errors go up and name the path.

use std::collections::{HashMap, HashSet};
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::Digest;
use super::error::{Error, Result};
use super::partial::{FILE_MODE, NOTE, PART, STALE, remove_if_there};

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// What the store's own files take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The store's directory; it exists.
    pub mountpoint: PathBuf,
    /// Bytes on disk.
    pub used_bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// The directories of a store.
#[derive(Debug, Clone)]
pub(super) struct Store {
    dir: PathBuf,
    data: PathBuf,
    partial: Arc<Path>,
}

impl Store {
    /// Makes what is missing, and gives the group `readers` the images. Blocks.
    pub(super) fn open(dir: PathBuf, readers: Option<u32>) -> Result<Self> {
        let store = Self {
            data: dir.join("data"),
            partial: dir.join("partial").into(),
            dir,
        };
        for (dir, mode) in [
            (store.dir.as_path(), 0o711),
            // Files that are made there get the directory's group.
            (&store.data, 0o2711),
            (&store.partial, 0o2700),
        ] {
            DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(dir)
                .and_then(|()| std::os::unix::fs::chown(dir, None, readers))
                .and_then(|()| std::fs::set_permissions(dir, Permissions::from_mode(mode)))
                .map_err(Error::io("make directory", dir))?;
        }
        give_to_readers(&store.data, readers).map_err(Error::io("open", &store.data))?;
        Ok(store)
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    pub(super) fn partial(&self) -> Arc<Path> {
        Arc::clone(&self.partial)
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.data.join(digest.hex())
    }

    /// Whether the complete file of an image is there. Blocks.
    pub(super) fn holds(&self, digest: Digest, size: u64) -> bool {
        let found = std::fs::symlink_metadata(self.path(digest));
        found.is_ok_and(|file| file.is_file() && file.len() == size)
    }

    /// Removes the file of an image; that it is not there is fine. Blocks.
    pub(super) fn remove(&self, digest: Digest) -> Result<()> {
        let path = self.path(digest);
        remove_if_there(&path).map_err(Error::io("remove image", path))
    }

    /// Bytes on disk of the file of an image; 0 when it is not there. Blocks.
    pub(super) fn allocated(&self, digest: Digest) -> u64 {
        let found = std::fs::symlink_metadata(self.path(digest));
        found.map_or(0, |file| file.blocks().saturating_mul(BLOCK))
    }

    /// Removes image files that are not `wanted`, where that is known, and partial downloads that will not be continued;
    /// returns how many files went. For the start, before anything is pulled. Blocks.
    pub(super) fn collect(&self, wanted: Option<&HashSet<Digest>>) -> Result<usize> {
        let mut unwanted = Vec::new();
        for (path, file) in entries(&self.data)? {
            if file.is_dir() {
                continue; // Not ours; a nuisance, but no reason to refuse service.
            }
            let name = path.file_name().and_then(|name| name.to_str());
            let digest = name.and_then(|name| Digest::from_hex(name).ok());
            let is_wanted = |digest| wanted.is_none_or(|wanted| wanted.contains(&digest));
            if !digest.is_some_and(is_wanted) {
                unwanted.push(path);
            }
        }
        unwanted.extend(self.stale_downloads()?);
        for path in &unwanted {
            remove_if_there(path).map_err(Error::io("remove unneeded file", path))?;
        }
        Ok(unwanted.len())
    }

    /// Files in `partial/` that are not one of a pair, or whose bytes were last written long ago.
    fn stale_downloads(&self) -> Result<Vec<PathBuf>> {
        let files: HashMap<_, _> = entries(&self.partial)?.into_iter().collect();
        let fresh = |file: &Metadata| {
            let age = file.modified().ok().map(|time| time.elapsed());
            // A time in the future has no meaning for an age.
            !matches!(age, Some(Ok(age)) if age > STALE)
        };
        let pair = |path: &Path| {
            let part = files.get(&path.with_extension(PART));
            let noted = files.contains_key(&path.with_extension(NOTE));
            part.is_some_and(|part| noted && part.len() > 0 && fresh(part))
        };
        let ours = |path: &Path| {
            let extension = path.extension().and_then(|e| e.to_str());
            matches!(extension, Some(PART | NOTE))
        };
        let stale = files.iter().filter(|(path, file)| {
            let kept = ours(path) && pair(path);
            !kept && !file.is_dir()
        });
        Ok(stale.map(|(path, _)| path.clone()).collect())
    }

    /// Counts the store's files. Blocks.
    pub(super) fn usage(&self) -> Result<Usage> {
        let mut usage = Usage {
            mountpoint: self.dir.clone(),
            used_bytes: 0,
            inodes: 0,
        };
        for dir in [&*self.dir, &self.data, &self.partial] {
            for (_, file) in entries(dir)? {
                usage.used_bytes += file.blocks() * BLOCK;
                usage.inodes += 1;
            }
        }
        Ok(usage)
    }
}

/// What is in a directory; files that go away meanwhile are left out.
fn entries(dir: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
    let list = || {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) => entries.push((entry.path(), metadata)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(entries)
    };
    list().map_err(Error::io("list", dir))
}
/// Earlier versions left the images readable for all users. Blocks.
fn give_to_readers(data: &Path, readers: Option<u32>) -> io::Result<()> {
    for entry in std::fs::read_dir(data)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let path = entry.path();
            std::os::unix::fs::chown(&path, None, readers)?;
            std::fs::set_permissions(&path, Permissions::from_mode(FILE_MODE))?;
        }
    }
    Ok(())
}
