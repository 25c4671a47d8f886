//! A file that keeps space of the state directory for ends: it is given up when the file system is
//! nearly full, so that stops and removals can be recorded.
//!
//! Invariant: the file has its whole size or is not there; it is made only where twice its size
//! stays free beside it, so that it never is what fills the file system.
//! Failure: a file system that cannot hold it has none, which the log says once.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

/// Its name in the state directory.
const NAME: &str = "ballast";

/// Its size in bytes.
const SIZE: u64 = 64 << 20;

/// Of a small file system it takes this part.
const PART: u64 = 32;

/// It is given up when less than this part of its size is free.
const LOW: u64 = 4;

/// It is made again when this many times its size is free.
const HIGH: u64 = 3;

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// What a look has led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing changed.
    Same,
    /// It was made.
    Made,
    /// It was given up.
    GivenUp,
}

/// The ballast of a state directory.
#[derive(Debug)]
pub struct Ballast {
    path: PathBuf,
    /// Why it cannot be made, as it was logged.
    obstacle: Mutex<Option<io::ErrorKind>>,
}

impl Ballast {
    /// The ballast in this state directory; see [`Self::look`].
    pub fn new(state: &Path) -> Self {
        Self {
            path: state.join(NAME),
            obstacle: Mutex::default(),
        }
    }

    /// Makes the file or gives it up, as the free space requires, and logs either. Blocks.
    pub fn look(&self) -> Look {
        let looked = self.weigh();
        match &looked {
            Ok(Look::GivenUp) => self.log_removal(),
            Ok(Look::Made) => tracing::info!(file = %self.path.display(), "ballast file made"),
            Ok(Look::Same) | Err(_) => {}
        }
        let obstacle = looked.as_ref().err().map(io::Error::kind);
        let mut known = self
            .obstacle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Err(error) = &looked
            && *known != obstacle
        {
            tracing::warn!(file = %self.path.display(), %error, "no ballast file in the state directory");
        }
        *known = obstacle;
        looked.unwrap_or(Look::Same)
    }

    /// Removes the file whatever is free, for what has just failed for lack of space: the file
    /// system may refuse to allocate while it still reports free blocks. False if there is none.
    /// Blocks.
    pub fn give_up(&self) -> bool {
        let is_removed = fs::remove_file(&self.path).is_ok();
        if is_removed {
            self.log_removal();
        }
        is_removed
    }

    fn log_removal(&self) {
        tracing::warn!(file = %self.path.display(), "state directory is nearly full: ballast file removed");
    }

    fn weigh(&self) -> io::Result<Look> {
        let is = statvfs(self.path.parent().unwrap_or(&self.path))?;
        let bytes = |blocks: u64| blocks.saturating_mul(is.fragment_size());
        let free = bytes(is.blocks_available());
        let size = SIZE.min(bytes(is.blocks()) / PART);
        let taken = match fs::symlink_metadata(&self.path) {
            Ok(is) => is.blocks().saturating_mul(BLOCK),
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
        if free < size / LOW {
            if taken == 0 {
                return Ok(Look::Same);
            }
            fs::remove_file(&self.path)?;
            return Ok(Look::GivenUp);
        }
        if taken >= size || free < size.saturating_mul(HIGH) {
            return Ok(Look::Same);
        }
        // What an attempt that was cut short has left is not whole.
        if let Err(error) = make(&self.path, size) {
            let removed = fs::remove_file(&self.path);
            return Err(removed
                .err()
                .filter(|e| e.kind() != io::ErrorKind::NotFound)
                .unwrap_or(error));
        }
        Ok(Look::Made)
    }
}

fn make(path: &Path, size: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file: File = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    let size = i64::try_from(size).map_err(io::Error::other)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, size)?)
}

#[cfg(test)]
mod tests;
